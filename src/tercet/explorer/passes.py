"""A cache of forward passes for queries."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.explorer.queries import Query
from tercet.inspect.losses import mean_loss, token_losses
from tercet.inspect.recording import Recording, Side, read
from tercet.models import Edit

MAX_CACHE_BYTES = 2**29  # total size of the cached passes; the last pass is kept even if it is larger


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The forward pass of one text.

    Attributes:
        trained_model: Model that read the text.
        query: Query with the token ids that were read, so that it is reproducible.
        recording: Recorded tensors of the pass.
    """

    trained_model: TrainedModel
    query: Query
    recording: Recording

    @property
    def edits(self) -> list[Edit]:
        return [ablation.edit for ablation in self.query.edits]

    @property
    def at(self) -> int:
        """The default row: the last token; in an encoder the first mask, or row 0 if there is none."""
        return len(self.recording.side.ids) - 1 if self.recording.causal else self.recording.masked_row or 0

    def row(self, at: int | None) -> int:
        """Return `at`, or the default row if it is None.

        Raises:
            UserError: If `at` is not a row of the pass.
        """
        length = len(self.recording.side.ids)
        if at is None:
            return self.at
        if not 0 <= at < length:
            raise UserError(f"at={at} is not a row; rows are 0 to {length - 1}")
        return at

    @cached_property
    def losses(self) -> list[float | None]:
        """The loss of each row in nats; None for rows without a target."""
        if self.recording.logits is None:
            return [None] * len(self.recording.side.ids)
        return token_losses(self.recording, self.recording.logits, original_ids=self.query.original_ids)

    @property
    def loss(self) -> float | None:
        """The mean loss of the rows with a target in nats; None if no row has one."""
        return mean_loss(self.losses)


class PassCache:
    """A cache of forward passes: call it with a query to get the pass, which is run if it is not in the cache.

    Args:
        trained_model: Model that runs the passes.
    """

    def __init__(self, trained_model: TrainedModel) -> None:
        self.trained_model = trained_model
        self._passes: OrderedDict[Query, Pass] = OrderedDict()

    def __call__(self, query: Query) -> Pass:
        """Return the pass of `query`.

        Raises:
            UserError: If `inspect.recording.read` raises it, or an edit or `original_ids` does not fit the pass.
        """
        if query not in self._passes:
            self._remember(query, _run_pass(self.trained_model, query))
        self._passes.move_to_end(query)
        return self._passes[query]

    def _remember(self, query: Query, new: Pass) -> None:
        # A query with these ids reads all of them, so its recording is not truncated.
        pass_of_ids = replace(new, recording=replace(new.recording, truncated=False))
        self._passes |= {new.query: pass_of_ids, query: new}
        # Most passes are cached under two queries, so their bytes are counted twice.
        while len(self._passes) > 2 and sum(map(_count_bytes, self._passes.values())) > 2 * MAX_CACHE_BYTES:
            self._passes.popitem(last=False)


def _run_pass(trained_model: TrainedModel, query: Query) -> Pass:
    try:
        recording = read(
            trained_model,
            query.text,
            target=query.target,
            ids=query.ids,
            target_ids=query.target_ids,
            edits=[ablation.edit for ablation in query.edits],
        )
    except ValueError as error:  # an edit does not fit the pass
        raise UserError(str(error)) from None
    if query.original_ids is not None:
        _check_originals(trained_model, recording.side, query.original_ids)
    resolved_query = replace(query, ids=recording.ids, target_ids=recording.target_ids)
    return Pass(trained_model=trained_model, query=resolved_query, recording=recording)


def _check_originals(trained_model: TrainedModel, side: Side, original_ids: Sequence[int]) -> None:
    if side.tokenizer.mask_id is None or "embed" not in trained_model.verbs:
        raise UserError("original_ids are for masked language models; omit them")
    if len(original_ids) != len(side.ids):
        raise UserError(f"{len(original_ids)} original_ids for {len(side.ids)} ids; pass one per id")
    size = side.tokenizer.vocab_size
    unknown = [number for number in original_ids if not 0 <= number < size]
    if unknown:
        raise UserError(f"the vocabulary has no id {unknown[0]}; ids are 0 to {size - 1}")


def _count_bytes(forward_pass: Pass) -> int:
    return sum(tensor.nbytes for tensor in forward_pass.recording.activations.values())

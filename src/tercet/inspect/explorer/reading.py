"""The passes that questions are about: each run once, and the last few kept."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tercet.checkpoint import Trained
from tercet.config import UserError
from tercet.generation.protocol import device_of, parts_of
from tercet.inspect.explorer.ask import Ask
from tercet.inspect.sentence import Reading, Side, read
from tercet.models import EncoderOnly
from tercet.models.inference import inference_mode

MOST_BYTES = 2**29  # of the passes that are kept; the last one is kept whatever it takes


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One sentence through the model.

    Attributes:
        ask: with the ids that were read filled in, so that asking again reads the same.
    """

    trained: Trained
    ask: Ask
    reading: Reading

    @property
    def side(self) -> Side:
        """The one whose tokens have logits."""
        return self.reading.side

    @property
    def stack(self) -> str:
        """The stack of that side."""
        return list(self.reading.sides)[-1]

    @property
    def causal(self) -> bool:
        return not isinstance(self.trained.model, EncoderOnly)

    @property
    def at(self) -> int:
        """The row that is of interest first: the last token, or of an encoder the first mask."""
        ids, mask = self.side.ids, self.side.tokenizer.mask_id
        if self.causal:
            return len(ids) - 1
        return ids.index(mask) if mask in ids else 0

    def row(self, at: int | None) -> int:
        """`at`, if there is such a row; `self.at` by default."""
        length = len(self.side.ids)
        if at is None:
            return self.at
        if not 0 <= at < length:
            raise UserError(f"at={at}: there is no such row; there are {length}, 0 to {length - 1}")
        return at

    def logits_again(self) -> Tensor:
        """The logits of the same tokens, by the model as it is at the time of the call."""
        model = self.trained.model
        rows = [torch.tensor([side.ids], device=device_of(model)) for side in self.reading.sides.values()]
        with inference_mode(parts_of(model)):
            return model(*rows)[0]


class Passes:
    """Reads what is asked, or remembers it."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self._kept: OrderedDict[Ask, Pass] = OrderedDict()

    def __call__(self, ask: Ask) -> Pass:
        """The pass that `ask` means.

        Raises:
            UserError: where it cannot be read so, as in `read`, or an edit does not fit.
        """
        if ask not in self._kept:
            self._keep(ask, _run(self.trained, ask))
        self._kept.move_to_end(ask)
        return self._kept[ask]

    def _keep(self, ask: Ask, made: Pass) -> None:
        # The ids alone do not say that something was cut off before them.
        again = replace(made, reading=replace(made.reading, truncated=False))
        self._kept |= {made.ask: again, ask: made}
        while len(self._kept) > 2 and sum(map(_bytes, self._kept.values())) > 2 * MOST_BYTES:  # most stand there twice
            self._kept.popitem(last=False)


def _run(trained: Trained, ask: Ask) -> Pass:
    try:
        reading = read(
            trained,
            ask.text,
            target=ask.target,
            ids=ask.ids,
            target_ids=ask.target_ids,
            edits=[ablation.edit for ablation in ask.edits],
        )
    except ValueError as error:  # an edit that does not fit
        raise UserError(str(error)) from None
    first = next(iter(reading.sides.values()))
    target_ids = reading.side.ids if len(reading.sides) > 1 else None
    resolved = replace(ask, ids=first.ids, target_ids=target_ids)
    if ask.original_ids is not None:
        _check_originals(trained, first, ask.original_ids)
    return Pass(trained=trained, ask=resolved, reading=reading)


def _check_originals(trained: Trained, side: Side, originals: tuple[int, ...]) -> None:
    if side.tokenizer.mask_id is None or not isinstance(trained.model, EncoderOnly):
        raise UserError("original_ids say what stood behind the masks, and this model reads no masks; leave them out")
    if len(originals) != len(side.ids):
        raise UserError(f"{len(originals)} original_ids for {len(side.ids)} ids; give one for each")
    size = side.tokenizer.vocab_size
    beyond = [number for number in originals if not 0 <= number < size]
    if beyond:
        raise UserError(f"the vocabulary has no id {beyond[0]}; ids are 0 to {size - 1}")


def _bytes(made: Pass) -> int:
    return sum(tensor.nbytes for tensor in made.reading.seen.values())

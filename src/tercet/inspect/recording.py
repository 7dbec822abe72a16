"""Recording of one text: the tokens that each stack reads, and every tensor of the forward pass.

    recording = read(trained, "The cat sat")
    recording.sides["stack"].texts, recording.logits  # (T, V)
    recording.activations["stack.blocks.0.self_attention.weights"]  # (1, H, T, T)

A text is encoded as in training. A language model reads it unchanged. A masked language model reads it between bos and
eos, with its masks. A translator reads it with eos appended; its decoder reads bos and the target, by default the
model's own greedy translation. A row of the logits belongs to a token that was read: it predicts the next token, or in
a masked language model the token of that row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.checkpoint import Encoder, TrainedModel, Translator
from tercet.config import UserError
from tercet.generation import Beam, translate
from tercet.generation.prompt import encode_prompt
from tercet.generation.protocol import device_of, parts_of
from tercet.models import AnyModel, Edit, record
from tercet.models.inference import inference_mode
from tercet.notebook import Summary, html_table
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Side:
    """The tokens that one stack reads. A translator has two sides, `encoder` and `decoder`; other models have one."""

    tokenizer: Tokenizer
    ids: tuple[int, ...]

    @cached_property
    def texts(self) -> list[str]:
        """A readable form of each token; special tokens by name."""
        return self.tokenizer.tokens(self.ids)


@dataclass(frozen=True, kw_only=True, repr=False)
class Recording(Summary):
    """The tensors of one forward pass.

    Attributes:
        sides: The tokens of each stack, in the order in which the stacks run.
        activations: Tensors by name, as from `record`, with a batch size of one.
        logits: Logits of the last stack's tokens; None without a language-model head.
        causal: If True, a row's logits predict the next token; in an encoder they predict the row's own token.
        truncated: If True, the text was longer than the context.
    """

    sides: dict[str, Side]
    activations: dict[str, Tensor]
    logits: Float[Tensor, "T V"] | None
    causal: bool
    truncated: bool

    def __repr__(self) -> str:
        read = " and ".join(f"{len(side.ids)} tokens" for side in self.sides.values())
        logits = "" if self.logits is None else f", logits {tuple(self.logits.shape)}"
        return f"Recording({read}, {len(self.activations)} tensors{logits})"

    def _repr_html_(self) -> str:
        texts = [(name, " | ".join(side.texts)) for name, side in self.sides.items()]
        shapes = [(name, " x ".join(map(str, tensor.shape))) for name, tensor in self.activations.items()]
        tensors = html_table(shapes, header=("tensor", "shape"))
        summary = f"<summary>{len(shapes)} tensors</summary>"
        return f"{html_table(texts, pale_first=True)}<details>{summary}{tensors}</details>"

    @property
    def side(self) -> Side:
        """The side of the last stack, whose tokens have logits."""
        return list(self.sides.values())[-1]

    @property
    def stack(self) -> str:
        """The name of the last stack."""
        return list(self.sides)[-1]

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the text, or of a translator's source."""
        return next(iter(self.sides.values())).ids

    @property
    def target_ids(self) -> tuple[int, ...] | None:
        """The ids that a translator's decoder reads; None for other models."""
        return self.side.ids if len(self.sides) > 1 else None

    @property
    def masked_row(self) -> int | None:
        """The row of the first mask of an encoder; None if there is no mask, and for other models."""
        mask = self.side.tokenizer.mask_id
        return self.side.ids.index(mask) if not self.causal and mask in self.side.ids else None


def read(
    trained_model: TrainedModel,
    text: str = "",
    *,
    target: str | None = None,
    ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    edits: Sequence[Edit] = (),
    only: Sequence[str] = ("*",),
) -> Recording:
    """Run one text through the model and record the tensors.

    Args:
        trained_model: Model to run.
        text: Text to read.
        target: Text that a translator's decoder reads (default: the model's own translation).
        ids, target_ids: Token ids to use instead of `text` and `target`, including special tokens.
        edits: Edits of the forward pass, as in `record`.
        only: Patterns of the names of the tensors to record.

    Raises:
        UserError: If the text is empty but the model needs a token, a text cannot be encoded, a target is passed to a
            model that is not a translator, an id is not in the vocabulary, or the ids do not fit into the context.
        ValueError: If an edit does not fit, as in `record`.
    """
    model = trained_model.model
    if not isinstance(trained_model, Translator) and (target is not None or target_ids is not None):
        raise UserError(f"a target is for translators: {trained_model.folder} reads a single text")
    row, truncated = _encode_text(trained_model, text, ids)
    sides = {"stack": Side(tokenizer=trained_model.tokenizer, ids=tuple(row))}
    if isinstance(trained_model, Translator):
        target_row, target_truncated = _encode_target(trained_model, row, target, target_ids)
        truncated |= target_truncated
        sides = {
            "encoder": Side(tokenizer=trained_model.source_tokenizer, ids=tuple(row)),
            "decoder": Side(tokenizer=trained_model.tokenizer, ids=tuple(target_row)),
        }
    with inference_mode(parts_of(model)), record(model, edits=edits, patterns=only) as activations:
        if isinstance(trained_model, Encoder) and "fill" not in trained_model.verbs:
            trained_model.model.hidden(*_to_tensors(model, sides))
            logits = None
        else:
            logits = model(*_to_tensors(model, sides))[0]
    causal = "embed" not in trained_model.verbs
    return Recording(sides=sides, activations=activations, logits=logits, causal=causal, truncated=truncated)


def compute_logits(model: AnyModel, recording: Recording) -> Float[Tensor, "T V"]:
    """Return the logits of the same tokens from the model's current state."""
    with inference_mode(parts_of(model)):
        return model(*_to_tensors(model, recording.sides))[0]


def _to_tensors(model: AnyModel, sides: Mapping[str, Side]) -> list[Int[Tensor, "1 T"]]:
    return [torch.tensor([side.ids], device=device_of(model)) for side in sides.values()]


def _encode_text(trained_model: TrainedModel, text: str, ids: Sequence[int] | None) -> tuple[list[int], bool]:
    """Return the ids of the first stack, and whether they were truncated.

    Prompts are truncated at the start, other texts at the end.
    """
    model, tokenizer = trained_model.model, trained_model.source_tokenizer
    if ids is not None:
        row = _check_ids(tokenizer, ids)
        if len(row) > model.max_len:
            raise UserError(f"{len(row)} ids do not fit into the context of {model.max_len} tokens; pass fewer")
        return row, False
    if "generate" in trained_model.verbs:
        row = encode_prompt(tokenizer, text)
        return row[-model.max_len :], len(row) > model.max_len
    translates = "translate" in trained_model.verbs
    opening = list(tokenizer.opening) if translates else [_require(tokenizer.bos_id, "bos")]
    body = tokenizer.encode(text) if tokenizer.mask_id is None else tokenizer.encode_masked(text).tolist()
    if not body and translates:
        raise UserError("the text is empty; pass at least one word")
    max_body = model.max_len - len(opening) - 1
    return [*opening, *body[:max_body], _require(tokenizer.eos_id, "eos")], len(body) > max_body


def _encode_target(
    trained_model: Translator, source_ids: Sequence[int], target: str | None, target_ids: Sequence[int] | None
) -> tuple[list[int], bool]:
    """Return the ids that the decoder reads (bos and the target, without eos), and whether they were truncated."""
    tokenizer, max_len = trained_model.tokenizer, trained_model.model.max_len
    _require(tokenizer.bos_id, "bos")
    opening, eos = tokenizer.target_opening, _require(tokenizer.eos_id, "eos")
    if target_ids is not None:
        return _check_ids(tokenizer, target_ids)[:max_len], len(target_ids) > max_len
    if target is not None:
        whole = [*opening, *tokenizer.encode(target)]
        return whole[:max_len], len(whole) > max_len
    source = trained_model.source_tokenizer.decode(source_ids)
    best = translate(
        trained_model.model, tokenizer, [source], Beam(size=1), source_tokenizer=trained_model.source_tokenizer
    )[0][0]  # fmt: skip
    target_row = [*opening, *(token for token in best.ids if token != eos)]
    return target_row[:max_len], len(target_row) > max_len


def _check_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    unknown = [number for number in ids if not 0 <= number < tokenizer.vocab_size]
    if not ids:
        raise UserError("the list of ids is empty; pass at least one")
    if unknown:
        raise UserError(f"the vocabulary has no id {unknown[0]}; ids are 0 to {tokenizer.vocab_size - 1}")
    return list(ids)


def _require(token: int | None, name: str) -> int:
    if token is None:
        raise UserError(f"the tokenizer has no {name} token, which this model needs to read a text")
    return token

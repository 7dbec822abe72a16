"""One text through a model: what each stack read, and every tensor on the way.

    recording = read(trained, "The cat sat")
    recording.sides["stack"].texts, recording.logits  # (T, V)
    recording.activations["stack.blocks.0.self_attention.weights"]  # (1, H, T, T)

A text is read as it was in training: a language model reads it as it stands; a masked language model between bos and
eos, with its masks; a translator with eos behind it, and its decoder bos and the target, which it writes itself by
greedy search where none is given. A row of the logits is a token that was read: what comes after it, or, in a masked
language model, what stands there.
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
    """What one stack read: `stack`, or a translator's `encoder` and `decoder`."""

    tokenizer: Tokenizer
    ids: tuple[int, ...]

    @cached_property
    def texts(self) -> list[str]:
        """A readable form of each token, special ones by name."""
        return self.tokenizer.tokens(self.ids)


@dataclass(frozen=True, kw_only=True, repr=False)
class Recording(Summary):
    """Attributes:
    sides: of each stack what it read, in the order in which they read.
    activations: the tensors by name, as from `record`, with one row in the batch.
    logits: of the last side's tokens; None for an encoder that scores no words.
    causal: a row's logits are for the token after it; in an encoder they are for its own place.
    truncated: whether the text was longer than the model takes.
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
        """The one whose tokens have logits."""
        return list(self.sides.values())[-1]

    @property
    def stack(self) -> str:
        """The name of that side's stack."""
        return list(self.sides)[-1]

    @property
    def ids(self) -> tuple[int, ...]:
        """What was read first: the text, or a translator's source."""
        return next(iter(self.sides.values())).ids

    @property
    def target_ids(self) -> tuple[int, ...] | None:
        """What a translator's decoder read."""
        return self.side.ids if len(self.sides) > 1 else None

    @property
    def masked_row(self) -> int | None:
        """The row of an encoder's first mask."""
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
    """Read one text and note the pass.

    Args:
        target: what a translator's decoder reads; what the model itself would write by default.
        ids, target_ids: exactly these tokens in place of `text` and `target`, special ones included.
        edits, only: as in `record`.

    Raises:
        UserError: for an empty text where the tokenizer has nothing to stand for it, a target where there is no decoder
            to read it, and ids that the vocabulary does not have.
        ValueError: for edits that do not fit, as in `record`.
    """
    model = trained_model.model
    if not isinstance(trained_model, Translator) and (target is not None or target_ids is not None):
        raise UserError(f"a target is for translators; {trained_model.folder} reads one text alone")
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
    """The logits of the same tokens, by the model as it is at the time of the call."""
    with inference_mode(parts_of(model)):
        return model(*_to_tensors(model, recording.sides))[0]


def _to_tensors(model: AnyModel, sides: Mapping[str, Side]) -> list[Int[Tensor, "1 T"]]:
    return [torch.tensor([side.ids], device=device_of(model)) for side in sides.values()]


def _encode_text(trained_model: TrainedModel, text: str, ids: Sequence[int] | None) -> tuple[list[int], bool]:
    """What the first stack reads, and whether it was cut: a prompt keeps its end, all else its beginning."""
    model, tokenizer = trained_model.model, trained_model.source_tokenizer
    if ids is not None:
        row = _check_ids(tokenizer, ids)
        if len(row) > model.max_len:
            raise UserError(f"{len(row)} ids do not fit into the context of {model.max_len} tokens; give fewer")
        return row, False
    if "generate" in trained_model.verbs:
        row = encode_prompt(tokenizer, text)
        return row[-model.max_len :], len(row) > model.max_len
    translates = "translate" in trained_model.verbs
    opening = list(tokenizer.opening) if translates else [_require(tokenizer.bos_id, "bos")]
    body = tokenizer.encode(text) if tokenizer.mask_id is None else tokenizer.encode_masked(text).tolist()
    if not body and translates:
        raise UserError("the text is empty; give at least one word to read")
    max_body = model.max_len - len(opening) - 1
    return [*opening, *body[:max_body], _require(tokenizer.eos_id, "eos")], len(body) > max_body


def _encode_target(
    trained_model: Translator, source_ids: Sequence[int], target: str | None, target_ids: Sequence[int] | None
) -> tuple[list[int], bool]:
    """What the decoder reads: bos and the target, without its end."""
    tokenizer, max_len = trained_model.tokenizer, trained_model.model.max_len
    bos, eos = _require(tokenizer.bos_id, "bos"), _require(tokenizer.eos_id, "eos")
    if target_ids is not None:
        return _check_ids(tokenizer, target_ids)[:max_len], len(target_ids) > max_len
    if target is not None:
        whole = [bos, *tokenizer.encode(target)]
        return whole[:max_len], len(whole) > max_len
    source = trained_model.source_tokenizer.decode(source_ids)
    best = translate(
        trained_model.model, tokenizer, [source], Beam(size=1), source_tokenizer=trained_model.source_tokenizer
    )[0][0]  # fmt: skip
    target_row = [bos, *(token for token in best.ids if token != eos)]
    return target_row[:max_len], len(target_row) > max_len


def _check_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    unknown = [number for number in ids if not 0 <= number < tokenizer.vocab_size]
    if not ids:
        raise UserError("the vocabulary has nothing to read in no ids")
    if unknown:
        raise UserError(f"the vocabulary has no id {unknown[0]}; ids are 0 to {tokenizer.vocab_size - 1}")
    return list(ids)


def _require(token: int | None, name: str) -> int:
    if token is None:
        raise UserError(f"the tokenizer has no {name} token, without which the model was not trained to read a text")
    return token

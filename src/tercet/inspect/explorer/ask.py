"""What may be asked of a model, as it comes from the page: frozen, and read strictly.

An `Ask` says which text is read, and with what switched off; the other questions say what to tell of that pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tercet.config import Plain, UserError, parse, plain
from tercet.generation import Sampling
from tercet.models import Edit


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A tensor of the pass that is set to zero: all of it, or only these heads and positions, counted from 0."""

    name: str
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    @property
    def edit(self) -> Edit:
        return Edit(name=self.name, heads=self.heads, positions=self.positions)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is read.

    Attributes:
        text: a prompt, a text with masks, or a translator's source.
        target: what a translator's decoder reads; what it writes itself by default.
        ids, target_ids: exactly these tokens in place of `text` and `target`.
        original_ids: of a masked language model, what stood there before anything was masked, for the loss.
        edits: what is switched off.
    """

    text: str = ""
    target: str | None = None
    ids: tuple[int, ...] | None = None
    target_ids: tuple[int, ...] | None = None
    original_ids: tuple[int, ...] | None = None
    edits: tuple[Ablation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How a token is drawn: the part of `Sampling` that the page has controls for."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.sampling  # noqa: B018 - refuses what it does not take

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, seed=self.seed
        )


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """What the model is."""


@dataclass(frozen=True, kw_only=True)
class OfLook:
    """An overview of the pass, with the logits of row `at`."""

    ask: Ask
    at: int | None = None


@dataclass(frozen=True, kw_only=True)
class OfBlock:
    """All tensors of one block, or of what stands around the blocks of a stack; with its weights, if wanted."""

    ask: Ask
    name: str
    parameters: bool = False


@dataclass(frozen=True, kw_only=True)
class OfLogits:
    ask: Ask
    at: int


@dataclass(frozen=True, kw_only=True)
class OfSample:
    """A token drawn after row `at`."""

    ask: Ask
    at: int
    sampling: Draw = field(default_factory=Draw)


@dataclass(frozen=True, kw_only=True)
class OfAttribution:
    """Which part of the model gave how much to the logit of `id` at row `at`."""

    ask: Ask
    at: int
    id: int


@dataclass(frozen=True, kw_only=True)
class OfHeads:
    """What each head does, and what is lost without it."""

    ask: Ask


@dataclass(frozen=True, kw_only=True)
class OfBeams:
    """The translations that a beam search of this size ends with."""

    ask: Ask
    size: int = 5


Question = OfModel | OfLook | OfBlock | OfLogits | OfSample | OfAttribution | OfHeads | OfBeams
QUESTIONS: dict[str, type[Question]] = {
    "model": OfModel,
    "look": OfLook,
    "block": OfBlock,
    "logits": OfLogits,
    "sample": OfSample,
    "attribution": OfAttribution,
    "heads": OfHeads,
    "beams": OfBeams,
}
Read = TypeVar("Read", bound=Question)


def question(kind: type[Read], body: Any) -> Read:
    """Read one question strictly.

    Raises:
        UserError: for what is no mapping, an unknown key with the nearest known one, or a value of the wrong type.
    """
    if not isinstance(body, Mapping):
        raise UserError(f"expected a JSON object, got {body!r:.60}")
    return parse(kind, _with_edits(body))


def to_plain(ask: Ask) -> Plain:
    """The inverse of reading: as JSON holds it."""
    return plain(ask)


def _with_edits(body: Mapping[str, Any]) -> Plain:
    """The body with its edits read: `parse` goes into mappings, not into lists of them."""
    ask = body.get("ask")
    if not isinstance(ask, Mapping) or not isinstance(ask.get("edits"), list):
        return dict(body)
    edits = tuple(
        parse(Ablation, _mapping(one, number), name=f"edit {number}") for number, one in enumerate(ask["edits"])
    )
    return {**body, "ask": {**ask, "edits": edits}}


def _mapping(one: Any, number: int) -> Mapping[str, Any]:
    if not isinstance(one, Mapping):
        raise UserError(f'edit {number}: expected an object such as {{"name": ...}}, got {one!r:.60}')
    return one

"""What may be asked of a model, as it comes from the page: frozen, and parsed strictly.

A `Query` says which text is read, and with what switched off; the others say what is wanted of that pass.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeVar

from tercet.config import Plain, UserError, parse, to_plain
from tercet.generation.specs import TokenSampling
from tercet.models import Edit
from tercet.spec import BeamSize, Index, spec


@spec
class Ablation:
    """A tensor of the pass that is set to zero: all of it, or only these heads and positions, counted from 0."""

    name: str
    heads: tuple[Index, ...] | None = None
    positions: tuple[Index, ...] | None = None

    @property
    def edit(self) -> Edit:
        return Edit(name=self.name, heads=self.heads, positions=self.positions)


@spec
class Query:
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
    ids: tuple[Index, ...] | None = None
    target_ids: tuple[Index, ...] | None = None
    original_ids: tuple[Index, ...] | None = None
    edits: tuple[Ablation, ...] = ()


@spec
class ModelQuery:
    """What the model is."""


@spec
class OverviewQuery:
    """An overview of the pass, with the logits of row `at`."""

    ask: Query
    at: Index | None = None


@spec
class BlockQuery:
    """All tensors of one block, or of what stands around the blocks of a stack; with its weights, if wanted."""

    ask: Query
    name: str
    parameters: bool = False


@spec
class LogitsQuery:
    ask: Query
    at: Index


@spec
class SampleQuery:
    """A token drawn after row `at`."""

    ask: Query
    at: Index
    sampling: TokenSampling = field(default_factory=TokenSampling)  # what the page has controls for


@spec
class AttributionQuery:
    """Which part of the model gave how much to the logit of `id` at row `at`."""

    ask: Query
    at: Index
    id: Index


@spec
class HeadsQuery:
    """What each head does, and what is lost without it."""

    ask: Query


@spec
class BeamsQuery:
    """The translations that a beam search of this size ends with."""

    ask: Query
    size: BeamSize = 5


AnyQuery = (
    ModelQuery | OverviewQuery | BlockQuery | LogitsQuery | SampleQuery | AttributionQuery | HeadsQuery | BeamsQuery
)
QUERIES: dict[str, type[AnyQuery]] = {
    "model": ModelQuery,
    "look": OverviewQuery,
    "block": BlockQuery,
    "logits": LogitsQuery,
    "sample": SampleQuery,
    "attribution": AttributionQuery,
    "heads": HeadsQuery,
    "beams": BeamsQuery,
}
QueryT = TypeVar("QueryT", bound=AnyQuery)


def parse_query(kind: type[QueryT], body: Any) -> QueryT:
    """One query from the page's JSON, strictly.

    Raises:
        UserError: for what is no mapping, an unknown key with the nearest known one, or a value of the wrong type.
    """
    if not isinstance(body, Mapping):
        raise UserError(f"expected a JSON object, got {body!r:.60}")
    return parse(kind, _parse_edits(body))


def query_to_plain(query: Query) -> Plain:
    """The inverse of parsing: as JSON holds it."""
    return to_plain(query)


def _parse_edits(body: Mapping[str, Any]) -> Plain:
    """The body with its edits parsed: `parse` goes into mappings, not into lists of them."""
    ask = body.get("ask")
    if not isinstance(ask, Mapping) or not isinstance(ask.get("edits"), list):
        return dict(body)
    edits = tuple(
        parse(Ablation, _check_mapping(edit, number), name=f"edit {number}") for number, edit in enumerate(ask["edits"])
    )
    return {**body, "ask": {**ask, "edits": edits}}


def _check_mapping(edit: Any, number: int) -> Mapping[str, Any]:
    if not isinstance(edit, Mapping):
        raise UserError(f'edit {number}: expected an object such as {{"name": ...}}, got {edit!r:.60}')
    return edit

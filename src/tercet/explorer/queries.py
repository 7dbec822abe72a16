"""The page's queries about a model, immutable and parsed strictly.

A `Query` defines the text to read and its edits; the other classes select a result of that pass.
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
    """A tensor to set to zero: all of it, or only these heads and positions, counted from 0."""

    name: str
    heads: tuple[Index, ...] | None = None
    positions: tuple[Index, ...] | None = None

    @property
    def edit(self) -> Edit:
        return Edit(name=self.name, heads=self.heads, positions=self.positions)


@spec
class Query:
    """The text to read.

    Attributes:
        text: Prompt, text with masks, or source of a translator.
        target: Text that a translator's decoder reads; by default the model's own translation.
        ids, target_ids: Token ids to use instead of `text` and `target`.
        original_ids: Ids before masking, for the loss of a masked language model.
        edits: Tensors to set to zero.
    """

    text: str = ""
    target: str | None = None
    ids: tuple[Index, ...] | None = None
    target_ids: tuple[Index, ...] | None = None
    original_ids: tuple[Index, ...] | None = None
    edits: tuple[Ablation, ...] = ()


@spec
class ModelQuery:
    """A description of the model."""


@spec
class OverviewQuery:
    """The overview of the pass, with the logits of row `at`."""

    ask: Query
    at: Index | None = None


@spec
class BlockQuery:
    """All tensors of one block, or those around the blocks of a stack; optionally with the weights."""

    ask: Query
    name: str
    parameters: bool = False


@spec
class LogitsQuery:
    ask: Query
    at: Index


@spec
class SampleQuery:
    """A token sampled after row `at`."""

    ask: Query
    at: Index
    sampling: TokenSampling = field(default_factory=TokenSampling)  # the settings that the page has controls for


@spec
class AttributionQuery:
    """The contribution of each part of the model to the logit of `id` at row `at`."""

    ask: Query
    at: Index
    id: Index


@spec
class HeadsQuery:
    """Scores of each head, and the loss without it."""

    ask: Query


@spec
class BeamsQuery:
    """The final hypotheses of a beam search of this size."""

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
    """Parse one query from the page's JSON strictly.

    Raises:
        UserError: If the body is not an object, has an unknown key, or has a value of the wrong type.
    """
    if not isinstance(body, Mapping):
        raise UserError(f"expected a JSON object, got {body!r:.60}")
    return parse(kind, _parse_edits(body))


def query_to_plain(query: Query) -> Plain:
    """Return the JSON object that parses to `query`."""
    return to_plain(query)


def _parse_edits(body: Mapping[str, Any]) -> Plain:
    """Return the body with its edits parsed, because `parse` does not descend into lists of mappings."""
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

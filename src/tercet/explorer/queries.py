"""The page's queries about a model: frozen dataclasses that are parsed strictly.

A `Query` defines a forward pass: the text to read, and the edits. The other classes select a result of that pass.
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
    """A tensor of a forward pass to set to zero.

    Attributes:
        name: Name of the recorded tensor.
        heads: Attention heads to set to zero, counted from 0; None for all.
        positions: Positions to set to zero, counted from 0; None for all.
    """

    name: str
    heads: tuple[Index, ...] | None = None
    positions: tuple[Index, ...] | None = None

    @property
    def edit(self) -> Edit:
        return Edit(name=self.name, heads=self.heads, positions=self.positions)


@spec
class Query:
    """The text to read, and the edits of its forward pass.

    Attributes:
        text: Prompt, text with masks, or source of a translator.
        target: Text that a translator's decoder reads; by default the model's own translation.
        ids, target_ids: Token ids to use instead of `text` and `target`, including special tokens.
        original_ids: Token ids before masking, one per id, for the loss of a masked language model.
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
    """Query for a description of the model."""


@spec
class OverviewQuery:
    """Query for the overview of a pass, with the logits of row `at`; None for the default row."""

    ask: Query
    at: Index | None = None


@spec
class BlockQuery:
    """Query for all tensors of one block, or those around the blocks of a stack.

    Attributes:
        ask: Forward pass.
        name: Name of the block or stack.
        parameters: If True, the answer contains the weights.
    """

    ask: Query
    name: str
    parameters: bool = False


@spec
class LogitsQuery:
    """Query for all logits of row `at`."""

    ask: Query
    at: Index


@spec
class SampleQuery:
    """Query for a token that is sampled after row `at`."""

    ask: Query
    at: Index
    sampling: TokenSampling = field(default_factory=TokenSampling)  # the settings that the page has controls for


@spec
class AttributionQuery:
    """Query for the contribution of each part of the model to the logit of token `id` at row `at`."""

    ask: Query
    at: Index
    id: Index


@spec
class HeadsQuery:
    """Query for the scores of each head, and for the increase of the loss without the head."""

    ask: Query


@spec
class BeamsQuery:
    """Query for the final hypotheses of a beam search with beams of this size."""

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
    """Parse the JSON body of a query.

    Args:
        kind: Class of the query.
        body: Parsed JSON; must be an object.

    Raises:
        UserError: If the body is not an object, has an unknown key, or has an invalid value.
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

"""The part of `tercet data look` about the division of data into training and validation."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tercet.cli.parser import parse_number
from tercet.messages import print_note
from tercet.spec import Threshold

if TYPE_CHECKING:
    from tercet.data import ConversationsSpec, DataSummary, LabelsSpec, PairsSpec, SplitSummary, TextSpec

KINDS = {
    "tail": "the end of the data",
    "documents": "drawn over documents",
    "drawn": "drawn",
    "similarity": "drawn over clusters of similar texts",
    "held_out": "a separate source",
}


def add_split(add: Callable[..., Any]) -> None:
    """Add the flags for the division into training and validation."""
    add(
        "--similarity", metavar="S", type=parse_number(Threshold),
        help="compare texts, and count validation texts with an estimated Jaccard similarity of at least S to a "
        "training text (default: 0.8, or that of data.validation, for up to 20 MB of text)",
    )  # fmt: skip
    add(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="override a key of `data`, such as data.validation.kind=documents; can be repeated",
    )  # fmt: skip


def find_split(
    spec: "TextSpec | PairsSpec | LabelsSpec | ConversationsSpec", summary: "DataSummary", similarity: float | None
) -> "SplitSummary | None":
    """Return the result of `split_summary.find_split`, or None with a note if the data cannot be divided."""
    from tercet.config import UserError
    from tercet.data.summary import split_summary

    try:
        return split_summary.find_split(spec, summary, similarity)
    except UserError as error:
        print_note(f"tercet: the division is not reported: {error}")
        return None


def split_facts(split: "SplitSummary", unit: str) -> list[tuple[str, str]]:
    """Return the names and values to print.

    Args:
        split: Summary of the division.
        unit: Name of the items, such as "documents".
    """
    about, total = "about " if split.kind == "tail" else "", split.train + split.validation
    facts = [("validation", f"{about}{split.validation:,} of {total:,} {unit}: {KINDS[split.kind]}")]
    if split.groups is not None:
        groups = split.groups
        parts = f"{groups.train:,} in training and {groups.validation:,} in validation"
        facts.append(("groups", f"{groups.count:,}, the largest of {groups.largest:,} {unit}; {parts}"))
    if split.clusters is None or split.largest_cluster is None or split.leaks is None:
        return [*facts, ("similar texts", "not counted for more than 20 MB of text; pass --similarity 0.8")]
    share = split.leaks / max(1, split.validation)
    largest = f", the largest of {split.largest_cluster:,} {unit}" if split.largest_cluster > 1 else ""
    remedy = " (data.validation.kind: similarity)" if split.leaks and split.kind != "similarity" else ""
    return [
        *facts,
        ("clusters", f"{split.clusters:,} with a similarity of at least {split.threshold:g}{largest}"),
        ("leaks", f"{split.leaks:,} validation {unit} ({share:.1%}) are similar to a training text{remedy}"),
    ]

"""Flags of commands that report on data, and the settings for reading the data that follow from them."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from tercet.cli.texts import add_reading, data_changes
from tercet.messages import print_note
from tercet.spec import ProblemType

if TYPE_CHECKING:
    from tercet.data import ConversationsSpec, LabelsSpec, PairsSpec, TextSpec

    Spec = TextSpec | PairsSpec | LabelsSpec | ConversationsSpec

CONVERSATION_FIELDS = ("messages_field", "prompt_field", "response_field")


def add_data_settings(add: Callable[..., Any]) -> None:
    """Add SOURCE, TARGET, and the flags that `read_data_settings` reads, except for --recipe and --max-len.

    Args:
        add: `add_argument` of a parser.
    """
    add_sources(add, required=True)
    add_reading(add)
    add_labels(add)
    add_fields(add)


def add_fields(add: Callable[..., Any]) -> None:
    """Add the flags for the fields of pairs and conversations."""
    for side, name in (("source", "source sentence"), ("target", "translation")):
        add(f"--{side}-field", metavar="NAME", help=f"read pairs, whose {name} is in this key or column")
    add("--messages-field", metavar="NAME", help="key of the messages of a conversation in JSONL")
    add("--prompt-field", metavar="NAME", help="key or column of the prompt, if conversations have no messages")
    add("--response-field", metavar="NAME", help="key or column of the response to the prompt")


def add_sources(add: Callable[..., Any], *, required: bool) -> None:
    """Add the arguments SOURCE and TARGET.

    Args:
        add: `add_argument` of a parser.
        required: If True, SOURCE must be passed.
    """
    name = {} if required else {"nargs": "?"}
    add(
        "source",
        metavar="SOURCE",
        **name,
        help="named dataset, file or folder of data, or MODULE:CLASS of your own dataset",
    )
    add(
        "target",
        metavar="TARGET",
        nargs="?",
        help="translations of SOURCE, line by line; `tercet data` also accepts held-out labeled texts",
    )


def add_labels(add: Callable[..., Any]) -> None:
    """Add the flags for reading labeled texts."""
    add("--label-field", metavar="NAME", help="read labeled texts, whose label is in this key or column")
    add(
        "--label-pattern", metavar="REGEX",
        help=r"read labeled sequences, whose label this pattern matches in the FASTA header, as in 'family=(\w+)'",
    )  # fmt: skip
    add(
        "--over",
        choices=("texts", "tokens"),
        help="read labeled texts with one label per text, or one per word of a list (tokens) (default: texts)",
    )
    add(
        "--problem-type", choices=get_args(ProblemType),
        help="type of the labels: one per text, any number per text, or a number per text (default: for JSONL as in "
        "the first line, else one per text)",
    )  # fmt: skip


def read_data_settings(args: argparse.Namespace, source: str, target: str | None) -> "tuple[Spec, int | None]":
    """Return the settings for reading the source, and the context length of --max-len or the recipe, or None."""
    from tercet.config import UserError, merge, parse, to_plain
    from tercet.data.datasets.recognize import recognize
    from tercet.data.sources.custom_dataset import read_source

    fields: dict[str, Any] = {
        "text_field": args.text_field,
        "label_field": args.label_field,
        "label_pattern": args.label_pattern,
        "problem_type": args.problem_type,
        "encoding": args.encoding or "utf-8",
        "source_language": args.source_field,
        "target_language": args.target_field,
        **{name: getattr(args, name) for name in CONVERSATION_FIELDS},
    }
    changes = data_changes(args.set)
    passed = {name for name, value in fields.items() if value is not None and (name != "encoding" or args.encoding)}
    fields |= {name: value for name in fields if isinstance(value := changes.get(name), str)}
    over: Any = changes.get("over", args.over)
    if args.recipe is None:
        spec = _draw_by_default(_apply_reading(recognize(read_source(source), target, over=over, **fields), args))
        if changes:
            plain = to_plain(spec)
            spec = parse(type(spec), {**merge(plain, changes), "source": plain["source"]}, name="data")
        return spec, args.max_len

    from tercet.data import QueriesSpec
    from tercet.training.request import RunRequest, resolve

    name = args.recipe
    overrides = merge({name: fields[name] for name in passed}, changes)
    translates = type(recognize(read_source(source), target, **fields)).__name__ == "PairsSpec"
    data: dict[str, Any] = {"source": source, "target": target} if translates else {"data": source}
    recipe = resolve(RunRequest(recipe=name, changes={"data": overrides} if overrides else {}, **data)).recipe
    if recipe.pretrained is not None:
        raise UserError(
            f"the recipe {name} uses the tokenizer of {recipe.pretrained}; pass --tokenizer instead of --recipe"
        )
    if isinstance(recipe.data, QueriesSpec):
        raise UserError(
            f"the recipe {name} reads queries and documents, which data look does not; pass another --recipe"
        )
    return _apply_reading(recipe.data, args), args.max_len or recipe.row_len


def _apply_reading(spec: "Spec", args: argparse.Namespace) -> "Spec":
    """Return the settings with the values of --documents and --dtype, which apply only to running text."""
    from tercet.data import TextSpec

    overrides = {name: value for name in ("documents", "dtype") if (value := getattr(args, name)) is not None}
    return replace(spec, **overrides) if isinstance(spec, TextSpec) else spec


def _draw_by_default(spec: "Spec") -> "Spec":
    """Return the settings with the validation part that `tercet train SOURCE` selects."""
    from tercet.data import Documents, TextSpec
    from tercet.training.recipe.for_data import draws_by_default

    return replace(spec, validation=Documents()) if isinstance(spec, TextSpec) and draws_by_default(spec) else spec


def note_guessed_fields(args: argparse.Namespace, spec: "Spec") -> None:
    """Report on stderr the fields of the data that were guessed from their names."""
    from tercet.data.datasets.recognize import describe_fields

    is_guess = not any((args.recipe, args.text_field, args.label_field, args.source_field, args.target_field))
    if is_guess and (fields := describe_fields(spec)):
        print_note(f"tercet: {args.source} has {fields}")

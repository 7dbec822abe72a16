"""Flags of sampling and beam search, and a description of the chosen search."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.parser import parse_number
from tercet.spec import (
    BeamSize,
    CoverageWeight,
    LengthPenaltyPower,
    LengthRatio,
    NewTokens,
    RepetitionPenalty,
    Seed,
    Share,
    ShareAboveZero,
    Temperature,
    TopK,
)

if TYPE_CHECKING:
    from tercet.generation import Beam, Sampling
    from tercet.generation.specs import SamplingOptions

SAME_NAMES = ("n_best", "length_penalty", "alpha", "coverage", "max_ratio", "max_extra", "min_ratio", "min_extra")
BEAM = {"beam": "size", **{name: name for name in SAME_NAMES}}  # fields of `Beam` by flag
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
TEXT_SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "regex")

LENGTH_PENALTIES = ("average", "gnmt", "none")

Add = Callable[..., Any]  # `add_argument` of a parser or group


def add_beam(add: Add) -> None:
    """Add the most important flags of a beam search."""
    add("--beam", metavar="N", type=parse_number(BeamSize), help="beam size; 1 is greedy search (default: 5)")
    add(
        "--length-penalty",
        choices=LENGTH_PENALTIES,
        type=_length_penalty,
        help="length normalization (default: average)",
    )
    add(
        "--alpha",
        metavar="X",
        type=parse_number(LengthPenaltyPower),
        help="exponent of the length penalty (default: 1)",
    )


def _length_penalty(text: str) -> str:
    """Argparse type of --length-penalty: reject a number, which other programs have there, with the right flag."""
    if text.replace(".", "", 1).isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is a number; pass it as --alpha {text}")
    return text


def add_search(add: Add) -> None:
    """Add the other flags of a beam search."""
    add(
        "--n-best",
        metavar="N",
        type=parse_number(BeamSize),
        help="print up to N translations per line: number of the line, from 0 ||| text ||| score",
    )
    add(
        "--coverage",
        metavar="X",
        type=parse_number(CoverageWeight),
        help="weight of the coverage penalty for unattended source tokens (default: 0)",
    )
    add("--max-ratio", metavar="X", type=parse_number(LengthRatio), help="maximum tokens per source token (default: 2)")
    add(
        "--max-extra",
        metavar="N",
        type=parse_number(NewTokens),
        help="tokens added to the maximum of --max-ratio (default: 10)",
    )
    add("--min-ratio", metavar="X", type=parse_number(LengthRatio), help="minimum tokens per source token (default: 0)")
    add(
        "--min-extra",
        metavar="N",
        type=parse_number(NewTokens),
        help="tokens added to the minimum of --min-ratio (default: 0)",
    )


def add_sampling(add: Add) -> None:
    add("--sample", action="store_true", help="sample a translation instead of searching for the best one")
    add(
        "--temperature",
        metavar="X",
        type=parse_number(Temperature),
        help="sampling temperature; 0 takes the most likely token (default: 1)",
    )
    _add_filters(add)
    add("--seed", metavar="N", type=parse_number(Seed), help="random seed (default: 0)")


def _add_filters(add: Add) -> None:
    add("--top-k", metavar="N", type=parse_number(TopK), help="sample from the N most likely tokens (default: all)")
    add(
        "--top-p",
        metavar="P",
        type=parse_number(ShareAboveZero),
        help="sample from the smallest set of most likely tokens with a total probability of at least P (default: 1)",
    )
    add(
        "--min-p",
        metavar="P",
        type=parse_number(Share),
        help="sample from tokens that are at least P times as likely as the most likely one (default: 0)",
    )


def add_text_sampling(add: Add, *, default_length: str, unit: str) -> None:
    """Add the flags for sampling text.

    Args:
        add: `add_argument` of a parser or group.
        default_length: Description of the default of --max-new-tokens, for its help.
        unit: Name of the text that is generated with one seed, such as "answer".
    """
    add(
        "--max-new-tokens",
        metavar="N",
        type=parse_number(NewTokens),
        help=f"maximum number of new tokens ({default_length})",
    )
    add(
        "--temperature",
        metavar="X",
        type=parse_number(Temperature),
        help="sampling temperature; 0 takes the most likely token, values > 1 are more random (default: 1)",
    )
    _add_filters(add)
    add(
        "--repetition-penalty",
        metavar="X",
        type=parse_number(RepetitionPenalty),
        help="penalty for tokens that are already in the text, if X > 1 (default: 1)",
    )
    add(
        "--stop", metavar="TEXT", action="append", default=[], help="stop string, which is not printed; can be repeated"
    )
    add(
        "--seed",
        metavar="N",
        type=parse_number(Seed),
        help=f"random seed of the first {unit}; each further {unit} adds 1 (default: 0)",
    )
    add(
        "--json-schema",
        metavar="SCHEMA",
        help=f"make each {unit} a JSON value that this JSON schema accepts: a file, or the schema itself",
    )
    add("--regex", metavar="PATTERN", help=f"make each {unit} match this regular expression as a whole")


def sampling_options(args: argparse.Namespace) -> "SamplingOptions":
    """Return the values of the flags of `add_text_sampling` as keyword arguments of `Sampling`.

    Raises:
        UserError: If a stop string is empty, flags exclude each other, or the file of a schema cannot be read.
    """
    from tercet.config import UserError

    if "" in args.stop:
        raise UserError("--stop requires a text that is not empty; leave it out")
    if args.json_schema is not None and args.regex is not None:
        raise UserError("--json-schema and --regex exclude each other; pass one of them")
    options: Any = {name: value for name in TEXT_SAMPLING if (value := getattr(args, name)) is not None}
    options["stop"] = tuple(args.stop)
    if args.json_schema is not None:
        options["json_schema"] = _read_schema(args.json_schema)
    return options


def _read_schema(argument: str) -> str:
    """Return the text of a JSON schema from an argument: the argument if it begins with {, else a file's content."""
    from tercet.config import UserError
    from tercet.limits import SCHEMA_CHARACTERS
    from tercet.reading.files import read_text_file

    if argument.lstrip().startswith("{"):
        return argument
    try:
        if not argument.strip():
            raise UserError("the argument is empty; pass a file")
        return read_text_file(Path(argument), 4 * SCHEMA_CHARACTERS)
    except UserError as error:
        raise UserError(
            f'--json-schema: {error}, or pass the schema itself, such as \'{{"type": "object"}}\''
        ) from None


def parse_search(args: argparse.Namespace) -> "Beam | Sampling":
    """Return the search that the flags of `add_beam`, `add_search` and `add_sampling` select.

    Raises:
        UserError: If values are out of range, or flags do not fit together.
    """
    from tercet import limits
    from tercet.config import UserError
    from tercet.generation import Beam, Sampling

    flags = {flag: value for flag, value in vars(args).items() if value is not None}
    beam = {name: flags[flag] for flag, name in BEAM.items() if flag in flags}
    sampling = {name: flags[name] for name in SAMPLING if name in flags}
    try:
        if not flags.get("sample"):
            if sampling:
                greedy = ", or pass --beam 1 for greedy search" if flags.get("temperature") == 0 else ""
                raise UserError(f"{_flags(sampling)} require{'s' * (len(sampling) == 1)} --sample; add it{greedy}")
            return Beam(**beam)
        if beam:
            raise UserError(f"--sample uses no beam search; leave {_flags(f for f in BEAM if f in flags)} out")
        return Sampling(**sampling, max_new_tokens=limits.NEW_TOKENS)  # the source length and the model limit it
    except ValueError as error:
        raise UserError(str(error).replace("size=", "--beam ")) from None


def describe_search(search: "Beam | Sampling") -> str:
    """Return a search in words, such as "beam 5, average length penalty 1"."""
    from tercet.generation import Beam

    if isinstance(search, Beam):
        return search.name
    filters = {"top_k": search.top_k, "top_p": search.top_p, "min_p": search.min_p}
    filter_values = [f"{name.replace('_', '-')} {value:g}" for name, value in filters.items() if value is not None]
    return ", ".join(["sample", f"temperature {search.temperature:g}", *filter_values, f"seed {search.seed}"])


def _flags(names: Iterable[str]) -> str:
    return " and ".join("--" + name.replace("_", "-") for name in names)

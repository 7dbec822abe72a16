"""How a text or a translation is decoded: the flags of sampling and of beam search, and the search in words."""

import argparse
from collections.abc import Callable, Iterable
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
BEAM = {"beam": "size", **{name: name for name in SAME_NAMES}}  # flags, and what they are in `Beam`
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
TEXT_SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")

Add = Callable[..., Any]  # `add_argument` of a parser, or of a group of its flags


def add_beam(add: Add) -> None:
    """The flags that decide the outcome most."""
    add("--beam", metavar="N", type=parse_number(BeamSize), help="hypotheses kept; 1 is greedy (default: 5)")
    add("--length-penalty", choices=("average", "gnmt", "none"), help="default: average")
    add("--alpha", metavar="X", type=parse_number(LengthPenaltyPower), help="the penalty's power (default: 1)")


def add_search(add: Add) -> None:
    """Add the other flags of a beam search."""
    add(
        "--n-best",
        metavar="N",
        type=parse_number(BeamSize),
        help="up to N translations a line: number ||| text ||| score",
    )
    add(
        "--coverage",
        metavar="X",
        type=parse_number(CoverageWeight),
        help="above 0: unattended source tokens cost (default: 0)",
    )
    add("--max-ratio", metavar="X", type=parse_number(LengthRatio), help="at most X tokens a source token (default: 2)")
    add("--max-extra", metavar="N", type=parse_number(NewTokens), help="and N more (default: 10)")
    add(
        "--min-ratio", metavar="X", type=parse_number(LengthRatio), help="at least X tokens a source token (default: 0)"
    )
    add("--min-extra", metavar="N", type=parse_number(NewTokens), help="and N more (default: 0)")


def add_sampling(add: Add) -> None:
    add("--sample", action="store_true", help="draw a translation instead of searching for the best")
    add("--temperature", metavar="X", type=parse_number(Temperature), help="0: the likeliest token (default: 1)")
    _add_filters(add)
    add("--seed", metavar="N", type=parse_number(Seed), help="default: 0")


def _add_filters(add: Add) -> None:
    add("--top-k", metavar="N", type=parse_number(TopK), help="draw among the N likeliest tokens")
    add(
        "--top-p",
        metavar="P",
        type=parse_number(ShareAboveZero),
        help="draw among the fewest tokens that reach probability P",
    )
    add(
        "--min-p",
        metavar="P",
        type=parse_number(Share),
        help="draw among tokens at least P times as likely as the best",
    )


def add_text_sampling(add: Add, *, default_length: str, unit: str) -> None:
    """The flags of what goes on writing.

    Args:
        default_length: how many tokens that is by default.
        unit: what a seed is counted for.
    """
    add(
        "--max-new-tokens",
        metavar="N",
        type=parse_number(NewTokens),
        help=f"write so many tokens at most ({default_length})",
    )
    add(
        "--temperature",
        metavar="X",
        type=parse_number(Temperature),
        help="0: the likeliest token; above 1: wilder (default: 1)",
    )
    _add_filters(add)
    add(
        "--repetition-penalty",
        metavar="X",
        type=parse_number(RepetitionPenalty),
        help="above 1: what is there gets less likely",
    )
    add("--stop", metavar="TEXT", action="append", default=[], help="end before this text; may be repeated")
    add(
        "--seed", metavar="N", type=parse_number(Seed), help=f"of the first {unit}; the next ones count up (default: 0)"
    )


def sampling_options(args: argparse.Namespace) -> "SamplingOptions":
    """What the flags of `add_text_sampling` say, as keywords of `Sampling`."""
    options: Any = {name: value for name in TEXT_SAMPLING if (value := getattr(args, name)) is not None}
    options["stop"] = tuple(args.stop)
    return options


def parse_search(args: argparse.Namespace) -> "Beam | Sampling":
    """The search that the flags ask for.

    Raises:
        UserError: for values out of range, or flags that do not go together.
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
                raise UserError(f"{_flags(sampling)} {'is' if len(sampling) == 1 else 'are'} for --sample; add it")
            return Beam(**beam)
        if beam:
            raise UserError(f"--sample draws one translation; leave {_flags(f for f in BEAM if f in flags)} out")
        return Sampling(**sampling, max_new_tokens=limits.NEW_TOKENS)  # the source's length and the model set the limit
    except ValueError as error:
        raise UserError(str(error).replace("size=", "--beam ")) from None


def describe_search(search: "Beam | Sampling") -> str:
    """The search in words."""
    from tercet.generation import Beam

    if isinstance(search, Beam):
        return search.name
    filters = {"top_k": search.top_k, "top_p": search.top_p, "min_p": search.min_p}
    filter_values = [f"{name.replace('_', '-')} {value:g}" for name, value in filters.items() if value is not None]
    return ", ".join(["sample", f"temperature {search.temperature:g}", *filter_values, f"seed {search.seed}"])


def _flags(names: Iterable[str]) -> str:
    return " and ".join("--" + name.replace("_", "-") for name in names)

"""Flags of `tercet evaluate` that apply to some tasks."""

from tercet.cli.decoding import Add, add_beam
from tercet.cli.parser import out_path, parse_number
from tercet.cli.texts import add_batches
from tercet.spec import Rows, Seed, ShareAboveZero


def add_masked(add: Add) -> None:
    """Add the flags of masked language models."""
    add(
        "--mask-rate",
        metavar="P",
        type=parse_number(ShareAboveZero),
        help="fraction of tokens to mask (default: 0.15)",
    )
    add(
        "--mask-seed",
        metavar="N",
        type=parse_number(Seed),
        help="random seed of the masks (default: 0)",
    )
    add(
        "--pseudo-perplexity",
        metavar="N",
        type=parse_number(Rows),
        help="also compute the pseudo-perplexity of N texts, with one token masked at a time (slow)",
    )
    add(
        "--within-word", action="store_true", default=None,
        help="with --pseudo-perplexity or --per-line, also mask the later tokens of the same word",
    )  # fmt: skip


def add_metric(add: Add) -> None:
    """Add the flag of metrics of other packages."""
    add(
        "--metric", metavar="MODULE:CLASS", action="append", default=[],
        help="also report a metric of your own package, except for models of vectors and chat; with settings: "
        "'{kind: \"my_package.fbeta:FBeta\", beta: 2}'; can be repeated",
    )  # fmt: skip


def add_pairs(add: Add) -> None:
    """Add the flags of translators."""
    add("--source", metavar="FILE", help="source sentences; or a .tsv, .csv, .jsonl or named dataset of pairs")
    add("--target", metavar="FILE", help="reference translations of --source, line by line")
    add(
        "--part",
        choices=("validation", "test"),
        help="part of the data to score (default: test for a named dataset, validation for other training data)",
    )
    add_beam(add)
    add(
        "--protocol",
        choices=("detokenized", "lc-tok"),
        help="preparation of the texts for BLEU and chrF: none (detokenized, the default), or lower case and tokens of "
        "the Moses tokenizer (lc-tok)",
    )
    add("--language", metavar="CODE", help="target language, such as de, if the data does not specify it")
    add("--output", metavar="FILE", type=out_path, help="file for the translations, line by line")
    add_batches(add)

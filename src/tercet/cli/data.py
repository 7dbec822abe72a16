"""`tercet data`: the named datasets, or what is in a source of one's own."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tercet.cli.parser import Verbs

if TYPE_CHECKING:
    from tercet.data import DataSpec, PairsSpec

SHOWN = 3  # first lines


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "data",
        help="list the named datasets, or look into a source",
        description="List the named datasets, or count what is in a source as training would read it.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="a name; a text, JSONL or Parquet file or folder; or a .tsv file of pairs",
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the translations of the lines in SOURCE")
    parser.add_argument("--encoding", metavar="NAME", default="utf-8", help="of text files (default: utf-8)")
    parser.add_argument("--text-field", metavar="NAME", default="text", help="in JSONL and Parquet (default: text)")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.data import DATASETS, PAIR_DATASETS, DataSpec, PairsSpec

    if args.source is None:
        both = {**DATASETS, **PAIR_DATASETS}
        width = max(map(len, both))
        for name, dataset in sorted(both.items()):
            print(f"{name:<{width}}  {dataset.description} ({dataset.origin})")
        return 0
    pairs = args.target is not None or args.source in PAIR_DATASETS or args.source.endswith((".tsv", ".tsv.gz"))
    try:
        if pairs:
            return _pairs(PairsSpec(source=args.source, target=args.target, encoding=args.encoding))
        return _text(DataSpec(source=args.source, encoding=args.encoding, text_field=args.text_field))
    except ValueError as error:
        raise UserError(f"--encoding: {error}") from None


def _text(spec: "DataSpec") -> int:
    from tercet.data.datasets import find

    documents = n_bytes = characters = 0
    start = ""
    for piece in find(spec.source, encoding=spec.encoding, text_field=spec.text_field).pieces():
        documents += piece.last
        n_bytes += len(piece.text.encode())
        characters += len(piece.text)
        if len(start) < 1000:
            start += piece.text + "\n" * piece.last
    print(f"documents   {documents:,}\nbytes       {n_bytes:,} (UTF-8)\ncharacters  {characters:,}\nbegins with")
    _show([line for line in start.splitlines() if line.strip()][:SHOWN])
    return 0


def _pairs(spec: "PairsSpec") -> int:
    from tercet.data import PAIR_DATASETS
    from tercet.data.pair_datasets import find_pairs, languages

    named = spec.target is None and spec.source in PAIR_DATASETS
    begins = list[str]()
    for part in ("train", "validation", "test") if named else ("train",):
        n_pairs = empty = 0
        characters = [0, 0]
        for pair in find_pairs(spec, part).pairs():
            if not all(pair):
                empty += 1
                continue
            n_pairs += 1
            characters = [total + len(side) for total, side in zip(characters, pair, strict=True)]
            if len(begins) < 2 * SHOWN:
                begins += pair
        facts = [f"{n_pairs:,}", f"{characters[0]:,} characters of source and {characters[1]:,} of target"]
        name = f"{part} pairs" if named else "pairs"
        print(f"{name:<16}  {'; '.join(facts)}" + (f"; {empty:,} more with an empty side" if empty else ""))
    if named:
        known = ", ".join(PAIR_DATASETS[spec.source].languages)
        source, target = languages(spec)
        print(f"{'languages':<16}  {known}; from {source} to {target} unless data.source_language says otherwise")
    print("begins with")
    _show(begins)
    return 0


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"  {line[:100]}{'...' if len(line) > 100 else ''}")

"""`tercet data`: the named datasets, or what is in a source of one's own."""

import argparse

from tercet.cli.parser import Verbs

SHOWN = 3  # first lines


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "data",
        help="list the named datasets, or look into a source",
        description="List the named datasets, or count what is in a source as training would read it.",
    )
    parser.add_argument(
        "source", metavar="SOURCE", nargs="?", help="a name, or a text, JSONL or Parquet file or folder"
    )
    parser.add_argument("--encoding", metavar="NAME", default="utf-8", help="of text files (default: utf-8)")
    parser.add_argument("--text-field", metavar="NAME", default="text", help="in JSONL and Parquet (default: text)")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.data import DATASETS, DataSpec
    from tercet.data.datasets import find

    if args.source is None:
        width = max(map(len, DATASETS))
        for name, dataset in sorted(DATASETS.items()):
            print(f"{name:<{width}}  {dataset.description} ({dataset.origin})")
        return 0
    try:
        spec = DataSpec(source=args.source, encoding=args.encoding, text_field=args.text_field)
    except ValueError as error:
        raise UserError(f"--encoding: {error}") from None
    documents = n_bytes = characters = 0
    start = ""
    for piece in find(spec.source, encoding=spec.encoding, text_field=spec.text_field).pieces():
        documents += piece.last
        n_bytes += len(piece.text.encode())
        characters += len(piece.text)
        if len(start) < 1000:
            start += piece.text + "\n" * piece.last
    print(f"documents   {documents:,}\nbytes       {n_bytes:,} (UTF-8)\ncharacters  {characters:,}\nbegins with")
    for line in [line for line in start.splitlines() if line.strip()][:SHOWN]:
        print(f"  {line[:100]}{'...' if len(line) > 100 else ''}")
    return 0

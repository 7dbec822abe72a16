"""`tercet convert`: a model's folder as another kind of folder."""

import argparse

from tercet.cli.parser import Verbs


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "convert",
        help="bring a model of the transformers library here, or take one there",
        description="Write the model in SRC as another folder, whose path is printed. SRC may be a run, one of our "
        "model folders, or a GPT-2, Llama, BERT or Marian as the transformers library keeps it; it is recognised by "
        "itself. A model that has no equal there is refused, by the first setting that is in the way.",
        epilog="Example: tercet convert runs/mine mine-for-transformers --to hf",
    )
    parser.add_argument("src", metavar="SRC", help="the folder of a run or of a model")
    parser.add_argument("dst", metavar="DST", help="the folder to write: not there yet, or empty")
    parser.add_argument(
        "--to", metavar="KIND", help="hf: a folder that AutoModel and AutoTokenizer open (default: one of ours)"
    )
    parser.add_argument("--force", action="store_true", help="write over the model in DST")


def run(args: argparse.Namespace) -> int:
    from tercet.checkpoint import convert

    print(convert(args.src, args.dst, args.to, force=args.force))
    return 0

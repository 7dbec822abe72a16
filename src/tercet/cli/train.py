"""`tercet train`: a recipe and a folder to put the run in."""

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path

from tercet.cli.parser import Verbs

NEXT = ("generate", "evaluate", "inspect")


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "train",
        help="train a model as a recipe says",
        description="Train a model as a recipe says. The same command again resumes a run that was stopped.",
        epilog="Example: tercet train demo --data my_texts/ --out runs/mine --set training.max_steps=500",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name that `tercet recipes` lists, or the path of a .yaml")
    parser.add_argument("--data", metavar="PATH", help="train on this file, folder or named dataset (data.source)")
    parser.add_argument("--encoding", metavar="NAME", help="of text files, such as latin-1 (data.encoding)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="the run's folder (default: runs/<recipe>)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="change a key of the recipe; may be repeated"
    )
    parser.add_argument("--print-config", action="store_true", help="print the whole recipe and train nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    from tercet.config import assignment, merge, write_yaml

    changes = {}
    if args.data is not None:
        changes = merge(changes, {"data": {"source": args.data}})
    if args.encoding is not None:
        changes = merge(changes, {"data": {"encoding": args.encoding}})
    for text in args.set:
        changes = merge(changes, assignment(text))

    from tercet.api import default_folder
    from tercet.training import Interrupted, load_recipe, train

    recipe = load_recipe(args.recipe, changes)
    if args.print_config:
        print(write_yaml(recipe), end="")
        return 0
    out = args.out or default_folder(args.recipe)
    try:
        folder = train(recipe, out, quiet=args.quiet)
    except Interrupted as error:
        print(f"tercet: stopped by {signal.Signals(error.signal).name}: {error}", file=sys.stderr)
        return 128 + error.signal
    print(summary(folder))
    return 0


def summary(folder: Path) -> str:
    """Where the run is, how good its best model is, and what to do with it."""
    metrics = json.loads((folder / "best" / "card.json").read_text(encoding="utf-8"))["metrics"]
    loss = metrics.get("val/loss")
    best = "" if loss is None else f"; best validation loss {loss:.4f} nats per token"
    name = shlex.quote(str(folder))
    lines = [f"The run is in {name}{best}.", "Next:", *(f"  tercet {verb} {name}" for verb in NEXT)]
    return "\n".join(lines)

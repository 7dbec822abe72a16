"""`tercet sweep`: search settings of a recipe, and confirm the best ones with new seeds."""

import argparse
import json
import signal
from pathlib import Path

from tercet.cli.device import add_device, select_device
from tercet.cli.parser import Verbs, out_path, parse_number
from tercet.cli.show import show
from tercet.messages import print_note
from tercet.spec import Hours


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "sweep",
        help=summary,
        description="Search settings of a recipe. All trials are trained for a ninth of their steps, the best third of "
        "them to a third, and the best of those to the end. The best trial and the recipe's own settings are then "
        "trained with new seeds, and compared by a paired t-test. To resume a sweep that was stopped, repeat the "
        "command.",
        epilog="Example: tercet sweep nanogpt-cpu --vary training.optimizer.lr=0.002..0.2 "
        "--vary model.stack.n_layers=2,4,6 --trials 18",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="recipe: a name, or the path of a YAML file")
    parser.add_argument(
        "--vary", metavar="KEY=SPACE", action="append", default=[],
        help="a key of the recipe and its values, as a list a,b,c (each YAML) or a range low..high, which is "
        "logarithmic if high is at least 10 times low, or as log:low..high; can be repeated",
    )  # fmt: skip
    parser.add_argument("--trials", metavar="N", type=int, help="number of trials (default: 20)")
    parser.add_argument(
        "--hours", metavar="H", type=parse_number(Hours),
        help="try as many settings as search and confirmation allow in this time, instead of --trials",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", metavar="N", default="3",
        help="new seeds of the confirmation: their number, or a list such as 7,8,9 (default: 3)",
    )  # fmt: skip
    parser.add_argument(
        "--sampler", choices=("tpe", "random", "grid"), default="tpe",
        help="proposals: tpe learns from the trials so far (Optuna), random draws them, grid tries all combinations of "
        "lists (default: tpe)",
    )  # fmt: skip
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="override a key of the recipe in all trials; can be repeated",
    )  # fmt: skip
    parser.add_argument("--data", metavar="PATH", help="file, folder or named dataset to train on (data.source)")
    parser.add_argument(
        "--sealed", metavar="DIR", type=Path,
        help="also score the runs of the confirmation on this sealed test part (`tercet data seal`), in one call",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", type=out_path, help="folder for all runs and the result (default: swept/<recipe>)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    parser.add_argument("--quiet", action="store_true", help="print no progress to stderr")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.cli.compare import read_changes
    from tercet.training.sweep.grid import read_seeds
    from tercet.training.sweep.plan_search import plan_search
    from tercet.training.sweep.space import read_key

    seeds = read_seeds(args.seeds)
    search = plan_search(
        args.recipe, [read_key(text) for text in args.vary], trials=args.trials, hours=args.hours,
        seeds=len(seeds) if args.seeds.strip().isdigit() else seeds, sampler=args.sampler,
        changes=read_changes(args), out=args.out, sealed=args.sealed,
    )  # fmt: skip
    device = select_device(args.device)  # imports torch

    from tercet.training.run.finish import Interrupted
    from tercet.training.sweep.search_runs import run_search

    try:
        result = run_search(search, device=device, quiet=args.quiet)
    except Interrupted as error:
        print_note(f"tercet: stopped by {signal.Signals(error.signal).name}: {error}")
        return 128 + error.signal
    if args.json:
        print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(result.view())
        print(f"\n{result.command}")
    return 0

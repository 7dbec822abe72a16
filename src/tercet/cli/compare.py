"""`tercet compare`: train variants on the same data and compare them in a table and a plot."""

import argparse
import json
import signal
from typing import Any

from tercet.cli.device import add_device, select_device
from tercet.cli.parser import Verbs, out_path
from tercet.cli.show import show
from tercet.messages import print_note


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "compare",
        help=summary,
        description="Train variants of recipes on the same data with the same seeds, and compare them with each other "
        "and with finished runs. With --folds, cross-validate one recipe or several. To resume a comparison that was "
        "stopped, repeat the command. --device selects the device for scoring; the key training.accelerator selects "
        "the device for training.",
        epilog="Example: tercet compare nanogpt-cpu --vary model.stack.placement=pre,post,sandwich "
        "--vary model.stack.position=learned,rotary,alibi --seeds 1,2,3 --set training.max_steps=200",
    )
    parser.add_argument("names", metavar="RECIPE|RUN", nargs="+", help="recipes, and folders of finished runs")
    parser.add_argument(
        "--vary",
        metavar="KEY=V,V",
        action="append",
        default=[],
        help="a key of the recipes and its values, each as YAML; can be repeated to train all combinations",
    )
    parser.add_argument(
        "--seeds", metavar="N,N",
        help="seeds of each variant: a list such as 0,7, or N for the seeds 1 to N (default: that of the first recipe)",
    )  # fmt: skip
    parser.add_argument(
        "--folds", metavar="N", type=int,
        help="cross-validation: divide the data into N folds, and train each variant once per fold, on the others; "
        "data.group_field keeps groups together",
    )  # fmt: skip
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a key of all recipes; can be repeated"
    )
    parser.add_argument("--data", metavar="PATH", help="file, folder or named dataset to train on (data.source)")
    parser.add_argument(
        "--out", metavar="DIR", type=out_path, help="folder for runs, table and plot (default: compared/<names>)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--quiet", action="store_true", help="print no progress to stderr")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    changes = read_changes(args)

    from tercet.training.sweep.grid import VariedKey, read_seeds
    from tercet.training.sweep.sweep import default_comparison_folder, plan_sweep

    varied_keys = [VariedKey.read(text) for text in args.vary]
    seeds = None if args.seeds is None else read_seeds(args.seeds)
    out = args.out or default_comparison_folder(args.names)
    sweep = plan_sweep(args.names, varied_keys=varied_keys, seeds=seeds, folds=args.folds, changes=changes, out=out)
    device = select_device(args.device)  # imports torch

    from tercet.training.run.finish import Interrupted
    from tercet.training.sweep.compare_runs import PICTURE, compare_sweep

    try:
        comparison = compare_sweep(sweep, device=device, quiet=args.quiet)
    except Interrupted as error:
        print_note(f"tercet: stopped by {signal.Signals(error.signal).name}: {error}")
        return 128 + error.signal
    if args.json:
        print(json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(comparison.view())
        print(f"\n{out / PICTURE}" if (out / PICTURE).exists() else "")
    return 0


def read_changes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the changes to a recipe by --set and --data, as nested mappings.

    Raises:
        UserError: If an assignment is invalid, or both flags set the data.
    """
    from tercet.config import UserError, merge, nest
    from tercet.data.sources.custom_dataset import plain_source
    from tercet.settings_yaml import merge_assignments

    changes = {} if args.data is None else nest("data.source", plain_source(args.data))
    changes = merge_assignments(changes, args.set)
    if args.data is not None and changes != merge(changes, nest("data.source", plain_source(args.data))):
        raise UserError("data.source is set by both --set and --data; pass one of them")
    return changes

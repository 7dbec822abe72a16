"""`tercet plan`: what a recipe needs on a cluster, before anything is trained: memory, steps, time, cost."""

import argparse
import json

from tercet.cli.parser import Verbs
from tercet.cli.texts import GIVEN, add_reading, recipe_changes


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "plan",
        help=summary,
        description="Say what a recipe needs before anything is trained: parameters, FLOPs, the memory of each device "
        "and the largest micro-batch that fits, steps and tokens, and, where a speed is given, time and cost.",
        epilog="Examples: tercet plan gpt2-124m --gpus 8xH100 --mfu 0.4 --price 2.5; "
        "tercet plan gpt2-124m --gpus 4x48GiB@150TFLOPS --mfu 0.3; tercet plan demo --here",
    )
    parser.add_argument("recipe", metavar="RECIPE|RUN|DATA", help="as in tercet train")
    parser.add_argument(
        "--gpus",
        metavar="CLUSTER",
        help="8xH100, 2x8xH100 for two nodes, or memory and speed as 4x48GiB@150TFLOPS, in place of training.devices",
    )
    parser.add_argument(
        "--mfu", metavar="SHARE", type=float, help="assume this share of the peak, such as 0.4 (FLOPs of the model)"
    )
    parser.add_argument("--measured", metavar="RUN", help="take the speed of this run, from its metrics.csv")
    parser.add_argument("--here", action="store_true", help="measure the speed of this machine on the recipe itself")
    parser.add_argument("--price", metavar="DOLLARS", type=float, help="of a GPU for an hour: say what the run costs")
    parser.add_argument("--data", metavar="PATH", help="as in tercet train (data.source)")
    parser.add_argument("--source", metavar="FILE", help="as in tercet train, of a translator")
    parser.add_argument("--target", metavar="FILE", help="and their translations")
    parser.add_argument("--validation-source", metavar="FILE", help="as in tercet train")
    parser.add_argument("--validation-target", metavar="FILE", help="and their translations")
    parser.add_argument("--pretrained", metavar="RUN", help="as in tercet train: whose sizes are taken")
    add_reading(parser.add_argument)
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="change a key of the recipe; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.training.planning.plan_recipe import plan_recipe
    from tercet.training.request import RunRequest

    plan = plan_recipe(
        RunRequest(recipe=args.recipe, changes=recipe_changes(args), **{name: getattr(args, name) for name in GIVEN}),
        gpus=args.gpus, mfu=args.mfu, measured=args.measured, here=args.here, price=args.price, progress=True,
    )  # fmt: skip

    from tercet.training.planning import plan_to_dict, render_plan

    if args.json:
        print(json.dumps(plan_to_dict(plan), indent=2, ensure_ascii=False))
        return 0

    from tercet.cli.show import show

    show(render_plan(plan))
    return 0

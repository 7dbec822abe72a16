"""`tercet train --plan`: the memory, steps, time and cost of a run on a cluster, before anything is trained."""

import argparse
import json
from typing import TYPE_CHECKING

from tercet.cli.parser import passed_flags

if TYPE_CHECKING:
    from tercet.training.request import RunRequest

FLAGS = ("gpus", "mfu", "measured", "here", "price", "json")
TRAINING = ("out", "more", "until", "restart", "from_weights", "exact", "page", "report", "print_config", "try_out")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add a group with its flags."""
    plan = parser.add_argument_group("plan")
    plan.add_argument(
        "--plan", action="store_true",
        help="print what the run will need, and train nothing: parameters, FLOPs, the memory of each device and the "
        "largest micro-batch that fits, steps and tokens, and, if a speed is given, time and cost",
    )  # fmt: skip
    plan.add_argument(
        "--gpus", metavar="CLUSTER",
        help="8xH100, 2x8xH100 for two nodes, or memory and speed as 4x48GiB@150TFLOPS, in place of training.devices",
    )  # fmt: skip
    plan.add_argument(
        "--mfu", metavar="SHARE", type=float, help="assume this share of the peak, such as 0.4 (FLOPs of the model)"
    )
    plan.add_argument("--measured", metavar="RUN", help="take the speed of this run, from its metrics.csv")
    plan.add_argument("--here", action="store_true", help="measure the speed of this machine on the recipe itself")
    plan.add_argument("--price", metavar="DOLLARS", type=float, help="of a GPU for an hour: print what the run costs")
    plan.add_argument("--json", action="store_true", help="print the plan as one JSON object")


def check_plan(args: argparse.Namespace) -> None:
    """Raises UserError if flags of a plan and flags of a training do not go together."""
    from tercet.config import UserError

    if args.plan and (flags := passed_flags(args, TRAINING)):
        raise UserError(f"--plan trains nothing; leave {flags[0]} out")
    if not args.plan and (flags := passed_flags(args, FLAGS)):
        raise UserError(f"{flags[0]} requires --plan; add it")


def print_plan(args: argparse.Namespace, request: "RunRequest") -> int:
    """Print the plan of the requested run."""
    from tercet.training.planning.plan_recipe import plan_recipe

    plan = plan_recipe(
        request, gpus=args.gpus, mfu=args.mfu, measured=args.measured, here=args.here, price=args.price,
        progress=not args.quiet,
    )  # fmt: skip

    if args.json:
        print(json.dumps(plan.to_dict(), indent=2, ensure_ascii=False))
        return 0

    from tercet.cli.show import show

    show(plan.view())
    return 0

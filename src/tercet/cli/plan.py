"""`tercet train --plan`: memory, steps, time and cost of a run on a cluster, before training."""

import argparse
import json
from typing import TYPE_CHECKING

from tercet.cli.parser import passed_flags

if TYPE_CHECKING:
    from tercet.training.request import RunRequest

FLAGS = ("gpus", "mfu", "measured", "here", "price")
TRAINING = ("out", "more", "until", "restart", "from_weights", "exact", "page", "report", "print_config", "try_out")

AFTER_TRAINING = ("report", "try_out")  # flags without an effect on the pilot runs of --hours


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the flag --plan and the flags that require it."""
    plan = parser.add_argument_group("plan")
    plan.add_argument(
        "--plan", action="store_true",
        help="print the resources that the run needs, without training: parameters, FLOPs, memory per device, the "
        "largest micro-batch that fits, steps and tokens, and, if a speed is known, time and cost",
    )  # fmt: skip
    plan.add_argument(
        "--gpus", metavar="CLUSTER",
        help="devices to plan for, instead of training.devices: 8xH100, 2x8xH100 for two nodes, or 4x48GiB@150TFLOPS",
    )  # fmt: skip
    plan.add_argument(
        "--mfu", metavar="SHARE", type=float, help="assumed model FLOPs utilization, such as 0.4; requires --gpus"
    )
    plan.add_argument("--measured", metavar="RUN", help="assume the speed of this run, from its metrics.csv")
    plan.add_argument(
        "--here", action="store_true", help="measure the speed of this machine with some steps of the recipe"
    )
    plan.add_argument(
        "--price",
        metavar="DOLLARS",
        type=float,
        help="price of one GPU per hour, to print the cost; requires --mfu, --measured or --here",
    )
    plan.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: the result of the training, or with --plan the plan",
    )


def check_plan(args: argparse.Namespace) -> None:
    """Check the flags of a plan.

    Raises:
        UserError: If --plan is combined with a flag that only affects training, or a flag of a plan is passed without
            --plan.
    """
    from tercet.config import UserError

    if args.plan and (flags := passed_flags(args, TRAINING if args.hours is None else AFTER_TRAINING)):
        raise UserError(f"{flags[0]} has no effect with --plan, which does not train; leave it out")
    if not args.plan and (flags := passed_flags(args, FLAGS)):
        devices = ", or pass --devices N to train on N GPUs" if flags[0] == "--gpus" else ""
        raise UserError(f"{flags[0]} requires --plan; add it{devices}")


def print_plan(args: argparse.Namespace, request: "RunRequest") -> int:
    """Print the resources that the requested run needs, as tables or JSON, and return the exit code 0."""
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

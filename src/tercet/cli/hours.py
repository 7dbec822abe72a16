"""`tercet train --hours`: train within a number of hours, with a size that is chosen by pilot runs."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.cli.parser import parse_number, passed_flags
from tercet.config import UserError
from tercet.spec import Hours

if TYPE_CHECKING:
    from tercet.training.request import RunRequest

EXCLUDED = ("more", "until", "from_weights", "exact", "page", "print_config", "devices", "nodes", "here", "price")


def add_hours(parser: argparse.ArgumentParser) -> None:
    """Add the flag --hours."""
    parser.add_argument(
        "--hours", metavar="H", type=parse_number(Hours),
        help="choose the size of the model and its settings for this duration: short pilot runs, a forecast of the "
        "validation loss that is registered in the run folder, and a run that ends in time; with --plan, only the "
        "forecast. Requires data, or a recipe with model.size such as gpt",
    )  # fmt: skip


def check_hours(args: argparse.Namespace) -> None:
    """Check the flags of a run with --hours.

    Raises:
        UserError: If --hours is combined with a flag that it does not support.
    """
    if args.hours is not None and (flags := passed_flags(args, EXCLUDED)):
        raise UserError(f"{flags[0]} and --hours exclude each other; leave out one of them")


def print_forecast(args: argparse.Namespace, request: "RunRequest") -> int:
    """Train the pilot runs, print the forecast, and return the exit code 0."""
    from tercet.training.budget.plan_hours import plan_hours

    forecast = plan_hours(
        request, args.hours, gpus=args.gpus, mfu=args.mfu, measured=args.measured, restart=args.restart
    )
    if args.json:
        print(json.dumps(forecast.to_dict(), indent=2, ensure_ascii=False))
        return 0

    from tercet.cli.show import show

    show(forecast.view())
    return 0


def describe_outcome(folder: Path) -> str | None:
    """Return the forecast of a run and its outcome in one sentence; None if the run has no forecast or no loss."""
    from tercet.checkpoint import read_card
    from tercet.checkpoint.forecast import read_forecast

    forecast, metrics = read_forecast(folder), read_card(folder).metrics
    if forecast is None or "val/loss" not in metrics:
        return None
    return forecast.describe_outcome(metrics["val/loss"])

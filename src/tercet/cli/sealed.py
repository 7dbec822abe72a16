"""`tercet evaluate --sealed`: score models on a sealed test part, in a call that is recorded."""

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any

from tercet.cli.device import select_device
from tercet.cli.parser import passed_flags
from tercet.cli.show import show
from tercet.messages import print_note


def add_sealed(add: Callable[..., Any]) -> None:
    """Add the argument for further models, and the flag `--sealed`."""
    add("runs", metavar="RUN", nargs="*", help="with --sealed, further models of the same call")
    add(
        "--sealed",
        metavar="DIR",
        help="score all models on the test part that `tercet data seal` has written to this folder, in one of a "
        "limited number of calls; several models are compared with the first one",
    )


def check_single_run(args: argparse.Namespace) -> None:
    """Reject several models without --sealed."""
    if args.runs:
        from tercet.config import UserError

        raise UserError(
            f"{args.runs[0]}: several models require --sealed DIR; to compare two models on other data, pass "
            f"--compare {args.runs[0]}"
        )


def run_sealed(args: argparse.Namespace, other_flags: Iterable[str]) -> int:
    """Score the models, print the result, and return the exit code 0.

    Args:
        args: Parsed command line.
        other_flags: Flags that do not apply, as attributes of `args`.

    Raises:
        UserError: If another flag was passed, or `evaluate_sealed` raises it.
    """
    from tercet.config import UserError

    if flags := passed_flags(args, other_flags):
        raise UserError(f"{flags[0]} does not apply to --sealed, whose data and settings are fixed; leave it out")
    runs = [args.run, *args.runs]
    device = select_device(args.device, models=runs)

    from tercet.evaluate.sealed.evaluate_sealed import evaluate_sealed

    result = evaluate_sealed(runs, args.sealed, device=device)
    for model in result.models:
        for note in model.facts.notes:
            print_note(f"tercet: {note}")
    if args.json:
        print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(result.view())
    return 0

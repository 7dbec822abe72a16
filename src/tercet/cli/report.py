"""`tercet report`: a training as one page, to keep and to give to others."""

import argparse
from pathlib import Path

from tercet.cli.device import add_device, pick
from tercet.cli.parser import Verbs, out_path


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "report",
        help=summary,
        description="Write what a training was and what became of it as one HTML file: model, data, recipe, "
        "curves, scores, samples, attention, and what it cost. It opens without a network, runs no script and names "
        "no folder of this machine. A run that still trains, or a model without a run, is said to be one.",
        epilog="Example: tercet report runs/mine --out mine.html",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    parser.add_argument(
        "-o", "--out", metavar="PAGE.html", type=out_path,
        help="write the page here (default: report.html in RUN); one that is there is written anew",
    )  # fmt: skip
    parser.add_argument(
        "--evaluate", action="store_true", help="score the model as `tercet evaluate` does, beside baselines"
    )
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.web.page_files import check_page

    if args.out is not None:
        check_page(args.out, "--out")
    device = pick(args.device, models=[] if _is_run(args.run) else [args.run])

    from tercet.reports.write import write_report

    print(write_report(Path(args.run), args.out, evaluate=args.evaluate, device=device))
    return 0


def _is_run(path: str) -> bool:
    """Whether it is a run, which may have no model yet; looked at before torch is imported."""
    from tercet.dashboard.watch import is_run

    return is_run(Path(path))

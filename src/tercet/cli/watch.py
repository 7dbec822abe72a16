"""`tercet watch`: show runs on a dashboard or as text, or write the report of a run as one HTML file."""

import argparse
from pathlib import Path

from tercet.cli.device import add_device, select_device
from tercet.cli.parser import Verbs, out_path, passed_flags


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "watch",
        help=summary,
        description="Show losses, speed, samples and recipe differences of running or finished runs on a page that "
        "only this machine can open. The run folders may be on a mounted disk. With --export, write a report of one "
        "run as one HTML file: model, data, recipe, curves, scores, samples, attention and cost. The file opens "
        "offline, and contains neither scripts nor paths of this machine.",
        epilog="Examples: tercet watch runs/mine --open; tercet watch runs/a runs/b; tercet watch runs/mine --text; "
        "tercet watch runs/mine --export mine.html",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run folders; with --export, the folder of one run or model"
    )
    parser.add_argument(
        "--port", metavar="N", type=int, help="port, or the next free one (default: 8766; 0: any free port)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--text", action="store_true", help="print the progress and losses of each run instead of serving a page"
    )
    parser.add_argument(
        "--export",
        metavar="PAGE.html",
        type=out_path,
        help="write the report of a run to this file instead of serving a page",
    )
    parser.add_argument("--evaluate", action="store_true", help="include the scores of `tercet evaluate` in the report")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    if args.text and args.export is not None:
        raise UserError("--text and --export exclude each other; pass one of them")
    if (args.text or args.export is not None) and (flags := passed_flags(args, ("port", "open"))):
        raise UserError(f"{flags[0]} applies to a served page; leave it out")
    if args.export is None and args.evaluate:
        raise UserError("--evaluate requires --export PAGE.html; add it")
    if args.export is not None:
        return _export(args)
    return _print(args) if args.text else _serve(args)


def _serve(args: argparse.Namespace) -> int:
    from tercet.dashboard.watch import FIRST_PORT, watch

    watch(*args.runs, port=FIRST_PORT if args.port is None else args.port, open=args.open)
    return 0


def _print(args: argparse.Namespace) -> int:
    from tercet.checkpoint.find_run import find_run_folder
    from tercet.dashboard.text_view import describe_run
    from tercet.dashboard.watch import check_runs

    folders = [find_run_folder(run) for run in args.runs]
    check_runs(folders)
    for folder in folders:
        print(describe_run(folder))
    return 0


def _export(args: argparse.Namespace) -> int:
    from tercet.checkpoint.find_run import is_run
    from tercet.config import UserError
    from tercet.storage import check_output_file

    if len(args.runs) > 1:
        raise UserError(f"--export writes the report of one run; leave {args.runs[1]} out")
    run = Path(args.runs[0])
    check_output_file(args.export, "--export", example="page.html")
    device = select_device(
        args.device, models=[] if is_run(run) else [run]
    )  # a run that has not saved a model yet has a report too

    from tercet.reports.write import write_report

    print(write_report(run, args.export, evaluate=args.evaluate, device=device))
    return 0

"""`tercet watch`: how runs train, on a page, or as a few lines on the terminal."""

import argparse

from tercet.cli.parser import Verbs


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "watch",
        help=summary,
        description="See how runs train, or have trained: losses, speed, samples and what differs between their "
        "recipes, on a page of this machine alone. It reads the runs' folders, which may be on a mounted disk.",
        epilog="Examples: tercet watch runs/mine --open; tercet watch runs/a runs/b; tercet watch runs/mine --text",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the folders of runs")
    parser.add_argument("--port", metavar="N", type=int, help="or the next free one (default: 8766; 0 takes any)")
    parser.add_argument("--text", action="store_true", help="print how far each is and its losses, and serve nothing")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.dashboard.watch import FIRST_PORT, check_runs, find_run_folder, watch

    if args.text:
        if args.open or args.port is not None:
            raise UserError("--text serves no page: leave --port and --open out")
        from tercet.dashboard.text_view import describe_run

        folders = [find_run_folder(run) for run in args.runs]
        check_runs(folders)
        for folder in folders:
            print(describe_run(folder))
        return 0
    watch(*args.runs, port=FIRST_PORT if args.port is None else args.port, open=args.open)
    return 0

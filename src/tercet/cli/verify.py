"""`tercet verify`: whether a folder's files are what was written."""

import argparse
import json
from dataclasses import asdict

from tercet.cli.parser import Verbs


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "verify",
        help=summary,
        description="Compare every file of a run's or a model's folder with the hash that was written with it: its "
        "models, its checkpoints, its figures. Exit code 1 where one is damaged.",
        epilog="Example: tercet verify runs/mine",
    )
    parser.add_argument("folder", metavar="FOLDER", help="of a run, or of a model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.checkpoint import verify

    found = verify(args.folder)
    if args.json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        for damage in found.damaged:
            print(damage)
        whole = f"{found.files:,} files, {found.bytes / 1e6:,.1f} MB"
        print(f"{whole}: {len(found.damaged)} damaged" if found.damaged else f"{whole}: all as they were written")
    return 1 if found.damaged else 0

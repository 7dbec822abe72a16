"""`tercet learn`: list the exercises on Transformers, write their sheets, and check a student's code."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tercet.cli.next_steps import quote_path
from tercet.cli.parser import Verbs, out_path, parse_number
from tercet.learn.check import TIMEOUT
from tercet.messages import print_note
from tercet.spec import Seconds


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "learn",
        help=summary,
        description="List the exercises of a course on Transformers. `tercet learn start N` writes the sheet of "
        "exercise N: a Python file with the task and without the answer. `tercet learn check N` checks the code in it. "
        "For their flags: `tercet learn start --help`, `tercet learn check --help`.",
        epilog="Example: tercet learn start 3, edit ex03_attention.py, then tercet learn check 3",
    )
    parser.add_argument("--json", action="store_true", help="print the list as one JSON object")
    start = parser.add_form(
        "start",
        "Write the sheets of exercises. A file that exists is not replaced.",
        epilog="Example: tercet learn start 1 2 3 --to course",
    )
    start.add_argument("numbers", metavar="N", nargs="+", type=int, help="numbers of the exercises")
    start.add_argument(
        "--to", metavar="FOLDER", type=out_path, default=Path("."), help="folder (default: the current folder)"
    )
    start.add_argument("--json", action="store_true", help="print one JSON object")
    check = parser.add_form(
        "check",
        "Check the code of an exercise: compare it with the parts of Tercet, and name common mistakes. The file is run "
        "with your rights in another process, so check only files that you trust.",
        epilog="Exit code: 0 if all checks pass, 1 if one fails, 2 if the file cannot be read or imported.",
    )
    check.add_argument("number", metavar="N", type=int, help="number of the exercise")
    check.add_argument(
        "file", metavar="FILE", nargs="?", help="file with the code, or its folder (default: the current folder)"
    )
    check.add_argument(
        "--timeout", metavar="SECONDS", type=parse_number(Seconds), default=TIMEOUT,
        help=f"time limit of all checks together in seconds (default: {TIMEOUT:g})",
    )  # fmt: skip
    check.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.form == "start":
        return _start(args)
    if args.form == "check":
        return _check(args)
    from tercet.learn import exercises

    if args.json:
        listed = [
            {"number": one.number, "title": one.title, "learned": one.learned, "file": one.sheet} for one in exercises()
        ]
        print(json.dumps({"exercises": listed}, indent=2, ensure_ascii=False))
        return 0
    width = max(len(one.title) for one in exercises())
    for one in exercises():
        print(f"{one.number:>2}  {one.title:<{width}}  {one.learned}")
    return 0


def _start(args: argparse.Namespace) -> int:
    from tercet.learn import write_sheet
    from tercet.learn.exercises import find_exercise

    numbers = list(dict.fromkeys(args.numbers))
    for number in numbers:  # before the first sheet is written
        find_exercise(number)
    paths = [write_sheet(number, args.to) for number in numbers]
    if args.json:
        print(json.dumps({"files": list(map(str, paths))}, indent=2, ensure_ascii=False))
        return 0
    for path in paths:
        print(path)
    folder = "" if args.to == Path(".") else f" {quote_path(args.to)}"
    print_note(f"Write your code, then check it: tercet learn check {numbers[0]}{folder}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from tercet.learn import check_solution

    result = check_solution(args.number, args.file, timeout=args.timeout)
    if args.json:
        print(json.dumps(asdict(result), indent=2, ensure_ascii=False))
        return 0 if result.passed else 1
    print(f"Exercise {result.exercise}: {result.title} ({result.file})")
    for check in result.checks:
        print(f"pass  {check.name}" if check.passed else f"FAIL  {check.name}: {check.problem}")
    passed = sum(check.passed for check in result.checks)
    print(f"{passed} of {len(result.checks)} checks passed")
    return 0 if result.passed else 1

"""`tercet check`: report faults of data and their effect on training, and write a repaired copy."""

import argparse
import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from tercet.cli.data_settings import add_data_settings, note_guessed_fields, read_data_settings
from tercet.cli.next_steps import quote_path
from tercet.cli.parser import Verbs, out_path
from tercet.cli.split_facts import add_split
from tercet.messages import counted, one_line, print_note, shorten

if TYPE_CHECKING:
    from tercet.data import DataCheck

WIDTH = 110  # maximum columns of a line
MIN_COMPRESSED = 10_000  # bytes; for less, the headers of xz are a part of its size
SINGULAR = {
    "documents": "document", "lists of ids": "list of ids", "pairs": "pair", "labeled texts": "labeled text",
    "conversations": "conversation",
}  # fmt: skip
CHANGES = {
    "mojibake": ("line decoded again", "lines decoded again"),
    "control_characters": ("control character removed", "control characters removed"),
    "line_ends": ("carriage return replaced or removed", "carriage returns replaced or removed"),
    "unicode_nfc": ("line normalized (NFC)", "lines normalized (NFC)"),
    "duplicates": ("duplicate left out", "duplicates left out"),
    "empty": ("empty item left out", "empty items left out"),
    "encoding": ("file converted to UTF-8 without a mark", "files converted to UTF-8 without a mark"),
}


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "check",
        help=summary,
        description="Report faults of data, their effect on training, and remedies: duplicates and near "
        "duplicates, validation texts that are also in training, wrong encodings, control characters, line ends, "
        "markup, repeated lines, and too little text. --fix writes a repaired copy. `tercet data look` reports the "
        "format, lengths, scripts and labels.",
        epilog="Examples: tercet check reviews.csv; tercet check my_texts/ --fix repaired/; "
        "tercet check train.txt --validation valid.txt --strict",
    )
    add_data_settings(parser.add_argument)
    parser.add_argument(
        "--validation", metavar="PATH", action="append", default=[],
        help="look for near duplicates of this validation part, instead of that which training would select; for "
        "sentences and translations in two files, pass it twice",
    )  # fmt: skip
    add_split(parser.add_argument)
    parser.add_argument(
        "--fix", metavar="OUT", type=out_path,
        help="write a repaired copy: repaired mojibake (requires tercet[check]), line feeds, NFC, no control "
        "characters, no empty items and no exact duplicates. OUT is a file, or for a folder and two files a folder",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="exit with code 1 if there is a problem, for use in CI")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Check the data, print the findings, and return 1 if --strict was passed and there is a problem, else 0.

    Raises:
        UserError: If the data cannot be read, the copy cannot be written, or flags do not fit together.
    """
    from tercet.config import UserError

    args.recipe = args.max_len = None  # flags of `tercet data look`
    if len(args.validation) > (2 if args.target else 1):
        raise UserError("--validation was passed too often; pass it once, or for two files of pairs twice")
    try:
        spec, _ = read_data_settings(args, args.source, args.target)
    except ValueError as error:
        raise UserError(f"--encoding: {error}" if "encoding" in str(error) else str(error)) from None
    note_guessed_fields(args, spec)

    from tercet.data import check_data  # after data that does not exist is rejected, since it imports more

    validation, validation_target = (*args.validation, None, None)[:2]
    check = check_data(
        spec,
        validation=validation,
        validation_target=validation_target,
        similarity=args.similarity,
        fix=args.fix,
    )
    if not check.has_ftfy:
        print_note("tercet: mojibake was not looked for; pip install 'tercet[check]'")
    print(json.dumps(asdict(check), ensure_ascii=False) if args.json else "\n".join(_report(check, args)))
    return 1 if args.strict and check.has_problem else 0


def _report(check: "DataCheck", args: argparse.Namespace) -> list[str]:
    """Return the lines to print."""
    lines = list[str]()
    for finding in check.findings:
        effect = f"{finding.effect[:1].upper()}{finding.effect[1:]}. Remedy: {finding.remedy}."
        for number, text in enumerate((f"{one_line(finding.found)}.", one_line(effect))):
            start = f"{finding.severity:<9}" if number == 0 else ""
            lines.append(textwrap.fill(text, WIDTH, initial_indent=f"{start:<9}", subsequent_indent=" " * 9))
    if any(finding.name == "repeated_lines" for finding in check.findings):
        lines += [
            "repeated lines",
            *(f"{line.count:>9,}  {shorten(one_line(line.text), 90)}" for line in check.repeated_lines),
        ]
    counts = ", ".join(
        counted(sum(finding.severity == severity for finding in check.findings), severity, f"{severity}s")
        for severity in ("problem", "note")
    )
    has_bits = check.bits_per_byte is not None and check.n_bytes >= MIN_COMPRESSED
    bits = f"; xz: {check.bits_per_byte:.2f} bits per byte" if has_bits else ""
    items = counted(check.count, SINGULAR[check.unit], check.unit)
    lines.append(f"{counts} in {items}, {counted(check.n_bytes, 'byte', 'bytes')} of text{bits}")
    if check.repaired is not None:
        changes = [counted(count, *CHANGES[name]) for name, count in check.repaired.changes.items() if count]
        lines.append(f"{check.repaired.output}: {'; '.join(changes) or 'equal to the original, nothing to repair'}")
    name = " ".join(quote_path(path) for path in (args.source, args.target) if path)
    lines.append(f"formats, lengths, scripts and labels: tercet data look {name}")
    if check.unit == "documents":
        lines.append(f"forecast of the loss before training: tercet train {name} --hours 1 --plan")
    return lines

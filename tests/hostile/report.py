"""Results of the attacks, collected line by line during the tests and printed as a table by `make hostile`.

    TERCET_HOSTILE_REPORT=build/hostile.jsonl pytest tests/hostile && python tests/hostile/report.py build/hostile.jsonl

Each attack is one line. Tests add lines with other facts, such as the result of a damage. Nothing is written unless
the variable is set.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

VARIABLE = "TERCET_HOSTILE_REPORT"
KILL_CODE = 137
HANGS = 2.0  # seconds: attacks that are killed earlier were meant to be
WORST = "WHTUrn."  # the worst verdict first; see `MEANINGS`
MEANINGS = {
    "n": "reported in one line with exit code 2",
    "r": "recovered: reported in one line, with the result of the undamaged files",
    ".": "harmless: same result as with the undamaged files",
    "U": "rejected without the name of the file",
    "T": "traceback, or an exit code other than 0 and 2",
    "H": "hangs, or uses up the memory",
    "W": "WRONG: different result without a message",
}


class _Measurement(Protocol):
    code: int
    seconds: float
    memory: int

    def has_traceback(self) -> bool: ...


def record(subject: str, outcome: _Measurement) -> None:
    """Record an attack under a subject, which is the name of the test file by convention."""
    note(
        subject=subject,
        code=outcome.code,
        traceback=outcome.has_traceback(),
        seconds=outcome.seconds,
        memory=outcome.memory,
    )


def count_inputs(*, taken: int = 0, refused: int = 0) -> None:
    """Count malformed inputs that were not separate commands: requests, or files that one child has read."""
    if subject := current_subject():
        note(subject=subject, taken=taken, refused=refused)


def note(**facts: Any) -> None:
    """Append a line of facts, also if several processes write."""
    if path := os.environ.get(VARIABLE):
        line = json.dumps(facts, ensure_ascii=False) + "\n"
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line)


def current_subject() -> str | None:
    """Return the file of the running test, or None outside of a test and during its setup."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    return Path(test.partition("::")[0]).name if test.endswith("(call)") else None


def attacks_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table with one row per subject.

    It counts commands in children and their results, with the longest time and the peak memory, and malformed inputs
    within them.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "code" in line:
            rows.setdefault(line["subject"], []).append(line)
    inputs: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "taken" in line:
            inputs.setdefault(line["subject"], []).append(line)
    table = [[
        "subject", "commands", "done", "refused", "killed", "tracebacks", "hangs", "slowest (s)", "memory (MiB)",
        "inputs within", "taken", "refused",
    ]]  # fmt: skip
    all_lines = [line for subject_lines in rows.values() for line in subject_lines]
    inputs["all"] = [line for subject_lines in inputs.values() for line in subject_lines]
    for subject in [*sorted({*rows, *inputs} - {"all"}), "all"]:
        subject_lines = all_lines if subject == "all" else rows.get(subject, [])
        n_taken, n_refused = (sum(line[word] for line in inputs.get(subject, [])) for word in ("taken", "refused"))
        if subject_lines or n_taken + n_refused:
            table.append([
                subject,
                f"{len(subject_lines):,}",
                *(f"{sum(line['code'] == code for line in subject_lines):,}" for code in (0, 2)),
                f"{sum(line['code'] == KILL_CODE and line['seconds'] < HANGS for line in subject_lines):,}",
                f"{sum(line['traceback'] for line in subject_lines):,}",
                f"{sum(line['code'] == KILL_CODE and line['seconds'] >= HANGS for line in subject_lines):,}",
                f"{max((line['seconds'] for line in subject_lines), default=0):.1f}",
                f"{max((line['memory'] for line in subject_lines), default=0) >> 20:,}",
                *(f"{number:,}" for number in (n_taken + n_refused, n_taken, n_refused)),
            ])  # fmt: skip
    return _markdown(table)


def damages_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table of the worst result of each kind of damage (columns) for each file (rows)."""
    cells: dict[str, dict[str, set[str]]] = {}
    kinds = sorted({line["kind"] for line in lines if "verdict" in line})
    for line in lines:
        if "verdict" in line:
            cells.setdefault(line["file"], {}).setdefault(line["kind"], set()).add(line["verdict"])
    if not cells:
        return ""
    table = [["file", *kinds]]
    for file, row in sorted(cells.items()):
        verdicts = (row.get(kind, set[str]()) for kind in kinds)
        table.append(
            [file, *(next((word for word in WORST if word in cell_verdicts), "") for cell_verdicts in verdicts)]
        )
    return _markdown(table) + "\n\n" + "\n".join(f"`{word}` {meaning}" for word, meaning in MEANINGS.items())


def faults_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table with one row per place that writes: it rejected each error, continued, or failed badly."""
    cells: dict[tuple[str, str], dict[str, set[str]]] = {}
    for line in lines:
        if "place" in line:
            row = cells.setdefault((line["place"], line["operation"]), {})
            if "fault" in line:
                word = "BAD" if line["said"] else "refused" if line["ended"] else "continued"
                row.setdefault(line["fault"], set()).add(word)
    if not cells:
        return ""
    names = sorted({name for row in cells.values() for name in row})
    table = [["place", "operation", *names]]
    for (place, operation), row in sorted(cells.items()):
        table.append([place, operation, *(", ".join(sorted(row.get(name, set[str]()))) for name in names)])
    return _markdown(table)


def _markdown(table: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def main(path: str) -> None:
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    print(attacks_table(lines), damages_table(lines), faults_table(lines), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1])

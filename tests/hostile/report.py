"""What attacks came to, gathered line by line while the tests run, and printed as a table at the end: `make hostile`.

    TERCET_HOSTILE_REPORT=build/hostile.jsonl pytest tests/hostile && python tests/hostile/report.py build/hostile.jsonl

Each attack is a line of its own; a test adds lines of other facts, such as what a damage came to. Without the variable
nothing is written.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

VARIABLE = "TERCET_HOSTILE_REPORT"
KILLED = 137
HANGS = 2.0  # seconds: who is killed sooner was meant to be
WORST = "WHTUrn."  # the worst verdict first; what each means is in `MEANINGS`
MEANINGS = {
    "n": "noticed: one line, exit code 2",
    "r": "recovered: said in one line, and the result is that of the undamaged files",
    ".": "harmless: the result is that of the undamaged files",
    "U": "refused without the name of the file",
    "T": "traceback, or another exit code than 0 and 2",
    "H": "hangs, or takes all memory",
    "W": "WRONG: another result, and nothing said",
}


class _Measured(Protocol):
    code: int
    seconds: float
    memory: int

    def has_traceback(self) -> bool: ...


def record(subject: str, outcome: _Measured) -> None:
    """Count an attack: under the subject, which is the name of its file by custom."""
    note(
        subject=subject,
        code=outcome.code,
        traceback=outcome.has_traceback(),
        seconds=outcome.seconds,
        memory=outcome.memory,
    )


def count_inputs(*, taken: int = 0, refused: int = 0) -> None:
    """Count malformed inputs that were not commands of their own: requests, or files that one child has read."""
    if subject := current_subject():
        note(subject=subject, taken=taken, refused=refused)


def note(**facts: Any) -> None:
    """Write a line of facts, whole even where several processes write."""
    if path := os.environ.get(VARIABLE):
        line = json.dumps(facts, ensure_ascii=False) + "\n"
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line)


def current_subject() -> str | None:
    """The file of the test that is running; None outside of one, and while it is prepared."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    return Path(test.partition("::")[0]).name if test.endswith("(call)") else None


def attacks_table(lines: Sequence[dict[str, Any]]) -> str:
    """A row a subject: how many commands in children, what came of them, the slowest, and the most memory; and how many
    malformed inputs were given within."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "code" in line:
            rows.setdefault(line["subject"], []).append(line)
    within: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "taken" in line:
            within.setdefault(line["subject"], []).append(line)
    table = [[
        "subject", "commands", "done", "refused", "killed", "tracebacks", "hangs", "slowest (s)", "memory (MiB)",
        "inputs within", "taken", "refused",
    ]]  # fmt: skip
    every = [line for own in rows.values() for line in own]
    within["all"] = [line for own in within.values() for line in own]
    for subject in [*sorted({*rows, *within} - {"all"}), "all"]:
        own = every if subject == "all" else rows.get(subject, [])
        taken, refused = (sum(line[word] for line in within.get(subject, [])) for word in ("taken", "refused"))
        if own or taken + refused:
            table.append([
                subject,
                f"{len(own):,}",
                *(f"{sum(line['code'] == code for line in own):,}" for code in (0, 2)),
                f"{sum(line['code'] == KILLED and line['seconds'] < HANGS for line in own):,}",
                f"{sum(line['traceback'] for line in own):,}",
                f"{sum(line['code'] == KILLED and line['seconds'] >= HANGS for line in own):,}",
                f"{max((line['seconds'] for line in own), default=0):.1f}",
                f"{max((line['memory'] for line in own), default=0) >> 20:,}",
                *(f"{number:,}" for number in (taken + refused, taken, refused)),
            ])  # fmt: skip
    return _markdown(table)


def damages_table(lines: Sequence[dict[str, Any]]) -> str:
    """A row a file, a column a kind of damage: the worst that any verb made of it."""
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
        table.append([file, *(next((word for word in WORST if word in seen), "") for seen in verdicts)])
    return _markdown(table) + "\n\n" + "\n".join(f"`{word}` {meaning}" for word, meaning in MEANINGS.items())


def faults_table(lines: Sequence[dict[str, Any]]) -> str:
    """A row a place that writes, and the errors it met: refused, gone on without, or not as it should be."""
    cells: dict[tuple[str, str], dict[str, set[str]]] = {}
    for line in lines:
        if "place" in line:
            row = cells.setdefault((line["place"], line["operation"]), {})
            if "fault" in line:
                word = "BAD" if line["said"] else "refused" if line["ended"] else "went on"
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

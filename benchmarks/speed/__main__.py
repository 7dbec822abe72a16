"""The command line of the speed benchmarks: `python -m benchmarks.speed`, from the root of the repository."""

import argparse
import json
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.speed.machine import has_bf16, machine
from benchmarks.speed.measure import Result, Timing, alone, in_own_process, measure
from benchmarks.speed.picture import draw
from benchmarks.speed.rounds import REST
from benchmarks.speed.row import Asked, Row
from benchmarks.speed.table import markdown, summary
from benchmarks.speed.without import QUESTIONS

QUICK = ("gpt-char", "bert", "greedy-1", "start-up-help", "start-up-import")
QUICK_TIMING = Timing(rounds=3, seconds=1.0, repeats=1)
GPU_TIMING = Timing(rounds=5, seconds=0.5, repeats=0)  # compiling takes longer than the rounds


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description="Compare the speed of Tercet with other libraries and with the limits of the machine.",
    )
    parser.add_argument("rows", metavar="ROW", nargs="*", help="rows or prefixes: gpt, greedy (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device of the rows (default: cpu)")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}, few rounds, no peak memory")
    parser.add_argument("--only", metavar="NAMES", help="prefixes of contenders: tercet,CTranslate2")
    parser.add_argument(
        "--without", metavar="KERNELS", type=_kernels, default=(),
        help=f"add Tercet without each of these kernels: all, or some of {', '.join(QUESTIONS)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, metavar="N", help="number of rounds (default: 7, quick: 3)")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="time of a contender per round (default: 2, quick: 1)"
    )
    parser.add_argument(
        "--budget", type=float, metavar="S", help="seconds of all rows together; rows without time are left out"
    )
    parser.add_argument("--resume", action="store_true", help="skip the rows that have figures in --out")
    parser.add_argument("--nanogpt", type=Path, metavar="PATH", help="a checkout of nanoGPT")
    parser.add_argument("--joeynmt", type=Path, metavar="PATH", help="an installation of JoeyNMT 2.3")
    parser.add_argument("--translator", type=Path, metavar="RUN", help="a trained translator, for the row beam")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs/speed"), help="default: runs/speed")
    parser.add_argument("--list", action="store_true", help="list the rows without measuring")
    parser.add_argument(
        "--no-memory", action="store_true", help="skip peak memory, which needs a process per contender"
    )
    parser.add_argument("--scale", choices=("full", "quick", "tiny"), help="sizes; tiny is for tests")
    parser.add_argument("--alone", metavar="CONTENDER", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def _names(given: str | None) -> tuple[str, ...]:
    """Return names separated by commas; the names themselves may contain ", ", as in "tercet, compiled"."""
    return tuple(filter(None, re.split(",(?! )", given or "")))


def _kernels(names: str) -> tuple[str, ...]:
    kernels = tuple(QUESTIONS) if names == "all" else tuple(names.split(","))
    if unknown := [name for name in kernels if name not in QUESTIONS]:
        raise argparse.ArgumentTypeError(f"no kernel is called {unknown[0]}; there are {', '.join(QUESTIONS)}")
    return kernels


def chosen(asked: list[str], rows: dict[str, Row], *, quick: bool = False) -> list[Row]:
    """Return the rows with these names or prefixes, in the order of the table.

    Raises:
        SystemExit: If a name matches no row.
    """
    names = asked or (list(QUICK) if quick else list(rows))
    for name in names:
        if not any(_named(name, row) for row in rows):
            raise SystemExit(f"unknown row {name}; available rows: {', '.join(rows)}")
    return [row for name, row in rows.items() if any(_named(asked, name) for asked in names)]


def _named(asked: str, row: str) -> bool:
    return row == asked or row.startswith(f"{asked}-")


def left_over(rows: list[Row], earlier: list[Result]) -> list[Row]:
    """Return the rows without results; rows that were tried before come last, as they may crash the program again."""
    measured = {result.name for result in earlier if result.figures}
    tried = {result.name for result in earlier}
    return sorted((row for row in rows if row.name not in measured), key=lambda row: row.name in tried)


def earlier_results(out: Path) -> list[Result]:
    """Return the results in `out`; empty if it contains none."""
    path = out / "speed.json"
    return [Result.of(row) for row in json.loads(path.read_text())["rows"]] if path.is_file() else []


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    from benchmarks.speed.rows import GPU_ROWS, ROWS

    rows = chosen(given.rows, GPU_ROWS if given.device == "cuda" else ROWS, quick=given.quick)
    if given.list:
        for row in rows:
            print(f"{row.name:16} {row.title}")
        return 0
    scale = given.scale or ("quick" if given.quick else "full")
    with tempfile.TemporaryDirectory(prefix="tercet-speed-") as made:
        asked = Asked(
            folder=given.folder or Path(made), device=given.device, scale=scale,
            bf16=given.device == "cuda" or has_bf16(), nanogpt=given.nanogpt,
            joeynmt=given.joeynmt, translator=given.translator, only=_names(given.only),
            without=given.without,
        )  # fmt: skip
        if given.alone is not None:
            print(json.dumps({"peak_memory": alone(rows[0], asked, given.alone)}))
            return 0
        on_gpu = given.device == "cuda"
        timing = GPU_TIMING if on_gpu else QUICK_TIMING if given.quick else Timing()
        if given.rounds is not None:
            timing = replace(timing, rounds=given.rounds)
        if given.seconds is not None:
            timing = replace(timing, seconds=given.seconds)
        # The options with which separate processes create the same work.
        passed = ["--device", given.device, "--scale", scale, "--folder", str(asked.folder)]
        for name in ("nanogpt", "joeynmt", "translator"):
            if getattr(given, name) is not None:
                passed += [f"--{name}", str(getattr(given, name))]
        memory = None if given.no_memory or given.quick or on_gpu else in_own_process(passed, say)
        facts = machine()
        results = earlier_results(given.out) if given.resume else []
        rows = left_over(rows, results)
        rest = 0.0 if scale == "tiny" or on_gpu else REST
        end = None if given.budget is None else time.monotonic() + given.budget
        for number, row in enumerate(rows):
            if end is not None:
                left, share = end - time.monotonic(), row.weight / sum(one.weight for one in rows[number:])
                if left <= 0:
                    say(f"{row.name}: left out, the time was used up")
                    continue
                timing = replace(timing, budget=left * share)
            results = [result for result in results if result.name != row.name]
            write(given.out, facts, timing, [*results, Result.begun(row)])  # in case the row crashes the program
            results.append(measure(row, asked, timing, say, memory=memory, rest=rest))
            write(given.out, facts, timing, results)  # results so far survive an interruption
    print()
    print("\n".join(summary(results)))
    print(f"\nwritten to {given.out}: speed.json, speed.md, speed.png")
    return 0 if any(result.figures for result in results) else 1


def write(out: Path, facts: dict[str, Any], timing: Timing, results: list[Result]) -> None:
    from dataclasses import asdict

    out.mkdir(parents=True, exist_ok=True)
    told = {"machine": facts, "timing": asdict(timing), "rows": [result.plain() for result in results]}
    (out / "speed.json").write_text(json.dumps(told, indent=1, allow_nan=False) + "\n")
    (out / "speed.md").write_text(markdown(facts, results))
    draw(results, out / "speed.png", about=f"{facts['cpu']}, {facts['threads']} threads, {facts['date'][:10]}")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

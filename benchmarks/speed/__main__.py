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
from benchmarks.speed.measure import Result, Timing, measure, measure_peak_memory, memory_meter
from benchmarks.speed.picture import draw
from benchmarks.speed.rounds import REST
from benchmarks.speed.row import Options, Row
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


def _names(text: str | None) -> tuple[str, ...]:
    """Return names separated by commas; the names themselves may contain ", ", as in "tercet, compiled"."""
    return tuple(filter(None, re.split(",(?! )", text or "")))


def _kernels(names: str) -> tuple[str, ...]:
    kernels = tuple(QUESTIONS) if names == "all" else tuple(names.split(","))
    if unknown := [name for name in kernels if name not in QUESTIONS]:
        raise argparse.ArgumentTypeError(f"no kernel is called {unknown[0]}; there are {', '.join(QUESTIONS)}")
    return kernels


def choose_rows(prefixes: list[str], rows: dict[str, Row], *, quick: bool = False) -> list[Row]:
    """Return the rows with these names or prefixes, in the order of the table.

    Raises:
        SystemExit: If a name matches no row.
    """
    names = prefixes or (list(QUICK) if quick else list(rows))
    for name in names:
        if not any(_matches(name, row) for row in rows):
            raise SystemExit(f"unknown row {name}; available rows: {', '.join(rows)}")
    return [row for name, row in rows.items() if any(_matches(prefix, name) for prefix in names)]


def _matches(prefix: str, row: str) -> bool:
    return row == prefix or row.startswith(f"{prefix}-")


def left_over(rows: list[Row], results: list[Result]) -> list[Row]:
    """Return the rows without results; rows that were tried before come last, as they may crash the program again."""
    finished_names = {result.name for result in results if result.figures}
    attempted_names = {result.name for result in results}
    return sorted((row for row in rows if row.name not in finished_names), key=lambda row: row.name in attempted_names)


def earlier_results(out: Path) -> list[Result]:
    """Return the results in `out`; empty if it contains none."""
    path = out / "speed.json"
    return [Result.of(row) for row in json.loads(path.read_text())["rows"]] if path.is_file() else []


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    from benchmarks.speed.rows import GPU_ROWS, ROWS

    rows = choose_rows(args.rows, GPU_ROWS if args.device == "cuda" else ROWS, quick=args.quick)
    if args.list:
        for row in rows:
            print(f"{row.name:16} {row.title}")
        return 0
    scale = args.scale or ("quick" if args.quick else "full")
    with tempfile.TemporaryDirectory(prefix="tercet-speed-") as temporary:
        options = Options(
            folder=args.folder or Path(temporary), device=args.device, scale=scale,
            bf16=args.device == "cuda" or has_bf16(), nanogpt=args.nanogpt,
            joeynmt=args.joeynmt, translator=args.translator, only=_names(args.only),
            without=args.without,
        )  # fmt: skip
        if args.alone is not None:
            print(json.dumps({"peak_memory": measure_peak_memory(rows[0], options, args.alone)}))
            return 0
        on_gpu = args.device == "cuda"
        timing = GPU_TIMING if on_gpu else QUICK_TIMING if args.quick else Timing()
        if args.rounds is not None:
            timing = replace(timing, rounds=args.rounds)
        if args.seconds is not None:
            timing = replace(timing, seconds=args.seconds)
        # The options with which separate processes create the same work.
        process_arguments = ["--device", args.device, "--scale", scale, "--folder", str(options.folder)]
        for name in ("nanogpt", "joeynmt", "translator"):
            if getattr(args, name) is not None:
                process_arguments += [f"--{name}", str(getattr(args, name))]
        memory = None if args.no_memory or args.quick or on_gpu else memory_meter(process_arguments, log)
        facts = machine()
        results = earlier_results(args.out) if args.resume else []
        rows = left_over(rows, results)
        rest = 0.0 if scale == "tiny" or on_gpu else REST
        end = None if args.budget is None else time.monotonic() + args.budget
        for number, row in enumerate(rows):
            if end is not None:
                left, share = end - time.monotonic(), row.weight / sum(remaining.weight for remaining in rows[number:])
                if left <= 0:
                    log(f"{row.name}: left out, the time was used up")
                    continue
                timing = replace(timing, budget=left * share)
            results = [result for result in results if result.name != row.name]
            write(args.out, facts, timing, [*results, Result.empty(row)])  # in case the row crashes the program
            results.append(measure(row, options, timing, log, memory=memory, rest=rest))
            write(args.out, facts, timing, results)  # results so far survive an interruption
    print()
    print("\n".join(summary(results)))
    print(f"\nwritten to {args.out}: speed.json, speed.md, speed.png")
    return 0 if any(result.figures for result in results) else 1


def write(out: Path, facts: dict[str, Any], timing: Timing, results: list[Result]) -> None:
    from dataclasses import asdict

    out.mkdir(parents=True, exist_ok=True)
    document = {"machine": facts, "timing": asdict(timing), "rows": [result.plain() for result in results]}
    (out / "speed.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    (out / "speed.md").write_text(markdown(facts, results))
    draw(results, out / "speed.png", title=f"{facts['cpu']}, {facts['threads']} threads, {facts['date'][:10]}")


def log(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

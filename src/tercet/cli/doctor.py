"""`tercet doctor`: what this machine gives to a run, and what is chosen of it."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from tercet.cli.parser import Verbs
from tercet.messages import one_line

if TYPE_CHECKING:
    from tercet.diagnosis import Diagnosis


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="say what this machine gives to a run: CPU, kernels and why these, cache, precision, GPU",
        description="Say what this machine gives to a run and what is chosen of it: versions, the CPU's instructions, "
        "which kernels and why, the cache, the precision that auto takes, the GPUs, the compiler.",
        epilog="Example: tercet doctor --json",
    )
    parser.add_argument(
        "--autotune",
        nargs="?",
        choices=("on", "off"),
        const="on",
        help="measure before, for up to a minute, for how much work each kernel is used on this machine, and keep "
        "it for what starts afterwards; off: go back to the table that comes with Tercet",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.diagnosis import doctor

    found = doctor(autotune=None if args.autotune is None else args.autotune == "on", note=_to_stderr)
    if args.json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        for name, value in _describe(found).items():
            print(f"{name:<10} {one_line(value)}")
    return 0


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _describe(found: "Diagnosis") -> dict[str, str]:
    memory = "unknown" if found.memory_bytes is None else _gigabytes(found.memory_bytes)
    cache = f"cannot be used: {found.cache_refusal}" if found.cache_refusal else "may be written"
    compiler = "none" if found.compiler is None else f"{found.compiler}: {found.compiler_version or 'no answer'}"
    return {
        "tercet": f"{found.tercet}, Python {found.python}, PyTorch {found.torch}, {found.system}",
        "cpu": f"{found.cpu}: {' '.join(found.instructions) or 'instructions unknown'}",
        "threads": f"{found.threads} of PyTorch's on {found.cores} cores",
        "memory": memory,
        "kernels": f"{found.kernel_level} ({found.kernel_origin}): {found.kernel_reason}",
        "table": f"{found.kernel_table_origin}: {found.kernel_table}",
        "cache": f"{found.cache}, {_gigabytes(found.cache_free_bytes)} free: {cache}",
        "disk": f"{_gigabytes(found.free_bytes)} free in this folder",
        "precision": f"{found.precision}, where training.precision is auto",
        "gpu": ", ".join(found.gpus) or "none",
        "compiler": compiler,
    }


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"

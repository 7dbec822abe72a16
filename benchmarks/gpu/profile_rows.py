"""Where the time of a row goes on a GPU: the time of the host, that of all kernels, and the longest kernels.

    python -m benchmarks.gpu.profile_rows gpt-baby greedy-1 --nanogpt PATH --out DIR

The first contenders of each row are profiled, Tercet first, then the peer as its README runs it. If the host's time is
that of the whole, the host launches kernels more slowly than the GPU computes them. Results are written to profile.json
as they become available.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.__main__ import choose_rows
from benchmarks.speed.contender import Contender
from benchmarks.speed.row import Options
from benchmarks.speed.rows import GPU_ROWS
from torch.profiler import ProfilerActivity, profile

UNITS, KERNELS = 10, 12  # units of work that are timed, and then profiled; kernels that are listed


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def profile_contender(contender: Contender, device: torch.device) -> dict[str, Any]:
    """Return milliseconds per unit of work, the number of kernels, and the longest kernels with their share."""
    contender.device = device
    contender.setup()
    with contender.settings.apply():
        for _ in range(3):  # chooses kernels, compiles, captures graphs
            contender.run(1)
        wait(device)
        start = time.perf_counter()
        contender.run(UNITS)
        launched = time.perf_counter() - start
        wait(device)
        whole = time.perf_counter() - start
        activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
        with profile(activities=[activity]) as profiler:
            contender.run(UNITS)
            wait(device)
    contender.close()
    events: Any = profiler.key_averages()
    spent = {event.key: (event.self_device_time_total or event.self_cpu_time_total, event.count) for event in events}
    total = sum(microseconds for microseconds, _ in spent.values())
    longest = sorted(spent.items(), key=lambda item: -item[1][0])[:KERNELS]
    return {
        "whole_ms": 1e3 * whole / UNITS,
        "host_ms": 1e3 * launched / UNITS,
        "kernels_ms": 1e-3 * total / UNITS,
        "kernels": sum(count for _, count in spent.values()) / UNITS,
        "longest": [
            {"kernel": name[:80], "share": microseconds / total, "count": count / UNITS}
            for name, (microseconds, count) in longest
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", metavar="ROW", nargs="+", help="rows of `python -m benchmarks.speed --device cuda`")
    parser.add_argument("--nanogpt", metavar="PATH", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--contenders", metavar="N", type=int, default=2, help="the first N of each row (default: 2)")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="tiny models on the CPU, to check the program")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu" if args.tiny else "cuda")
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="tercet-profile-") as temporary:
        options = Options(
            folder=Path(temporary), device=device.type, scale="tiny" if args.tiny else "full", nanogpt=args.nanogpt
        )
        for row in choose_rows(args.rows, GPU_ROWS):
            for contender in row.lineup(options).contenders[: args.contenders]:
                try:
                    result = profile_contender(contender, device)
                except Exception as error:  # a contender that fails must not end the others
                    result = {"failed": f"{type(error).__name__}: {error}"[:500]}
                results.setdefault(row.name, {})[contender.name] = result
                (args.out / "profile.json").write_text(json.dumps(results, indent=1) + "\n")
                figures = {name: round(value, 3) for name, value in result.items() if isinstance(value, float)}
                print(f"{row.name}, {contender.name}: {json.dumps(figures or result)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

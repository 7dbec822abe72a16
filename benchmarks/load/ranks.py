"""The speedup by two ranks, the cost of `training.exact`, and the bytes sent per step: on this machine, over gloo.

    python benchmarks/load/ranks.py [--steps 12] [--rounds 3] [--precision fp32]

Each measurement is a separate run: a GPT of 6 layers of 384 on rows of 256 characters, a step of 16 rows in
micro-batches of 4. Each rank has one thread. The runs alternate; a result is the median over rounds of the median over
a run's steps, without the first ones. Bytes are those of the loopback device for all ranks, per step; the traffic of
the launcher and of the first exchange of weights is subtracted by means of a run of half as many steps.

Theory, for N weights of 4 bytes and R ranks: ddp sends 2 (R - 1) 4 N per step; fsdp sends (R - 1) 4 N for each gather
and each reduce-scatter. In a micro-batch of a rank there is one of each, and one more gather of all blocks but the
last; with `exact`, one reduce-scatter per step; if gathered weights are kept (reshard_after_forward=false), one of each
per step. tp has 4 sums of hidden states per block, with 2 (R - 1) 4 bytes for each of their numbers, or 2 (R - 1) 2 in
bf16.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from tercet.checkpoint import load_model
from tercet.checkpoint.metrics import read_metrics
from tercet.models import blocks_of

RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {"strategy": "single"}),
    "single, exact": (1, {"strategy": "single", "exact": True}),
    "ddp on 2": (2, {"strategy": "ddp"}),
    "ddp on 2, exact": (2, {"strategy": "ddp", "exact": True}),
    "fsdp on 2": (2, {"strategy": "fsdp"}),
    "fsdp on 2, exact": (2, {"strategy": "fsdp", "exact": True}),
    "fsdp on 2, kept": (2, {"strategy": "fsdp", "reshard_after_forward": False}),
    "fsdp on 2, kept, exact": (2, {"strategy": "fsdp", "reshard_after_forward": False, "exact": True}),
    "tp on 2": (2, {"strategy": "tp"}),
}
SHAPE: dict[str, Any] = {
    "model.max_len": 256, "model.stack.d_model": 384, "model.stack.n_layers": 6, "model.stack.n_heads": 6,
    "task.batch_size": 16, "task.micro_batch_size": 4, "task.sample_tokens": 0, "task.validation_tokens": 256,
    "data.source": "shakespeare", "training.warmup_steps": 0, "training.log_every": 1, "training.compile": "never",
    "training.accelerator": "cpu",
}  # fmt: skip
HIDDEN_STATES = ("model.stack.n_layers", "task.batch_size", "model.max_len", "model.stack.d_model")
FIRST = 3  # steps that are not counted


def train(folder: Path, ranks: int, training: dict[str, Any], steps: int) -> tuple[Path, int]:
    """Return a run of `steps` steps, and the bytes that were sent over the loopback device during it."""
    settings = {**SHAPE, **{f"training.{key}": value for key, value in training.items()}, "training.max_steps": steps}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [
        sys.executable,
        *launcher,
        "-m",
        "tercet",
        "train",
        "nanogpt-cpu",
        "--quiet",
        "--out",
        str(folder),
        *assignments,
    ]
    bytes_before = loopback_bytes()
    process = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        sys.exit(process.stderr)
    return folder, loopback_bytes() - bytes_before


def loopback_bytes() -> int:
    """Return the bytes sent over `lo` so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split()[9])


def tokens_per_second(run: Path) -> float:
    return statistics.median(y for step, y in read_metrics(run / "metrics.csv")["tokens_per_second"] if step > FIRST)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    speeds: dict[str, list[float]] = {name: [] for name in RUNS}
    sent_bytes: dict[str, int] = {}
    parameters = blocks = 0
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds):
            for name, (ranks, training) in RUNS.items():
                training = {**training, "precision": args.precision}
                out = Path(folder) / f"{name} {turn}"
                run, whole = train(out, ranks, training, args.steps)
                speeds[name].append(tokens_per_second(run))
                if name not in sent_bytes:
                    half = train(Path(folder) / f"{name} half", ranks, training, args.steps // 2)[1]
                    sent_bytes[name] = round((whole - half) / (args.steps - args.steps // 2))
                    model = load_model(run / "last").model
                    parameters = count(model)
                    *all_but_last, _ = blocks_of(model)
                    blocks = sum(map(count, all_but_last))
                print(name, f"{speeds[name][-1]:,.0f} tokens/s", file=sys.stderr, flush=True)
    single_speed = statistics.median(speeds["single"])
    print(f"{parameters:,} weights, {args.precision}; {args.rounds} rounds of {args.steps} steps\n")
    print("| run | tokens/s | of ranks x single | of the same without exact | MB per step | in theory |")
    print("|---|---|---|---|---|---|")
    for name, (ranks, training) in RUNS.items():
        speed = statistics.median(speeds[name])
        plain = statistics.median(speeds[name.removesuffix(", exact")])
        passes = 16 // 4 // ranks if training["strategy"] == "fsdp" else 0
        keeps_weights = "reshard_after_forward" in training
        gathered_numbers = parameters if keeps_weights else passes * (parameters + blocks)
        reduced_numbers = (1 if keeps_weights or "exact" in training else passes) * parameters
        theoretical_bytes = (gathered_numbers + reduced_numbers if passes else 2 * parameters) * (ranks - 1) * 4
        if training["strategy"] == "tp":
            numbers = 4 * math.prod(SHAPE[key] for key in HIDDEN_STATES)
            theoretical_bytes = 2 * (ranks - 1) * (4 if args.precision == "fp32" else 2) * numbers
        spread = f"{speed:,.0f} ({min(speeds[name]):,.0f} to {max(speeds[name]):,.0f})"
        shares = f"{speed / ranks / single_speed:.0%} | {speed / plain:.0%}"
        print(f"| {name} | {spread} | {shares} | {sent_bytes[name] / 1e6:,.1f} | {theoretical_bytes / 1e6:,.1f} |")


if __name__ == "__main__":
    main()

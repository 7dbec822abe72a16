"""The time from the start of a process to a model of Shakespeare that is as good as nanoGPT's.

    python benchmarks/quality/time_to_quality.py --nanogpt ../nanoGPT --out runs/time  # three seeds: ten minutes
    python benchmarks/quality/time_to_quality.py --nanogpt ../nanoGPT --out runs/time --lengths 0.5 2 4  # more lengths

nanoGPT's run is that of its README for a CPU (4 layers of 128, 64 characters, 12 rows, 2000 steps, fp32, AdamW from
1e-3 down to 1e-4, evaluated every 250 steps by 20 batches of each part), around the `model.py` of the checkout.
Tercet's run is `tercet train RECIPE`, as a user runs it. Each is a separate process, finds its ids on disk, and ends
with the same number: the loss over the whole validation part, 111,539 characters, every one once. Tercet's loss is
checked by `tercet evaluate`, which must give the same.

Seconds are measured in the parent: from the start of the process to the line with the number, and to its end. Existing
runs are not repeated, so the command can be stopped and run again.
"""

import argparse
import importlib.util
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GOAL, SHARE = 1.898, 1 / 6  # nats per character; share of nanoGPT's seconds
SEEDS = (1337, 1338, 1339)
BLOCK, ROWS, STEPS, EVALUATE_EVERY, LOOKS = 64, 12, 2000, 250, 20
NUMBER = re.compile(r"validation loss (\d+\.\d+)")


def theirs(checkout: Path, data: Path, seed: int, folder: Path, steps: int) -> None:
    """Train nanoGPT in the timed process, which imports nothing of Tercet."""
    start = time.perf_counter()
    import numpy as np
    import torch

    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks up its own module
    spec.loader.exec_module(module)

    torch.manual_seed(seed)
    parts = {name: np.memmap(data / f"{name}.bin", dtype=np.uint16, mode="r") for name in ("train", "val")}
    vocabulary = int(max(part.max() for part in parts.values())) + 1
    model: Any = module.GPT(
        module.GPTConfig(
            block_size=BLOCK, vocab_size=vocabulary, n_layer=4, n_head=4, n_embd=128, dropout=0.0, bias=False
        )
    )
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")

    def batch(name: str) -> tuple[Any, Any]:
        part = parts[name]
        starts = torch.randint(len(part) - BLOCK, (ROWS,)).tolist()
        rows = torch.from_numpy(np.stack([part[i : i + BLOCK + 1].astype(np.int64) for i in starts]))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    @torch.no_grad()
    def look() -> dict[str, float]:
        model.eval()
        part_losses = {name: statistics.fmean(float(model(*batch(name))[1]) for _ in range(LOOKS)) for name in parts}
        model.train()
        return part_losses

    warmup, best, curve = min(100, steps // 2), math.inf, list[tuple[float, float]]()
    model.train()
    for step in range(steps + 1):
        if step % EVALUATE_EVERY == 0 or step == steps:
            losses = look()
            curve.append((time.perf_counter() - start, losses["val"]))
            print(f"step {step}: train {losses['train']:.4f}, val {losses['val']:.4f}", flush=True)
            if step and losses["val"] < best:
                best = losses["val"]
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "ckpt.pt")
        if step == steps:
            break
        progress = min(1.0, max(0.0, (step - warmup) / (steps - warmup)))
        rate = (
            1e-3 * (step + 1) / (warmup + 1)
            if step < warmup
            else 1e-4 + 9e-4 * 0.5 * (1 + math.cos(math.pi * progress))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(*batch("train"))[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0:
            print(f"iter {step}: loss {loss.item():.4f}", flush=True)

    whole, count = whole_set(lambda inputs, targets: model(inputs, targets)[1], np.asarray(parts["val"]))
    print(f"whole validation set, {count} characters: validation loss {whole:.4f}", flush=True)
    (folder / "curve.json").write_text(json.dumps({"curve": curve, "loss": whole, "characters": count}))


def whole_set(loss: Any, ids: Any, batch_size: int = 256) -> tuple[float, int]:
    """Return the mean of `loss` (inputs, targets) over every target of `ids`, and the number of targets.

    The windows have the length of the context and do not overlap; the last one is shorter.
    """
    import torch

    tokens = torch.from_numpy(ids.astype("int64"))
    inputs, targets = tokens[:-1], tokens[1:]
    full = len(targets) // BLOCK * BLOCK
    ends = [*range(batch_size * BLOCK, full, batch_size * BLOCK), *([full] if full else [])]
    spans = zip([0, *ends], ends, strict=False)
    pairs = [(inputs[a:b].view(-1, BLOCK), targets[a:b].view(-1, BLOCK)) for a, b in spans]
    if full < len(targets):
        pairs.append((inputs[None, full:], targets[None, full:]))
    with torch.no_grad():
        total = sum(float(loss(x, y)) * y.numel() for x, y in pairs)
    return total / len(targets), len(targets)


def run_timed(command: list[str]) -> tuple[float, float, float]:
    """Run the command; return the number on its last line with one, and the seconds to that line and to the end."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    loss, to_number = math.nan, math.nan
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if match := NUMBER.search(line):
                loss, to_number = float(match[1]), time.perf_counter() - start
    seconds = time.perf_counter() - start
    if process.returncode or math.isnan(loss):
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}, loss {loss}")
    return loss, to_number, seconds


def run_theirs(checkout: Path, data: Path, seed: int, out: Path, steps: int) -> dict[str, Any]:
    folder = _empty(out / f"nanogpt-{seed}")
    command = [sys.executable, __file__, "--nanogpt", str(checkout), "--out", str(folder), "--data", str(data)]
    loss, to_number, seconds = run_timed([*command, "--as-nanogpt", str(seed), "--steps", str(steps)])
    curve = json.loads((folder / "curve.json").read_text())
    return {"loss": loss, "to_number": to_number, "seconds": seconds, **curve}


def run_ours(recipe: str, seed: int, out: Path, length: float) -> dict[str, Any]:
    from tercet.training import load_recipe

    steps = load_recipe(recipe).training.max_steps
    assert steps is not None
    folder = out / f"ours-{seed}-{length:g}"
    shutil.rmtree(folder, ignore_errors=True)
    changes = [f"training.seed={seed}", *([] if length == 1 else [f"training.max_steps={round(length * steps)}"])]
    tercet = [sys.executable, "-m", "tercet"]
    trained_loss, to_number, seconds = run_timed(
        [*tercet, "train", recipe, "--out", str(folder), *(part for change in changes for part in ("--set", change))]
    )
    exact = json.loads((folder / "last" / "card.json").read_text())["metrics"]["val/loss"]
    start = time.perf_counter()
    evaluate = [*tercet, "evaluate", str(folder / "last"), "--json"]
    scores = json.loads(subprocess.run(evaluate, check=True, capture_output=True, text=True).stdout)
    evaluating = time.perf_counter() - start
    evaluated_loss = scores["loss_nats_per_token"]
    if abs(trained_loss - exact) > 1e-4 or abs(evaluated_loss - exact) > 1e-4:
        raise SystemExit(
            f"{folder}: the loss of training is {exact}, of tercet evaluate {evaluated_loss}; "
            "validate on the whole part"
        )
    return {
        "loss": exact, "to_number": to_number, "seconds": seconds, "evaluate_seconds": evaluating,
        "characters": scores["tokens"], "steps": round(length * steps),
    }  # fmt: skip


def table(figures: dict[str, dict[str, Any]]) -> str:
    lines = ["| run | seed | loss | s to the number | s in all | ours / theirs |", "|---|---|---|---|---|---|"]
    pairs = list[float]()
    for key, result in sorted(figures.items()):
        name, seed, *length = key.split()
        share = ""
        if name == "ours" and length == ["1"] and (peer := figures.get(f"nanogpt {seed}")):
            pairs.append(result["to_number"] / peer["to_number"])
            share = f"1 / {1 / pairs[-1]:.2f}"
        label = f"ours, {result['steps']} steps" if length else "nanoGPT, 2000 steps"
        times = f"{result['to_number']:.1f} | {result['seconds']:.1f}"
        lines.append(f"| {label} | {seed} | {result['loss']:.4f} | {times} | {share} |")
    if pairs:
        ours = [result["loss"] for key, result in figures.items() if key.startswith("ours") and key.endswith(" 1")]
        middle = statistics.median(pairs)
        is_reached = middle <= SHARE and statistics.fmean(ours) <= GOAL
        lines.append(
            f"\nours: mean loss {statistics.fmean(ours):.4f} (goal {GOAL}), in 1 / {1 / middle:.2f} of nanoGPT's "
            f"seconds (median of {len(pairs)}; goal 1 / {1 / SHARE:.0f}): {'reached' if is_reached else 'missed'}"
        )
    return "\n".join(lines)


def draw(figures: dict[str, dict[str, Any]], picture: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    label: str | None = "nanoGPT, one run as it goes"
    for key, result in figures.items():
        if key.startswith("nanogpt"):
            axes.plot(*zip(*result["curve"], strict=True), color="#8a8a8a", linewidth=1.2, label=label)
            axes.plot(result["to_number"], result["loss"], "o", color="#8a8a8a", markersize=5)
            label = None
    ours = sorted((result["to_number"], result["loss"]) for key, result in figures.items() if key.startswith("ours"))
    axes.plot(*zip(*ours, strict=True), "o", color="#c0504d", markersize=5, label="Tercet, a run a dot")
    axes.axhline(GOAL, color="#444444", linewidth=0.8, linestyle=":")
    axes.set(xlabel="seconds from the start of the process", ylabel="validation loss (nats a character)")
    axes.set_title("Shakespeare by characters: dots are whole runs, on the whole validation set", fontsize=11)
    axes.set_ylim(min(loss for _, loss in ours) - 0.1, 2.8)
    axes.set_xlim(left=0)
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=120, metadata={"Software": None})


def write_ids(recipe: str, folder: Path) -> Path:
    """Write the recipe's ids in nanoGPT's format, which also caches those of Tercet."""
    import numpy as np

    from tercet.data import TextSpec, prepare
    from tercet.training import load_recipe

    data = load_recipe(recipe).data
    assert isinstance(data, TextSpec)
    corpus = prepare(data)
    folder.mkdir(parents=True, exist_ok=True)
    for name, ids in (("train", corpus.train), ("val", corpus.validation)):
        np.asarray(ids).astype(np.uint16).tofile(folder / f"{name}.bin")
    return folder


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def main(arguments: argparse.Namespace) -> None:
    import torch

    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    results_path = arguments.out / "time_to_quality.json"
    figures: dict[str, dict[str, Any]] = json.loads(results_path.read_text())["runs"] if results_path.exists() else {}
    data = write_ids(arguments.recipe, arguments.out / "ids")

    def run_once(key: str, work: Any) -> None:
        if key not in figures:
            figures[key] = work()
            facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "recipe": arguments.recipe}
            results_path.write_text(json.dumps({**facts, "runs": figures}, indent=1))
            print(key, f"{figures[key]['loss']:.4f}", f"{figures[key]['to_number']:.1f} s", flush=True)

    for seed in arguments.seeds:
        for length in (1.0, *arguments.lengths):
            run_once(
                f"ours {seed} {length:g}", lambda s=seed, n=length: run_ours(arguments.recipe, s, arguments.out, n)
            )
        run_once(
            f"nanogpt {seed}",
            lambda s=seed: run_theirs(arguments.nanogpt, data, s, arguments.out, arguments.steps),
        )
    print(table(figures))
    draw(figures, arguments.out / "time_to_quality.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nanogpt", metavar="PATH", type=Path, required=True, help="a checkout, or its model.py's folder"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True)
    parser.add_argument("--recipe", default="shakespeare-quick")
    parser.add_argument("--seeds", metavar="N", type=int, nargs="+", default=SEEDS)
    parser.add_argument(
        "--lengths", metavar="X", type=float, nargs="*", default=[], help="factors of the steps of further Tercet runs"
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, default=STEPS, help="steps of nanoGPT's run, to test the program"
    )
    parser.add_argument("--as-nanogpt", metavar="SEED", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_nanogpt is None:
        main(args)
    else:
        theirs(args.nanogpt, args.data, args.as_nanogpt, args.out, args.steps)

"""The losses of the recipes on Shakespeare, and ablations of the modern recipe.

    python benchmarks/quality/shakespeare.py main --out runs/bench       # both recipes, three seeds
    python benchmarks/quality/shakespeare.py ablations --out runs/bench  # the modern recipe without one ingredient

Each run's loss is that of the whole validation set, every character once, after the last step. Existing runs are not
trained again, so the command can be stopped and repeated.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoint import load_model
from tercet.checkpoint.metrics import read_metrics
from tercet.config import merge
from tercet.data import prepare
from tercet.evaluate import score
from tercet.settings_yaml import parse_assignment
from tercet.training import load_recipe, read_recipe, train

SEEDS = (1337, 1338, 1339)

ABLATIONS = {
    "all of it": [],
    "learned positions, not rotary": ["model.stack.position=learned"],
    "no QK-norm": ["model.stack.qk_norm=false"],
    "layer norm, not RMS": ["model.stack.norm=layer"],
    "no norm on the embeddings": ["model.embedding_norm=false"],
    "GELU, not ReLU squared": ["model.stack.activation=gelu"],
    "normal(0.02) weights, not zero-init projections": ["model.init=normal"],
    "no softcap": ["model.logit_softcap=null"],
    "tied embeddings": ["model.tie_embeddings=true"],
    "cosine to a tenth, not a long cool-down": ["training.schedule={kind: cosine, final: 0.1}"],
    "AdamW throughout (lr 3e-3, warm-up 100), not Muon": [
        "training.optimizer={kind: adamw, lr: 3.0e-3, beta2: 0.99}",
        "training.warmup_steps=100",
    ],
}


def run(recipe: str, out: Path, changes: list[str]) -> dict[str, Any]:
    """Train and evaluate one run, and return its results."""
    data: dict[str, Any] = {"task": {"sample_tokens": 0}}
    for change in changes:
        data = merge(data, parse_assignment(change))
    start = time.perf_counter()
    train(load_recipe(recipe, data), out, quiet=True)
    seconds = time.perf_counter() - start
    trained_model = load_model(out / "last")
    corpus = prepare(read_recipe(out).data)
    scores = score(
        trained_model.model,
        corpus.validation,
        n_bytes=corpus.validation_bytes,
        special_ids=corpus.tokenizer.special_ids,
    )
    curve = read_metrics(out / "metrics.csv")
    return {
        "loss": scores.loss_nats_per_token,
        "parameters": sum(p.numel() for p in trained_model.model.parameters()),
        "seconds": round(seconds, 1),
        "validation": curve["val/loss"],
    }


def main_runs(out: Path) -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    for recipe in ("nanogpt-cpu-modern", "nanogpt-cpu"):
        for seed in SEEDS:
            result = run(recipe, out / f"{recipe}-{seed}", [f"training.seed={seed}"])
            results.setdefault(recipe, []).append(result)
            print(recipe, seed, f"{result['loss']:.4f}", f"{result['seconds']:.0f} s", flush=True)
        losses = [result["loss"] for result in results[recipe]]
        spread = statistics.stdev(losses)
        print(f"{recipe}: mean {statistics.mean(losses):.4f}, standard deviation {spread:.4f}", flush=True)
    (out / "main.json").write_text(json.dumps(results, indent=1))
    draw(results, out / "shakespeare.png")


def ablations(out: Path, steps: int) -> None:
    first = None
    for i, (name, changes) in enumerate(ABLATIONS.items()):
        folder = out / f"ablation-{steps}-{i:02d}"
        result = run("nanogpt-cpu-modern", folder, [*changes, f"training.max_steps={steps}"])
        first = first or result["loss"]
        print(f"| {name} | {result['loss']:.4f} | {result['loss'] - first:+.4f} |", flush=True)


def draw(results: dict[str, list[dict[str, Any]]], picture: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    styles = {
        "nanogpt-cpu": ("#8a8a8a", "nanoGPT's settings (recipe nanogpt-cpu)"),
        "nanogpt-cpu-modern": ("#c0504d", "Tercet's own (recipe nanogpt-cpu-modern)"),
    }
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for recipe, (color, label) in styles.items():
        for i, result in enumerate(results[recipe]):
            steps, losses = zip(*result["validation"], strict=True)
            axes.plot(steps, losses, color=color, linewidth=1.4, marker="o", markersize=2.5, label=None if i else label)
        end = statistics.mean(result["loss"] for result in results[recipe])
        axes.annotate(f"{end:.3f}", (steps[-1], end), (6, -3), textcoords="offset points", color=color)
    axes.set(xlabel="optimizer step (768 characters each)", ylabel="validation loss (nats a character)")
    axes.set_title("Shakespeare by characters, 0.8 M parameters, three seeds each", fontsize=11)
    axes.set_xlim(0, max(steps) * 1.07)
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("main", "ablations"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000, help="steps of each ablation")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    if arguments.what == "main":
        main_runs(arguments.out)
    else:
        ablations(arguments.out, arguments.steps)

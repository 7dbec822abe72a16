"""Forecasts of `tercet train --hours` on texts from which the law does not start, and their outcomes.

    python benchmarks/quality/forecasts.py train --minutes 2 --out runs/corpora     # can be stopped and repeated
    python benchmarks/quality/forecasts.py report

Each cell is one command on a quiet machine. The results are in `scaling/forecasts.jsonl` next to this file.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from corpora import write_corpus

RESULTS = Path(__file__).parent / "scaling" / "forecasts.jsonl"
TEXTS = ("captions-en", "perl", "torch-code", "vim-help", "licenses", "captions-de")


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.open(encoding="utf-8")] if RESULTS.exists() else []


def train_all(minutes: float, recipe: str, out: Path) -> None:
    """Train the cells that have no result."""
    for text in TEXTS:
        key = {"text": text, "minutes": minutes, "recipe": recipe}
        if any(key.items() <= result.items() for result in read_results()):
            continue
        path, folder = write_corpus(text, out), out / "forecast-run"
        shutil.rmtree(folder, ignore_errors=True)
        words = ["train", recipe, "--data", str(path), "--hours", f"{minutes / 60:.6g}", "--out", str(folder), "--json"]
        started = time.perf_counter()
        printed = subprocess.run(
            [sys.executable, "-m", "tercet", *words], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        ).stdout
        seconds = time.perf_counter() - started
        answer = json.loads(printed)
        forecast, outcome = answer["forecast"], answer["metrics"]["val/loss"]
        result = {
            **key,
            **{name: forecast["chosen"][name] for name in ("size", "steps", "passes", "loss", "low", "high")},
            "outcome": outcome,
            "steps_trained": answer["last_step"],
            "best_step": answer["step"],
            "seconds": round(seconds, 1),
            "seconds_planned": round(
                3600 * forecast["hours"] - forecast["seconds_left"] + forecast["chosen"]["seconds"], 1
            ),
            "pilots": len(forecast["pilots"]),
        }
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


def report() -> None:
    inside = 0
    results = read_results()
    for one in results:
        inside += one["low"] <= one["outcome"] <= one["high"]
        mark = "" if one["low"] <= one["outcome"] <= one["high"] else " (outside)"
        print(
            f"| {one['text']} | {one['recipe']} | {one['minutes']:g} | {one['size']}, {one['steps_trained']:,} "
            f"({one['passes']:.3g}) | {one['loss']:.3f} ({one['low']:.3f} to {one['high']:.3f}) | "
            f"{one['outcome']:.3f}{mark} | {one['seconds']:.0f} |"
        )
    print(f"{inside} of {len(results)} outcomes are within the interval")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("train", "report"))
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--recipe", choices=("gpt", "bert"), default="gpt")
    parser.add_argument("--out", type=Path, default=Path("runs/corpora"), help="folder of the texts and of the run")
    arguments = parser.parse_args()
    if arguments.action == "train":
        train_all(arguments.minutes, arguments.recipe, arguments.out)
    else:
        report()

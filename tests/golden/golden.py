"""Record results of all packaged recipes: SHA-256 of the weights after a few steps, and output of the commands.

A change that preserves all numbers leaves the record unchanged. Compare two checkouts on one machine, because other
CPUs, thread counts and PyTorch versions round differently:

    OMP_NUM_THREADS=1 python -m tests.golden.golden record before.json     # in one checkout
    OMP_NUM_THREADS=1 python -m tests.golden.golden compare before.json    # in the other; exit code 1 if they differ

Recipes whose data is not available are recorded with their error.
"""

import argparse
import contextlib
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tercet.cli.main import main
from tercet.training.recipe.files import recipes_from_scratch

LENGTH = ("training.max_steps=3", "training.max_epochs=null", "training.max_hours=null", "training.patience=null")
# Reduced sizes for recipes whose steps take more than a few seconds on a laptop. Every component remains.
SMALLER: dict[str, tuple[str, ...]] = {
    "cramming": ("task.batch_size=4", "task.micro_batch_size=2", "model.stack.n_layers=2"),
    "gpt2-124m": (
        "task.batch_size=4",
        "task.micro_batch_size=2",
        "model.stack.n_layers=2",
        "model.max_len=128",
    ),
    "grokking": ("task.batch_tokens=300", "model.encoder.n_layers=2", "model.decoder.n_layers=2"),
    "nanogpt-gpu": ("task.batch_size=4", "model.stack.n_layers=2"),
    "original-decoder": ("task.batch_size=4", "task.micro_batch_size=2", "model.stack.n_layers=2"),
    "wmt14-en-de-base": ("task.batch_tokens=300",),
}
COMMON = ("training.precision=fp32", "training.compile=never", "logging.tracker=none")
# Every command runs for every run. An error for an unsupported model family is also recorded.
VERBS: tuple[tuple[str, ...], ...] = (
    ("inspect",),
    ("generate", "--prompt", "the ", "--max-new-tokens", "24", "--num-samples", "2", "--seed", "5", "--json"),
    ("generate", "--prompt", "the ", "--max-new-tokens", "24", "--temperature", "0", "--lookup", "--json"),
    ("translate", "--input", "LINES", "--json"),
    ("translate", "--input", "LINES", "--beam", "4", "--n-best", "2", "--scores", "--json"),
    ("fill", "a [MASK] of the day", "--top", "3", "--json"),
    ("classify", "--input", "LINES", "--scores", "--json"),
    ("evaluate", "--per-line", "--data", "LINES", "--json"),
    ("evaluate", "--per-line", "--source", "LINES", "--target", "LINES", "--json"),
    ("evaluate", "--data", "LINES", "--json"),
)
LINES = "a man rides a horse .\nthe day is long\n12 and 7\n"
# Keys for records from before these commands were renamed.
KEYS = {
    "evaluate --per-line --data LINES --json": "score --input LINES --json",
    "evaluate --per-line --source LINES --target LINES --json": "score --source LINES --target LINES --json",
}
# Values that depend on time or folders, not on the model.
UNSTEADY = re.compile(r'"[a-z_]*(?:seconds|per_second|milliseconds|path|folder|run|model|signature)": [^,}\n]*')


def answer(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run one command in this process and return exit code and stdout, with stderr if it failed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    text = UNSTEADY.sub("", out.getvalue()).replace(str(folder), "FOLDER")
    return {"code": code, "out": text} | ({"err": err.getvalue().replace(str(folder), "FOLDER")} if code else {})


def trained_model(recipe: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train a recipe for a few steps and return {command: answer, "weights": SHA-256}."""
    run, lines = folder / "run", folder / "lines.txt"
    lines.write_text(LINES)
    settings = (*COMMON, *LENGTH, *SMALLER.get(recipe, ()), f"training.seed={seed}")
    sets = [part for setting in settings for part in ("--set", setting)]
    results = {"train": answer(["train", recipe, "--out", str(run), *sets], folder)}
    if results["train"]["code"]:
        return results
    results["train"].pop("out")  # contains speeds
    for verb, *rest in VERBS:
        arguments = [str(lines) if argument == "LINES" else argument for argument in rest]
        command = " ".join((verb, *rest))
        results[KEYS.get(command, command)] = answer([verb, str(run), *arguments], folder)
    weights = hashlib.sha256((run / "last" / "model.safetensors").read_bytes()).hexdigest()
    return results | {"weights": weights}


def record(recipes: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield the key and the result of each recipe and seed, each run in a separate process."""
    for recipe in recipes:
        for seed in seeds:
            command = [sys.executable, "-m", "tests.golden.golden", "one", recipe, str(seed)]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = process.stdout.splitlines()
            yield (
                f"{recipe} {seed}",
                json.loads(lines[-1]) if process.returncode == 0 else {"crashed": process.stderr[-2000:]},
            )


def differences(before: dict[str, Any], after: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yield paths at which two recorded trees differ."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{at}{key}: ")
        elif old != new:
            yield f"{at}{key}: was {str(old)[:200]!r}, is {str(new)[:200]!r}"


def command_line() -> int:
    """Run the program and return 1 if results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare", "one"))
    parser.add_argument("file", help="JSON file, or with `one` the name of a recipe")
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--recipes", nargs="+", default=None)
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    options = parser.parse_args()
    if options.what == "one":
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(trained_model(options.file, options.seed, Path(folder))))
        return 0
    after: dict[str, Any] = {}
    for key, results in record(options.recipes or recipes_from_scratch(), options.seeds):
        print(key, results.get("weights", "no weights"), file=sys.stderr)
        after[key] = results
        if options.what == "record":
            Path(options.file).write_text(json.dumps(after, indent=1))
    if options.what == "record":
        return 0
    before = {key: value for key, value in json.loads(Path(options.file).read_text()).items() if key in after}
    differing = list(differences(before, after))
    print("\n".join(differing) or f"equal: {len(after)} runs")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(command_line())

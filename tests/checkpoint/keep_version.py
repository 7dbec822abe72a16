"""Keep two small unfinished runs of this version, which the tests of all later versions open and resume.

    python tests/checkpoint/keep_version.py tests/checkpoint/version_0_1

Until version 0.1.0 is released, run it again if a key of recipes is renamed. A released folder is never written again:
the next version that changes a format gets its own.
"""

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from tercet.cli.main import main

STEPS = 4
TEXT = "".join(f"{n} times {m} is {n * m}.\n" for n in range(3, 9) for m in range(2, 8))
PAIRS = "".join(f"{n} and {m}\t{m} und {n}\n" for n in range(10) for m in range(10))
STACK = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
TRAINING = {
    "max_steps": STEPS, "validate_every": 2, "precision": "fp32", "compile": "never", "accelerator": "cpu",
    "optimizer": {"kind": "adamw", "lr": 0.01},
}  # fmt: skip
RECIPES = {
    "text": {
        "task": {"kind": "language", "batch_size": 8, "micro_batch_size": 4, "sample_tokens": 6},
        "data": {
            "source": "data.txt",
            "validation": {"kind": "tail", "fraction": 0.1},
            "tokenizer": {"kind": "characters", "eos": True},
        },
        "model": {"preset": "gpt2", "max_len": 8, "stack": STACK},
        "training": TRAINING,
    },
    "pairs": {
        "task": {"kind": "translation", "batch_tokens": 64},
        "data": {
            "source": "data.tsv",
            "validation": {"kind": "drawn", "count": 8},
            "tokenizer": {"kind": "characters"},
        },
        "model": {"preset": "transformer-tiny", "max_len": 16, "encoder": STACK, "decoder": STACK},
        "training": TRAINING,
    },
}
DATA = {"text": ("data.txt", TEXT), "pairs": ("data.tsv", PAIRS)}
COMMANDS = {
    "text": ("generate run --prompt 3 --max-new-tokens 8 --temperature 0 --json", "evaluate run --json"),
    "pairs": ("translate run 3 --json", "evaluate run --json"),
}


def answer(command: str) -> str:
    """Run a command in this process, and return its stdout."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(command.split())
    assert code == 0, command
    return out.getvalue()


def keep(folder: Path) -> None:
    for kind, recipe in RECIPES.items():
        place = folder / kind
        place.mkdir(parents=True)
        os.chdir(place)
        name, text = DATA[kind]
        Path(name).write_text(text, encoding="utf-8")
        Path("recipe.yaml").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
        answer("train recipe.yaml --out run --quiet")
        answers = {command: answer(command) for command in COMMANDS[kind]}
        Path("answers.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
        Path("run/loss.png").unlink(missing_ok=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]).absolute())

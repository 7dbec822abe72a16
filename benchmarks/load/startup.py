"""How long it takes until something happens, as ratios to `import torch`.

    python benchmarks/load/startup.py                   # this checkout
    python benchmarks/load/startup.py --src PATH/src    # and another one's sources in the same run

Every measurement is a fresh process. They take turns, so that a busy machine is as busy for each; the figure is the
median of processor seconds (user and system) over the rounds, beside that of the wall clock. Imports end where the
statement does; commands where the process does. Each is run once first, for the compiled modules.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parents[2] / "src"
IMPORTS = {
    "import tercet": "import tercet",
    "tercet.load": "import tercet; tercet.load",
    "tercet.train": "import tercet; tercet.train",
    "first token": "import tercet; next(tercet.load('model').stream('to be', max_new_tokens=1))",
}
COMMANDS = [
    "--help", "train --help", "recipes", "train nosuch", "train nosuch.yaml", "train demo --data no.txt",
    "train numbers --source no.de --target no.en", "train demo --set training.max_stepz=5",
    "train demo --set training.max_steps=-5", "train demo --out taken", "train demo --pretrained nosuch",
    "generate nosuch", "generate model --temperature -1", "translate nosuch", "translate model --beam 0",
    "fill nosuch text", "embed nosuch --output x.npz", "classify nosuch", "evaluate nosuch", "score nosuch",
    "serve nosuch", "explore nosuch", "convert nosuch out", "data nosuch.txt", "inspect nosuch",
]  # fmt: skip


class Seconds(NamedTuple):
    processor: float
    wall: float


def measure(arguments: list[str], src: Path, folder: Path) -> Seconds:
    """One process from its start to its end."""
    environment = {**os.environ, "PYTHONPATH": str(src)}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 2):
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return Seconds(used.ru_utime + used.ru_stime, time.perf_counter() - started)


def statement(text: str) -> list[str]:
    """Ends with the statement: to take a process with torch down takes long, and nobody waits for it."""
    return ["-c", f"import os; {text}; os._exit(0)"]


def make_model(folder: Path) -> None:
    from tercet.checkpoint import Card, save_model
    from tercet.models import build
    from tercet.models.presets import model_spec
    from tercet.tokens import Characters, Tokenizer

    tokenizer = Tokenizer.train(Characters(), ["to be or not to be"])
    sizes = {"preset": "gpt2", "vocab_size": tokenizer.vocab_size, "max_len": 256}
    model = build(model_spec({**sizes, "stack": {"d_model": 96, "n_layers": 2, "n_heads": 3}}, name="model"))
    save_model(folder, model, tokenizer, Card())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--src", type=Path, action="append", default=[], help="sources to compare with")
    parser.add_argument("--only", metavar="WORDS", help="what has these words in its name")
    args = parser.parse_args()
    sources = [src.resolve() for src in (HERE, *args.src)]
    programs = {name: statement(text) for name, text in IMPORTS.items()}
    programs |= {f"tercet {command}": ["-m", "tercet", *command.split()] for command in COMMANDS}
    if args.only is not None:
        programs = {name: program for name, program in programs.items() if args.only in name}
    taken: dict[tuple[str, Path], list[Seconds]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        (folder / "taken").mkdir()
        (folder / "taken/file").write_text("text")
        for number in range(args.rounds + 1):
            turns = [("import torch", statement("import torch"), HERE)]
            turns += [(name, program, src) for name, program in programs.items() for src in sources]
            for name, program, src in turns:
                seconds = measure(program, src, folder)
                if number:
                    taken.setdefault((name, src), []).append(seconds)
    torch = statistics.median(seconds.processor for seconds in taken["import torch", HERE])
    for (name, src), seconds in taken.items():
        processor, wall = (statistics.median(column) for column in zip(*seconds, strict=True))
        ratio = round(processor / torch, 2)
        print(json.dumps({"what": name, "src": str(src), "ratio": ratio, "processor": processor, "wall": wall}))


if __name__ == "__main__":
    main()

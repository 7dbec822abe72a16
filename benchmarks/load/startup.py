"""Startup times of imports and commands, as ratios to `import torch`.

    python benchmarks/load/startup.py                   # this checkout
    python benchmarks/load/startup.py --src PATH/src    # and another checkout's sources in the same run

Every measurement is a new process. They alternate, so that the load of the machine is similar for each. The result is
the median of processor seconds (user and system) over the rounds, next to that of the wall clock. Imports end with the
statement, commands with the process. Each is run once first, to compile its modules.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

OWN_SOURCE = Path(__file__).parents[2] / "src"
IMPORTS = {
    "import tercet": "import tercet",
    "tercet.load": "import tercet; tercet.load",
    "tercet.train": "import tercet; tercet.train",
    "first token": "import tercet; next(tercet.load('model').stream('to be', max_new_tokens=1))",
}
COMMANDS = ["--help", "train --help", "recipes"]
# Errors of every verb that need no tensor: a command, and words of its one line. Torch is not imported for it
# (`tests/test_startup.py`), and it takes at most 0.4 s on an idle machine.
REFUSALS = {
    "train nosuch": "unknown recipe 'nosuch'",
    "train nosuch.yaml": "no such file: nosuch.yaml",
    "train broken.yaml": "broken.yaml line 2: not valid YAML",
    "train demo --data no.txt": "no such file or folder: no.txt",
    "train demo --pretrained nosuch": "no such folder: nosuch",
    "train demo --pretrained taken": "no model in taken",
    "train numbers --data no.txt": "pass --source F --target F",
    "train numbers --source no.de --target no.en": "no such file or folder: no.de",
    "train classify-docstrings --set data.source=no.jsonl": "no.jsonl",
    "train demo --set nokey": "expected key=value",
    "train demo --set training.max_stepz=5": "did you mean 'training.max_steps'?",
    "train demo --set training.max_steps=-5": "training.max_steps=-5 must be at least 1",
    "train demo --set training.max_steps=many": "training.max_steps: input should be a valid integer",
    "train demo --set model.stack.position=rotory": "did you mean 'rotary'?",
    "train demo --set training.optimizer=muom": "did you mean 'muon'?",
    "train demo --set task.masking.rate=2": "unknown key 'masking'",
    "train demo --out taken": "taken is not empty and contains no run",
    "train demo --out taken/file": "is a file",
    "train demo --out other": "other contains a run with other settings",
    "train animals --out run": "run is in use by",
    "train animals --restart --from-weights": "exclude each other",
    "train nosuch --plan": "unknown recipe 'nosuch'",
    "train demo --plan --gpus 8xH10": "did you mean 'H100'?",
    "train demo --plan --gpus 8xH100 --price -1": "--price=-1.0 must be at least 0",
    "train demo --plan --measured nosuch": "--measured nosuch: not a run folder",
    "check no.txt": "no such file or folder: no.txt",
    "generate nosuch": "no such folder: nosuch",
    "generate taken": "no model in taken",
    "generate taken/file": "taken/file is a file",
    "generate nosuch --prompt @no.txt": "no such folder: nosuch",
    "generate nosuch --device nosuch": "unknown device: nosuch",
    "generate taken --temperature -1": "argument --temperature: -1.0 must be at least 0",
    "chat nosuch": "no such folder: nosuch",
    "chat taken": "no model in taken",
    "chat nosuch --temperature -1": "argument --temperature: -1.0 must be at least 0",
    "translate nosuch": "no such folder: nosuch",
    "translate nosuch --input no.txt": "--input no.txt: cannot read it",
    "translate nosuch --beam 0": "argument --beam: 0 must be at least 1",
    "fill nosuch text": "no such folder: nosuch",
    "fill nosuch text --top 0": "argument --top: 0 must be at least 1",
    "embed nosuch --output x.npz": "no such folder: nosuch",
    "embed nosuch --output x.npz --input no.txt": "--input no.txt: cannot read it",
    "embed nosuch --output x.nosuch": "must end in one of .npz",
    "embed nosuch --query text --input no.txt": "--input no.txt: cannot read it",
    "embed nosuch --query text --vectors no.npz": "no such folder: nosuch",
    "embed nosuch --query text": "--query searches one file",
    "classify nosuch": "no such folder: nosuch",
    "classify nosuch --input no.txt": "--input no.txt: cannot read it",
    "evaluate nosuch": "no such folder: nosuch",
    "evaluate taken": "no model in taken",
    "evaluate nosuch --compare no.json": "--compare no.json: cannot read it",
    "evaluate nosuch --beam 0": "argument --beam: 0 must be at least 1",
    "evaluate nosuch --per-line": "no such folder: nosuch",
    "evaluate nosuch --per-line --data no.txt": "--data no.txt: cannot read it",
    "errors nosuch": "no such folder: nosuch",
    "errors taken": "no model in taken",
    "errors nosuch --top 0": "argument --top: 0 must be at least 1",
    "errors nosuch --min-length 3 --max-length 2": "--min-length 3 exceeds --max-length 2",
    "errors nosuch --html nosuch/x.html": "no such folder: nosuch",
    "errors nosuch --target no.en": "--target no.en requires --source",
    "errors nosuch --encoding latin-1": "--encoding requires --data or --source",
    "compare nosuch demo": "no such recipe or run: 'nosuch'",
    "compare nosuch.yaml demo": "no such file: nosuch.yaml",
    "compare animals demo --data no.txt": "no such file or folder: no.txt",
    "compare demo --vary nokey": "expected key=value,value",
    "compare demo --vary training.max_stepz=1,2": "did you mean 'training.max_steps'?",
    "compare demo --seeds x": "expected seeds such as 1,2,3",
    "compare demo animals --out taken": "taken is not empty and contains no comparison",
    "sweep nosuch --vary training.seed=1,2": "no such recipe or run: 'nosuch'",
    "sweep demo": "nothing to vary; pass --vary",
    "sweep demo --vary training.optimizer.lr=0.1..0.01": "low < high",
    "sweep demo --sampler random --vary training.optimizer.lrr=0.1..0.2": "did you mean 'training.optimizer.lr'?",
    "sweep demo --sampler random --vary training.optimizer.lr=0.1..0.2 --data no.txt": "no such file or folder: no.txt",
    "sweep demo --sampler random --vary training.optimizer.lr=0.1..0.2 --out taken": "contains no sweep",
    "inspect nosuch": "no folder, preset or recipe is called 'nosuch'",
    "inspect nosuch.yaml": "no such file: nosuch.yaml",
    "inspect taken": "no model in taken",
    "inspect nosuch --prompt text": "no folder, preset or recipe is called 'nosuch'",
    "inspect gpt2 --prompt text": "gpt2 has no weights",
    "explore nosuch": "no such folder: nosuch",
    "serve nosuch": "no such folder: nosuch",
    "serve nosuch --port x": "argument --port: invalid int value",
    "plot nosuch loss": "no such folder: nosuch",
    "plot taken all": "no model in taken",
    "plot nosuch nosuch": "unknown picture 'nosuch'",
    "plot nosuch loss --out x.nosuch": "a picture's name ends in",
    "plot mask --out x.png": "did you mean `tercet plot masks`?",
    "plot model nosuch --out x.png": "no folder, preset or recipe is called 'nosuch'",
    "plot attention nosuch.yaml --out x.png": "no such file: nosuch.yaml",
    "plot positions --out nosuch/x.png": "no such folder: nosuch",
    "watch nosuch": "no such folder: nosuch",
    "watch nosuch --export x.html": "no such folder: nosuch",
    "watch taken --export x.html": "no model in taken",
    "watch nosuch --export nosuch/x.html": "no such folder: nosuch",
    "convert nosuch out": "no such folder: nosuch",
    "convert taken out": "no model in taken",
    "doctor --verify nosuch": "no such folder: nosuch",
    "doctor --verify taken": "taken has no run.json and no manifest.json",
    "doctor nosuch": "unknown recipe 'nosuch'",
    "recipes nosuch": "unknown recipe 'nosuch'",
    "learn start 99": "unknown exercise: 99",
    "learn start 1 --to taken/file": "not a folder: taken/file",
    "learn check 99": "unknown exercise: 99",
    "learn check 1": "write it with `tercet learn start 1`",
    "learn check 1 no.py": "no such file: no.py",
    "learn check 1 broken.yaml": "broken.yaml line",
    "data nosuch": "no dataset, file or folder is called 'nosuch'",
    "data nosuch.txt": "no such file or folder: nosuch.txt",
    "data nosuch.tsv": "no such file or folder: nosuch.tsv",
    "data nosuch.csv": "no such file or folder: nosuch.csv",
    "data taken/file --encoding nosuch": "--encoding: unknown encoding 'nosuch'",
}


class Seconds(NamedTuple):
    processor: float
    wall: float


def measure(arguments: list[str], src: Path, folder: Path) -> Seconds:
    """Measure one process from its start to its end."""
    environment = {**os.environ, "PYTHONPATH": str(src)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 2):
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return Seconds(used.ru_utime + used.ru_stime, time.perf_counter() - start)


def statement(text: str) -> list[str]:
    """Return the arguments of a process that exits after the statement, without the slow teardown of torch."""
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


@contextmanager
def places(folder: Path) -> Generator[None]:
    """Create the files that the failing commands name, in `folder`.

    These are a folder with other files in it, an invalid YAML file, and two runs of `animals`, one of which is locked
    by another process.
    """
    from tercet.settings_yaml import write_yaml
    from tercet.storage import lock_folder
    from tercet.training import load_recipe

    (folder / "taken").mkdir()
    (folder / "taken/file").write_text("text")
    (folder / "broken.yaml").write_text("task: [language\n")
    for name in ("run", "other"):
        (folder / name).mkdir()
        (folder / name / "recipe.yaml").write_text(write_yaml(load_recipe("animals")))
    with lock_folder(folder / "run"):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--src", type=Path, action="append", default=[], help="sources to compare with")
    parser.add_argument("--only", metavar="WORDS", help="only measurements with these words in their names")
    args = parser.parse_args()
    sources = [src.resolve() for src in (OWN_SOURCE, *args.src)]
    programs = {name: statement(text) for name, text in IMPORTS.items()}
    programs |= {f"tercet {command}": ["-m", "tercet", *command.split()] for command in (*COMMANDS, *REFUSALS)}
    if args.only is not None:
        programs = {name: program for name, program in programs.items() if args.only in name}
    measurements: dict[tuple[str, Path], list[Seconds]] = {}
    with tempfile.TemporaryDirectory() as name, places(folder := Path(name)):
        make_model(folder / "model")
        for number in range(args.rounds + 1):
            turns = [("import torch", statement("import torch"), OWN_SOURCE)]
            turns += [(name, program, src) for name, program in programs.items() for src in sources]
            for name, program, src in turns:
                seconds = measure(program, src, folder)
                if number:
                    measurements.setdefault((name, src), []).append(seconds)
    torch = statistics.median(seconds.processor for seconds in measurements["import torch", OWN_SOURCE])
    for (name, src), seconds in measurements.items():
        processor, wall = (statistics.median(column) for column in zip(*seconds, strict=True))
        ratio = round(processor / torch, 2)
        print(json.dumps({"what": name, "src": str(src), "ratio": ratio, "processor": processor, "wall": wall}))


if __name__ == "__main__":
    main()

"""Startup times: the help, an import, the first token from a folder; each in a new process."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

from benchmarks.speed.contender import Contender, Function
from benchmarks.speed.row import Asked, Lineup, Row
from benchmarks.speed.words import trained_model

from tercet.checkpoint import convert
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec

THEIRS = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
ids = tokenizer("w5 w7 w11", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, do_sample=False, max_new_tokens=1)[0]))
"""


def start(command: Sequence[str]) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise RuntimeError(f"{' '.join(command)[:60]} ended with {done.returncode}: {told}")


def starting(name: str, side: str, command: Sequence[str], setup: Callable[[], None] | None = None) -> Contender:
    def work(n: int) -> float:
        for _ in range(n):
            start(command)
        return n

    return Function(name, side, work, setup=setup)  # pyright: ignore[reportArgumentType]


def help(asked: Asked) -> Lineup:
    found = Lineup()
    found.add(starting("tercet --help", "ours", ["-m", "tercet", "--help"]))
    found.add(starting("python only", "limit", ["-c", "pass"]))
    if find_spec("transformers") and asked.scale != "tiny":
        found.add(starting("transformers --help", "readme", ["-m", "transformers.cli.transformers", "--help"]))
    return found


def imports(asked: Asked) -> Lineup:
    found = Lineup()
    found.add(
        starting("import tercet, a model", "ours", ["-c", "import tercet; from tercet.models import DecoderOnly"])
    )
    found.add(starting("import torch", "limit", ["-c", "import torch"]))
    if find_spec("transformers") and asked.scale != "tiny":
        found.add(
            starting("import transformers, a model", "readme", ["-c", "from transformers import GPT2LMHeadModel"])
        )
    return found


def first_token(asked: Asked) -> Lineup:
    layers, width = (2, 24) if asked.scale == "tiny" else (6, 384)
    spec = DecoderOnlySpec(
        vocab_size=1000, max_len=64, stack=StackSpec(n_layers=layers, d_model=width, n_heads=width // 12)
    )
    ours, theirs = asked.folder / "start-ours", asked.folder / "start-theirs"

    def write() -> None:
        if not theirs.exists():
            trained_model(DecoderOnly(spec, seed=1), ours)
            convert(ours, theirs, "hf")

    found = Lineup()
    ask = [
        "-m",
        "tercet",
        "generate",
        str(ours),
        "--prompt",
        "w5 w7 w11",
        "--max-new-tokens",
        "1",
        "--temperature",
        "0",
    ]
    found.add(starting("tercet generate", "ours", ask, write))
    if find_spec("transformers"):
        found.add(starting("transformers, from_pretrained", "readme", ["-c", THEIRS, str(theirs)], write))
    else:
        found.leave_out("transformers", "the package transformers is not installed")
    return found


START_UP = [
    Row(name=f"start-up-{name}", title=title, lineup=partial(lineup), unit="starts", seconds_each=True, memory=False)
    for name, title, lineup in (
        ("help", "`tercet --help`, seconds", help),
        ("import", "The first import, seconds", imports),
        ("token", "From a command to the first token of a model folder, seconds", first_token),
    )
]

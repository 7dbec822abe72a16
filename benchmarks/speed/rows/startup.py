"""Startup times: the help, an import, the first token from a folder; each in a new process."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

from benchmarks.speed.contender import Contender, Function
from benchmarks.speed.row import Lineup, Options, Row
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
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise RuntimeError(f"{' '.join(command)[:60]} ended with {process.returncode}: {last_line}")


def starting(name: str, side: str, command: Sequence[str], setup: Callable[[], None] | None = None) -> Contender:
    def work(n: int) -> float:
        for _ in range(n):
            start(command)
        return n

    return Function(name, side, work, setup=setup)  # pyright: ignore[reportArgumentType]


def help(options: Options) -> Lineup:
    lineup = Lineup()
    lineup.add(starting("tercet --help", "ours", ["-m", "tercet", "--help"]))
    lineup.add(starting("python only", "limit", ["-c", "pass"]))
    if find_spec("transformers") and options.scale != "tiny":
        lineup.add(starting("transformers --help", "readme", ["-m", "transformers.cli.transformers", "--help"]))
    return lineup


def imports(options: Options) -> Lineup:
    lineup = Lineup()
    lineup.add(
        starting("import tercet, a model", "ours", ["-c", "import tercet; from tercet.models import DecoderOnly"])
    )
    lineup.add(starting("import torch", "limit", ["-c", "import torch"]))
    if find_spec("transformers") and options.scale != "tiny":
        lineup.add(
            starting("import transformers, a model", "readme", ["-c", "from transformers import GPT2LMHeadModel"])
        )
    return lineup


def first_token(options: Options) -> Lineup:
    layers, width = (2, 24) if options.scale == "tiny" else (6, 384)
    spec = DecoderOnlySpec(
        vocab_size=1000, max_len=64, stack=StackSpec(n_layers=layers, d_model=width, n_heads=width // 12)
    )
    ours, theirs = options.folder / "start-ours", options.folder / "start-theirs"

    def write() -> None:
        if not theirs.exists():
            trained_model(DecoderOnly(spec, seed=1), ours)
            convert(ours, theirs, "hf")

    lineup = Lineup()
    command = [
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
    lineup.add(starting("tercet generate", "ours", command, write))
    if find_spec("transformers"):
        lineup.add(starting("transformers, from_pretrained", "readme", ["-c", THEIRS, str(theirs)], write))
    else:
        lineup.leave_out("transformers", "the package transformers is not installed")
    return lineup


START_UP = [
    Row(name=f"start-up-{name}", title=title, lineup=partial(lineup), unit="starts", seconds_each=True, memory=False)
    for name, title, lineup in (
        ("help", "`tercet --help`, seconds", help),
        ("import", "The first import, seconds", imports),
        ("token", "From a command to the first token of a model folder, seconds", first_token),
    )
]

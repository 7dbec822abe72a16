"""The next commands that training prints work as printed, for every recipe and for texts in any alphabet."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from next_commands import DECODER, QUICK, ROWS, STACK, next_lines, run_line, train

from tercet.training import recipe_names

PAIRS = [
    *QUICK, f"model.encoder={STACK}", f"model.decoder={STACK}", "task.batch_tokens=64", "task.micro_batch_tokens=64",
    "task.validation_sentences=2", "data.validation={kind: drawn, count: 9}", "model.max_len=32",
]  # fmt: skip
TUNING_KEYS = [*QUICK, *ROWS, "model.max_len=32"]
DRAWS = np.random.default_rng(5)
PROSE = "".join(f"The {n}th line says that {n} is followed by {n + 1}.\n\n" for n in range(300))
LABELS = "text,label\n" + "".join(f"it is {n} of {n % 7},{'odd' if n % 2 else 'even'}\n" for n in range(200))
CHATS = "prompt,response\n" + "".join(f"what follows {n}?,it is {n + 1}\n" for n in range(60))
GERMAN = "".join(f"ein Haus und {n} Hunde\ta house and {n} dogs\n" for n in range(200))
NUMBERS = "".join(f'{{"text": "{n} lines", "label": {n}.5}}\n' for n in range(100))
LISTS = ("[]", '["even"]', '["even", "small"]')
SETS = "".join(f'{{"text": "{n} lines", "label": {LISTS[n % 3]}}}\n' for n in range(100))
QUERIES = "query,document\n" + "".join(f"the {n}th line,it says {n}\n" for n in range(100))
FILES = {
    "prose.txt": PROSE, "labels.csv": LABELS, "chat.csv": CHATS, "pairs.tsv": GERMAN, "numbers.jsonl": NUMBERS,
    "sets.jsonl": SETS, "queries.csv": QUERIES,
}  # fmt: skip
SMALL_WORDPIECE = "data.tokenizer.vocab_size=300"
# Flags (apart from --set) and keys for each recipe. Recipes that are not listed train on shakespeare or prose.
RECIPE_ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "animals": ([], [*DECODER, "model.max_len=20", "model.stack.d_ff=16"]),
    "induction": ([], DECODER),
    "numbers": ([], [*PAIRS, "data.validation={kind: drawn, count: 100}"]),
    "classify-docstrings": (["--data", "labels.csv"], [*QUICK, *ROWS, SMALL_WORDPIECE]),
    "classify-docstring-code": (["--data", "sets.jsonl"], [*QUICK, *ROWS, SMALL_WORDPIECE]),
    "regress-docstring-lines": (["--data", "numbers.jsonl"], [*QUICK, *ROWS, SMALL_WORDPIECE]),
    "finetune-lm": (["--data", "prose.txt", "--pretrained", "runs/demo"], TUNING_KEYS),
    "finetune-chat": (["--data", "chat.csv", "--pretrained", "runs/demo"], [*TUNING_KEYS, "model.max_len=64"]),
    "finetune-mlm": (["--data", "prose.txt", "--pretrained", "runs/bert-python-docs"], TUNING_KEYS),
    "finetune-classify": (["--data", "labels.csv", "--pretrained", "runs/bert-python-docs"], TUNING_KEYS),
    "vectors-docstrings": (["--data", "queries.csv"], [*QUICK, "task.batch_size=8", SMALL_WORDPIECE]),
    "rerank-docstrings": (["--data", "queries.csv"], [*QUICK, *ROWS, SMALL_WORDPIECE]),
    "finetune-vectors": (
        ["--data", "queries.csv", "--pretrained", "runs/bert-python-docs"],
        [*QUICK, "task.batch_size=8", "model.max_len=32"],
    ),
    "finetune-translate": (
        ["--source", "pairs.tsv", "--pretrained", "runs/multi30k-de-en"],
        [*QUICK, "model.max_len=32", "task.batch_tokens=64", "task.micro_batch_tokens=64"],
    ),
}
# One recipe for each kind of task; the other recipes are exhaustive tests.
KINDS_OF_RECIPE = (
    "finetune-chat",
    "multi30k-de-en",
    "vectors-docstrings",
)
TRANSLATORS = ("grokking", "multi30k-de-en", "multi30k-en-de", "wmt14-en-de-base")
KINDS_OF_TEXT = {
    "dna": ("".join(DRAWS.choice(list("ACGT"), 4000)), "nanogpt-cpu"),
    "digits": ("\n".join(map(str, DRAWS.integers(10**9, 10**10, 400))), "nanogpt-cpu"),
    "dashes": ("".join(f"-{n} - -x\n" for n in range(900)), "nanogpt-cpu"),
    "quotes": ("".join(f'it\'s `{n}` $HOME "{n}"\n' for n in range(500)), "demo"),
    "chinese": ("天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。\n" * 200, "demo"),
    "tabs": ("".join(f"\t{n}\t\tif x:\n" for n in range(600)), "nanogpt-cpu"),
    "masked-dna": ("".join(DRAWS.choice(list("ACGT"), 4000)), "bert-shakespeare"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _enter_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    monkeypatch.chdir(place)


def train_recipe(name: str) -> None:
    if name in RECIPE_ARGUMENTS:
        flags, keys = RECIPE_ARGUMENTS[name]
    elif name in TRANSLATORS:
        small = "vocab_size: 300, prefix_space: true"
        kind = f"{{kind: words, {small}, min_count: 1}}" if name == "grokking" else f"{{kind: bpe, {small}}}"
        tokenizer_changes = [f"data.source_tokenizer={kind}"] if name == "grokking" else []
        flags, keys = ["--source", "pairs.tsv"], [*PAIRS, f"data.tokenizer={kind}", *tokenizer_changes]
    else:
        vocabulary = ["data.tokenizer.vocab_size=350"] if "vocab_size" in _recipe_text(name) else []
        if name == "original-decoder":  # its own tokenizer is a package or a download
            vocabulary = ["data.tokenizer={kind: bpe, vocab_size: 350}"]
        flags = ["--data", "prose.txt", "--documents", "line"]
        keys = [*DECODER, "model.max_len=32", "logging.tracker=none", *vocabulary]
    if "--pretrained" in flags:
        base_recipe = Path(flags[-1]).name
        if not Path(flags[-1]).is_dir():
            train_recipe(base_recipe)
    train(name, flags, keys)


def _recipe_text(name: str) -> str:
    from tercet.training import recipe_text

    return recipe_text(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in KINDS_OF_RECIPE else pytest.mark.exhaustive) for name in recipe_names()],
)
def test_next_commands_of_recipes_work(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_recipe(name)
    lines = next_lines(capsys.readouterr().out)
    report = f"tercet watch runs/{name} --export runs/{name}/report.html"
    assert lines[-3:] == [f"tercet evaluate runs/{name}", f"tercet inspect runs/{name}", report]
    assert len(lines) > 2
    for line in lines:
        run_line(line, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in ("dashes", "quotes") else pytest.mark.exhaustive)
        for kind in KINDS_OF_TEXT
    ],
)
def test_prompt_of_next_command_is_from_the_data(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, recipe = KINDS_OF_TEXT[kind]
    Path(f"{kind}.txt").write_text(text)
    keys = [*DECODER, "model.max_len=32"]
    if recipe == "demo":
        keys.append("data.tokenizer.vocab_size=300")
    if recipe == "bert-shakespeare":
        keys = [*keys, "data.tokenizer={kind: characters, bos: true, pad: true, mask: true}"]
    train(recipe, ["--data", f"{kind}.txt", "--out", f"runs/{kind} 1"], keys)
    first = next_lines(capsys.readouterr().out)[0]
    _, _, run, *words = shlex.split(first)
    assert run == f"runs/{kind} 1"  # quoted, as it has a space
    if words:
        parts = re.split(r"\[MASK\]|<mask>", words[0])
        assert "".join(parts).strip()
        assert all(part.strip() in text for part in parts)
    else:
        assert kind in ("tabs", "dashes")  # a text that starts like a flag is not printed
    run_line(first, monkeypatch)


@pytest.mark.slow
def test_next_commands_run_in_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """The assumptions of `run_line` are checked once with a shell and the real program."""
    Path("shell.txt").write_text("".join(f'it\'s `{n}` $HOME "{n}" & so on\n' for n in range(500)))
    keys = [*DECODER, "model.max_len=32", "data.tokenizer.vocab_size=300"]
    train("demo", ["--data", "shell.txt", "--out", "runs/a shell's"], keys)
    script = next_lines(capsys.readouterr().out)[0]  # its prompt and folder need every kind of quote
    program = f'tercet() {{ {shlex.quote(sys.executable)} -m tercet "$@"; }}\n'
    completed = subprocess.run(
        ["sh", "-e", "-c", program + script], capture_output=True, text=True, env=dict(os.environ)
    )
    assert completed.returncode == 0, completed.stderr
    assert "it's `" in completed.stdout

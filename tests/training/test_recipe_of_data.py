"""Data instead of a recipe: the chosen recipe, its changed settings, and invalid data."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.cli.main import main
from tercet.config import UserError, to_plain
from tercet.data.datasets.recognize import describe_fields, recognize
from tercet.settings_yaml import write_yaml
from tercet.training.recipe.files import read_settings, recipe_names
from tercet.training.recipe.for_data import is_data
from tercet.training.recipe.recipe import task_kind
from tercet.training.request import RunRequest, choose_folder, find_run, resolve

DNA = "".join(np.random.default_rng(1).choice(list("ACGT"), 3000))
LABELS = "text,label\n" + "".join(f"it is {n},{'odd' if n % 2 else 'even'}\n" for n in range(99))
FILES = {
    "prose.txt": "It was a dark and stormy night.\n" * 50,
    "dna.txt": DNA,
    "genome.fa": f">one\n{DNA}\n",
    "pairs.tsv": "ein Haus\ta house\n" * 50,
    "labels.csv": LABELS,
    "families.fa": "".join(f">s{n} family={'xy'[n % 2]}\n{DNA[n : n + 50]}\n" for n in range(40)) + ">bad\nA9\n",
    "sites.csv": "text,label\n" + "".join(f"{DNA[n : n + 120]},{'ab'[n % 2]}\n" for n in range(40)),
    "numbers.jsonl": '{"text": "so", "label": 1.5}\n' * 9,
    "sets.jsonl": '{"text": "so", "label": ["a", "b"]}\n' * 9,
    "chat.csv": "prompt,response\nwho,me\n",
    "texts/one.txt": "It was a dark and stormy night.\n",
    "empty/none.bak": "",
    "run/metrics.csv": "step\n1\n",
    "bert-model/config.json": "{}",
    "bert-model/vocab.txt": "the\n",
    "run/samples/step-1.txt": "It was",
}


@pytest.fixture(autouse=True)
def _run_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).write_text(text)


def chosen_recipe(name: str, **request: Any) -> dict[str, Any]:
    return to_plain(resolve(RunRequest(recipe=name, **request)).recipe)


@pytest.mark.parametrize(
    ("name", "kind", "keys"),
    [
        ("prose.txt", "language", {"tokenizer.kind": "bpe"}),
        ("dna.txt", "language", {"tokenizer.kind": "characters"}),
        ("genome.fa", "language", {"tokenizer.kind": "characters"}),
        ("texts", "language", {"tokenizer.kind": "bpe"}),
        ("pairs.tsv", "translation", {"tokenizer.vocab_size": 4000}),
        ("labels.csv", "labels", {"problem_type": "single_label_classification"}),
        ("sites.csv", "labels", {"tokenizer.kind": "characters"}),
        ("labels.csv", "labels", {"tokenizer.kind": "wordpiece"}),
        ("sets.jsonl", "labels", {"problem_type": "multi_label_classification"}),
        ("numbers.jsonl", "labels", {"problem_type": "regression"}),
    ],
)
def test_the_recipe_suits_the_data(name: str, kind: str, keys: dict[str, Any]) -> None:
    assert is_data(name)
    assert find_run(name) is None
    recipe = chosen_recipe(name)
    assert recipe["task"]["kind"] == kind
    assert recipe["task"].get("sample_prompt") is None
    assert recipe["data"]["source"] == name
    for key, expected in keys.items():
        found = recipe["data"]
        for part in key.split("."):
            found = found[part]
        assert found == expected, key


def test_user_settings_are_kept() -> None:
    changes = {"data": {"tokenizer": {"kind": "bpe", "vocab_size": 300}}, "task": {"sample_prompt": "It"}}
    recipe = chosen_recipe("dna.txt", changes=changes)
    assert recipe["data"]["tokenizer"]["vocab_size"] == 300
    assert recipe["task"]["sample_prompt"] == "It"
    assert chosen_recipe("chat.csv", changes={"data": {"text_field": "prompt"}})["task"]["kind"] == "language"


def test_two_files_of_sentences() -> None:
    recipe = chosen_recipe("prose.txt", target="dna.txt")
    assert recipe["task"]["kind"] == "translation"
    assert (recipe["data"]["source"], recipe["data"]["target"]) == ("prose.txt", "dna.txt")


def test_conversations_require_a_pretrained_model() -> None:
    with pytest.raises(UserError, match="finetune-chat requires a pretrained model; pass --pretrained"):
        chosen_recipe("chat.csv")


def test_data_given_twice_is_rejected() -> None:
    with pytest.raises(UserError, match=re.escape("prose.txt and dna.txt are both data")):
        chosen_recipe("prose.txt", data="dna.txt")


@pytest.mark.parametrize("name", ["run", "bert-model", "empty", "nowhere.txt", "mine.yaml", "demo", "\0"])
def test_names_that_are_not_data(name: str) -> None:
    Path("demo").mkdir()
    Path("demo", "a.txt").write_text("a")
    assert not is_data(name)
    if name in ("run", "bert-model", "empty"):
        with pytest.raises(UserError, match=f"{name} contains no run"):
            resolve(RunRequest(recipe=name))


@pytest.mark.slow
@settings(max_examples=200)
@given(name=st.text(max_size=30))
def test_any_name_is_data_or_not(name: str) -> None:
    assert is_data(name) == (Path(name).is_file() if "\0" not in name and name else False) or Path(name).is_dir()


def test_packaged_recipes_are_never_data() -> None:
    for name in recipe_names():
        Path(name).write_text("text")
        assert not is_data(name)


def test_the_run_is_named_by_the_file() -> None:
    assert choose_folder(RunRequest(recipe="texts")) == Path("runs/texts")
    assert choose_folder(RunRequest(recipe="some/prose.txt")) == Path("runs/prose")
    Path("pairs.tsv.gz").write_bytes(b"")
    assert choose_folder(RunRequest(recipe="pairs.tsv.gz")) == Path("runs/pairs")


def test_one_line_names_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dna.txt", "--print-config"]) == 0
    output = capsys.readouterr()
    assert output.err == "dna.txt contains text; training with the recipe that `tercet recipes demo` shows\n"
    assert "kind: characters" in output.out
    assert main(["train", "dna.txt", "--print-config", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_labels_in_headers_are_trained_on() -> None:
    data: dict[str, Any] = {"label_field": "family", "sequence_errors": "skip"}
    for keys in (data, {"label_pattern": r"family=(\w)", "sequence_errors": "skip"}):
        recipe = chosen_recipe("families.fa", changes={"data": keys})
        assert recipe["task"]["kind"] == "labels"
        assert recipe["data"]["tokenizer"]["kind"] == "characters"
    fields = describe_fields(recognize("families.fa", label_field="family"))
    assert fields == "the label in 'family' of its headers (--label-field)"
    with pytest.raises(UserError, match="1 of 41 records cannot be read: record 'bad'"):
        chosen_recipe("families.fa", changes={"data": {"label_field": "family"}})
    with pytest.raises(UserError, match=r"label_pattern='\(' is not a regular expression"):
        chosen_recipe("families.fa", changes={"data": {"label_pattern": "("}})


def write_folder(name: str, files: int) -> None:
    Path(name).mkdir()
    for number in range(files):
        Path(name, f"{number:03}.txt").write_text(f"It was night number {number}.\n")


@pytest.mark.slow
def test_a_folder_of_many_documents_is_divided_by_documents() -> None:
    write_folder("nights", 20)
    assert chosen_recipe("nights")["data"]["validation"] == {"kind": "documents", "fraction": 0.1}
    assert chosen_recipe("nights", pretrained=None, changes={"data": {"documents": "line"}})["data"]["validation"][
        "kind"
    ] == "documents"  # fmt: skip
    for changes in ({"validation": {"fraction": 0.2}}, {"validation": {"kind": "tail"}}, {"validation": "similarity"}):
        validation = chosen_recipe("nights", changes={"data": changes})["data"]["validation"]
        assert validation["kind"] == ("similarity" if changes["validation"] == "similarity" else "tail")
    assert chosen_recipe("demo", data="nights")["data"]["validation"]["kind"] == "tail"  # the recipe's own rule
    Path("nights/large.txt").write_text("A long story. " * 1000)  # most of the text is one document
    assert chosen_recipe("nights")["data"]["validation"]["kind"] == "tail"
    write_folder("few", 19)
    assert chosen_recipe("few")["data"]["validation"]["kind"] == "tail"
    Path("few/more.jsonl").write_text('{"text": "one more"}\n' * 20)
    assert chosen_recipe("few")["data"]["validation"]["kind"] == "documents"
    Path("posts.jsonl").write_text('{"text": "a post", "author": "me"}\n' * 30)
    assert chosen_recipe("posts.jsonl")["data"]["validation"]["kind"] == "tail"
    grouped = chosen_recipe("posts.jsonl", changes={"data": {"group_field": "author"}})["data"]
    assert (grouped["validation"]["kind"], grouped["group_field"]) == ("documents", "author")


@pytest.mark.parametrize("kind", ["tail", "documents"])
def test_a_recorded_run_on_a_folder_keeps_its_division(kind: str) -> None:
    write_folder("nights", 20)
    request = RunRequest(recipe="nights", changes={"data": {"validation": {"kind": kind}}})
    Path("runs/nights").mkdir(parents=True)
    Path("runs/nights/recipe.yaml").write_text(write_yaml(resolve(request).recipe))
    assert chosen_recipe("nights")["data"]["validation"]["kind"] == kind
    assert chosen_recipe("nights", out=Path("runs/other"))["data"]["validation"]["kind"] == "documents"
    Path("runs/nights/recipe.yaml").write_text("data: [")  # damaged: reported when the run starts
    assert chosen_recipe("nights")["data"]["validation"]["kind"] == "documents"


@pytest.mark.parametrize("name", recipe_names())
def test_packaged_recipes_for_text_set_their_division(name: str) -> None:
    """So it does not depend on the default for new runs."""
    settings = read_settings(name)
    if task_kind(settings, name=name) in ("language", "masked"):
        assert settings["data"]["validation"]["kind"] in ("tail", "documents", "held_out")

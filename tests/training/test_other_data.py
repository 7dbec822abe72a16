"""Recipes on other data than their own: settings that belong to the data are replaced or reported."""

from pathlib import Path
from typing import Any

import pytest

from tercet.cli.main import main
from tercet.config import find_differences
from tercet.data import HeldOut, HeldOutPairs, Tail, prepare
from tercet.settings_yaml import write_yaml
from tercet.training import load_recipe
from tercet.training.recipe.files import change_settings, read_settings, recipe_names
from tercet.training.recipe.keys import recipe_keys
from tercet.training.recipe.other_data import GENERAL_KEYS, KEPT_KEYS, REPLACED_KEYS, REQUIRED, describe_other_data
from tercet.training.request import RunRequest, resolve

FACTS = "Cats sleep all day. Dogs bark at night. Hens lay eggs.\n"
DECIDED_KEYS = {*REPLACED_KEYS, *KEPT_KEYS, *GENERAL_KEYS}
CHARACTERS = "{kind: characters, bos: true, pad: true, mask: true}"
OTHER_DATA = {"data": {"source": "other.csv"}}


@pytest.fixture(autouse=True)
def _run_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("facts.txt").write_text(FACTS)


def find(settings: Any, path: str) -> Any:
    for key in path.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def test_every_key_of_data_and_task_is_decided_once() -> None:
    keys = {key for key in recipe_keys() if key.startswith(("data.", "task."))}
    assert keys >= DECIDED_KEYS
    assert len(DECIDED_KEYS) == len(REPLACED_KEYS) + len(KEPT_KEYS) + len(GENERAL_KEYS)
    related_keys = {
        key
        for key in keys
        for decided_key in DECIDED_KEYS
        if decided_key == key or key.startswith(f"{decided_key}.") or decided_key.startswith(f"{key}.")
    }
    assert keys - related_keys == set()


@pytest.mark.parametrize("name", recipe_names())
def test_nothing_that_belongs_to_a_recipes_data_is_left(name: str) -> None:
    settings = read_settings(name)
    recipe_source = settings["data"]["source"]
    assert change_settings(settings, {"data": {"source": recipe_source}}) == settings
    assert describe_other_data(settings, {"data": {"source": recipe_source}}) is None
    changed_settings, note = change_settings(settings, OTHER_DATA), describe_other_data(settings, OTHER_DATA) or ""
    changes = [line.partition(":")[0] for line in find_differences(settings, changed_settings)]
    assert all(key.startswith((*REPLACED_KEYS, "data.source")) for key in changes)
    if recipe_source == REQUIRED:
        assert changes == ["data.source"]
        return
    assert find(changed_settings, "data.validation.source") in (None, "other.csv")
    for key in REPLACED_KEYS:
        assert key == "data.validation" or find(changed_settings, key) is None
        is_changed = any(f"{line}.".startswith(f"{key}.") for line in changes)
        assert (f"{key}: " in note or f"{key}.source: " in note) == is_changed
    for key in KEPT_KEYS:
        assert (f"{key}=" in note) == (find(settings, key) is not None)


def test_animals_are_validated_on_training_facts() -> None:
    resolved_recipe = resolve(RunRequest(recipe="animals", data="facts.txt"))
    recipe: Any = resolved_recipe.recipe
    assert recipe.data.validation == HeldOut(source="facts.txt")
    corpus = prepare(recipe.data)
    assert corpus.tokenizer.decode(corpus.validation.tolist()) == FACTS
    [output] = resolved_recipe.notes
    assert output.startswith("facts.txt replaces animals: data.validation.source: 'animals' -> 'facts.txt'; ")
    assert "task.sample_prompt: 'elephants' -> None" in output
    packaged_recipe: Any = load_recipe("animals")
    assert packaged_recipe.data.validation == HeldOut(source="animals")


def test_a_held_out_set_of_other_data_is_not_validated_on() -> None:
    settings = read_settings("demo", {"data": {"source": "a.txt"}})
    settings["data"]["validation"] = {"kind": "held_out", "source": "b.txt"}
    Path("mine.yaml").write_text(write_yaml(settings))
    held_out = {"kind": "held_out", "source": "c.txt"}
    for changes, validation in (
        ({"seed": 1}, HeldOut(source="b.txt")),
        ({"source": "facts.txt"}, Tail()),
        ({"source": "facts.txt", "validation": held_out}, HeldOut(source="c.txt")),
    ):
        changes = {"data": changes} if "source" in changes else {"training": changes}
        recipe: Any = load_recipe("mine.yaml", changes)
        assert recipe.data.validation == validation


def test_sentences_in_other_languages_have_none() -> None:
    files_recipe: Any = resolve(RunRequest(recipe="wmt14-en-de-base", source="a.txt", target="b.txt")).recipe
    assert (files_recipe.data.source_language, files_recipe.data.target_language, files_recipe.data.validation) == (
        None,
    ) * 3
    keys = {"data": {"source_language": "fr"}}
    table_recipe: Any = resolve(
        RunRequest(recipe="wmt14-en-de-base", changes=keys, source="A.TSV", validation_source="v.tsv")
    ).recipe
    assert (table_recipe.data.source_language, table_recipe.data.target_language) == ("fr", None)
    assert table_recipe.data.target is None
    assert table_recipe.data.validation == HeldOutPairs(source="v.tsv")
    for name, text, languages in (
        ("a.jsonl", '{"en": "one", "de": "eins"}', ("en", "de")),
        ("b.jsonl", '{"en": "one", "de": "eins", "source": "a book", "target": "page 3"}', ("en", "de")),
        ("c.jsonl", '{"source": "one", "target": "eins", "file": "de.po"}', (None, None)),
    ):
        Path(name).write_text(text + "\n")
        objects_recipe: Any = resolve(RunRequest(recipe="wmt14-en-de-base", source=name)).recipe
        assert (objects_recipe.data.source_language, objects_recipe.data.target_language) == languages
    chosen_recipe: Any = resolve(RunRequest(recipe="c.jsonl")).recipe
    assert (chosen_recipe.data.source, chosen_recipe.data.source_language) == ("c.jsonl", None)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (
            ["demo", "--data", "facts.txt"],
            "task.sample_prompt: 'The ' -> None; unchanged: data.tokenizer.vocab_s",
        ),
        (["demo", "--set", "data.source=facts.txt", "--set", "task.sample_prompt=Cats"], "unchanged: data.tok"),
        (["demo", "--data", "facts.txt", "--quiet"], ""),
        (["nanogpt-cpu", "--data", "facts.txt"], ""),
        (["facts.txt"], "contains text; training with the recipe"),
        (["bert-shakespeare", "--data", "facts.txt"], "unchanged: data.tokenizer.vocab_size=2048"),
        (["bert-shakespeare", "--data", "facts.txt", "--set", f"data.tokenizer={CHARACTERS}"], ""),
    ],
)
def test_one_line_reports_it(words: list[str], note: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words, "--print-config"]) == 0
    output = capsys.readouterr().err
    assert output.count("\n") == (1 if note else 0)
    assert note in output


@pytest.mark.slow
def test_run_reports_it_on_start_and_not_on_resume(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("model.stack.d_model=8", "model.stack.n_layers=1", "model.stack.n_heads=1", "training.max_steps=1")
    words = ["train", "animals", "--data", "facts.txt", "--out", "run", "--set", "task.sample_tokens=0"]
    words += [word for size in sizes for word in ("--set", size)]
    assert main(words) == 0
    assert "\nfacts.txt replaces animals: data.validation.source: " in f"\n{capsys.readouterr().err}"
    assert main(words) == 0
    assert "takes the place" not in capsys.readouterr().err
    Path("facts.txt").unlink()
    assert main([*words, "--restart"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_validation_on_the_end_of_a_folder_is_reported_for_new_runs() -> None:
    Path("texts").mkdir()
    Path("texts/a.txt").write_text(FACTS)
    changes: dict[str, Any] = {"data": {"validation": {"kind": "documents"}}}
    request = RunRequest(recipe="nanogpt-cpu", data="texts", out=Path("run"))
    words = "the validation part is the end of the folder 'texts', sorted by path; to draw it over documents, "
    assert [note for note in resolve(request).notes if note.startswith(words)]
    for other in (
        RunRequest(recipe="nanogpt-cpu", data="texts", out=Path("run"), changes=changes),
        RunRequest(recipe="nanogpt-cpu", data="facts.txt", out=Path("run")),
    ):
        assert not [note for note in resolve(other).notes if "validation part" in note]
    Path("run").mkdir()
    Path("run/recipe.yaml").write_text(write_yaml(resolve(request).recipe))
    assert not [note for note in resolve(request).notes if "validation part" in note]

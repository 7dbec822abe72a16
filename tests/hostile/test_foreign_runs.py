"""Foreign models and runs whose cards and links point at files of this machine."""

import json
from pathlib import Path

import pytest
from attack import attack
from hurt_folders import BYTES, llama

from tercet.checkpoint import Card, save_model
from tercet.cli.main import main

SECRET = "the key of my house is under the mat\n" * 40
PLACES = (
    "~/secret.txt",
    *(pytest.param(place, marks=pytest.mark.exhaustive) for place in ("./secret.txt", "{home}/secret.txt")),
)
PAGES = {"explore": ("explore", "{model}", "--export", "{out}"), "report": ("report", "{model}", "--out", "{out}")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder, which is the current folder as well."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    return folder


def _model_that_names(folder: Path, source: str) -> Path:
    save_model(folder, llama(), BYTES, Card(name="theirs"))
    card = json.loads((folder / "card.json").read_text())
    card |= {"data_hash": "0" * 64, "recipe": {"task": {"kind": "language"}, "data": {"source": source}}}
    (folder / "card.json").write_text(json.dumps(card))
    (folder / "manifest.json").unlink()  # a foreign folder need not have one
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_page_of_a_foreign_model_tells_nothing_of_the_file_that_its_card_names(
    place: str, home: Path, tmp_path: Path
) -> None:
    model = _model_that_names(tmp_path / "theirs", place.format(home=home))
    pages: dict[str, list[str]] = {name: [] for name in PAGES}
    for text in (SECRET, None):
        (home / "secret.txt").unlink() if text is None else (home / "secret.txt").write_text(text)
        for name, command in PAGES.items():
            out = tmp_path / f"{name}.html"
            assert main([part.format(model=model, out=out) for part in command]) == 0
            pages[name].append(out.read_text())
    for with_file, without_file in pages.values():
        assert with_file == without_file


@pytest.mark.parametrize("verb", ["evaluate", "report --evaluate"])
def test_foreign_model_is_not_scored_on_a_file_with_another_hash(verb: str, home: Path, tmp_path: Path) -> None:
    model = _model_that_names(tmp_path / "theirs", "~/secret.txt")
    (home / "secret.txt").write_text(SECRET)
    name, *flags = verb.split()
    outcome = attack([name, str(model), *flags])
    assert outcome.refused_in_one_line(), outcome.stderr
    assert "~/secret.txt has changed since the training" in outcome.stderr
    assert outcome.stderr.endswith("; give --data\n")
    assert not (tmp_path / "cache" / "corpora").exists()

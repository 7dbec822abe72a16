"""The names that users of other programs type first lead to a message with the right name.

The names of flags, verbs, recipe keys, their values, and columns are in `wrong_names.yaml`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tercet.cli.main import main
from tercet.config import merge
from tercet.settings_yaml import parse_yaml, write_yaml
from tercet.training.recipe.files import recipe_text

LISTS: dict[str, Any] = parse_yaml((Path(__file__).parent / "wrong_names.yaml").read_text(), name="wrong_names.yaml")
COMMANDS = [(command, name) for commands in LISTS["commands"].values() for command, name in commands.items()]
COLUMNS = list(LISTS["columns"]["commands"].items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small files of the list."""
    folder = tmp_path_factory.mktemp("names")
    for name, text in LISTS["columns"]["files"].items():
        (folder / name).write_text(text)
    return folder


def find_unhelpful(commands: Iterable[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the commands that do not exit with 2 and one line on stderr that contains the right name."""
    unhelpful = []
    for command, name in commands:
        code, (out, err) = main(command.split()), capsys.readouterr()
        if code != 2 or out or err.count("\n") != 1 or name not in err:
            unhelpful.append(f"{command}: {name!r} is not in: {code} {out}{err}")
    return unhelpful


@pytest.mark.slow
def test_a_name_of_another_program_leads_to_the_name_of_this_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not find_unhelpful(COMMANDS, capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_wrong_key_or_value_of_a_recipe_leads_to_the_right_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipes = LISTS["recipes"]
    for number, entry in enumerate(recipes):
        settings = merge(parse_yaml(recipe_text(entry["recipe"]), name=""), entry["settings"])
        Path(f"mine{number}.yaml").write_text(write_yaml(settings))
    commands = ((f"train mine{number}.yaml", str(entry["name"])) for number, entry in enumerate(recipes))
    assert not find_unhelpful(commands, capsys)


@pytest.mark.slow
def test_a_wrong_column_or_field_leads_to_those_of_the_file(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert not find_unhelpful(COLUMNS, capsys)
    assert sorted(path.name for path in folder.iterdir()) == sorted(LISTS["columns"]["files"])

"""The length of a run in steps, epochs or hours, and changes of it in any of these units."""

from pathlib import Path
from typing import Any

import pytest

from tercet.config import UserError
from tercet.settings_yaml import write_yaml
from tercet.training import load_recipe
from tercet.training.recipe.files import LENGTHS, change_settings
from tercet.training.sweep.grid import VariedKey, grid_points

VALUES = {"max_steps": 5, "max_epochs": 3, "max_hours": 0.5}


def length(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    training = change_settings(settings, changes)["training"]
    return {key: training[key] for key in LENGTHS if training.get(key) is not None}


@pytest.mark.parametrize("old", LENGTHS)
@pytest.mark.parametrize("new", LENGTHS)
def test_given_length_replaces_the_recipes(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"task: language\ndata: {{source: text.txt}}\nmodel: {{}}\ntraining: {{{old}: 2, seed: 7}}\n")
    training = load_recipe(str(path), {"training": {new: VALUES[new]}}).training
    assert [getattr(training, key) for key in LENGTHS] == [VALUES[key] if key == new else None for key in LENGTHS]
    assert training.seed == 7


def test_two_lengths_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set exactly one of max_steps, max_epochs and max_hours"):
        load_recipe("demo", {"training": {"max_steps": 5, "max_epochs": 2}})
    path = tmp_path / "mine.yaml"
    path.write_text(write_yaml({"task": "language", "data": {"source": "text.txt"}, "training": VALUES}))
    with pytest.raises(UserError, match="set exactly one of max_steps, max_epochs and max_hours"):
        load_recipe(str(path), {"training": {"seed": 2}})
    assert load_recipe(str(path), {"training": {"max_steps": 4}}).training.max_epochs is None


def test_null_removes_a_length() -> None:
    base = {"training": {"max_steps": 5, "seed": 1}}
    assert length(base, {"training": {"max_steps": None}}) == {}
    assert length(base, {"training": {"max_steps": None, "max_epochs": 2}}) == {"max_epochs": 2}
    assert length(base, {"training": {"seed": 2}}) == {"max_steps": 5}
    assert length(base, {}) == {"max_steps": 5}


def test_a_grid_may_vary_the_length_in_epochs() -> None:
    points = grid_points([VariedKey.read("training.max_epochs=1,2")])
    recipes = [load_recipe("demo", point.changes) for point in points]
    assert [(r.training.max_steps, r.training.max_epochs) for r in recipes] == [(None, 1), (None, 2)]
    assert load_recipe("demo").training.max_steps is not None

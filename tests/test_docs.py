"""The documents tell the truth: their code runs, and every setting is explained."""

import dataclasses
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from tercet.models import PRESETS
from tercet.training import Recipe, load_recipe, recipe_names

ROOT = Path(__file__).parent.parent
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def keys(spec: type) -> set[str]:
    """All keys that a recipe can hold, however deep."""
    found: set[str] = set()
    for name, hint in get_type_hints(spec).items():
        found.add(name)
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        for member in members:
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                found |= keys(member)
    return found


def choices(spec: type) -> set[str]:
    """All words that a recipe can hold where only certain ones will do."""
    found: set[str] = set()
    for hint in get_type_hints(spec).values():
        for member in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
            if get_origin(member) is Literal:
                found |= set(get_args(member))
            elif dataclasses.is_dataclass(member) and isinstance(member, type):
                found |= choices(member)
    return found


def documented() -> set[str]:
    """Every word in code marks."""
    text = (ROOT / "docs" / "settings.md").read_text()
    return set(re.findall(r"[a-z_0-9-]+", " ".join(re.findall(r"`([^`]*)`", text))))


def test_every_setting_is_explained() -> None:
    assert keys(Recipe) - documented() - {"logging"} == set()


def test_every_choice_is_named() -> None:
    assert {"bleu", "encoder-decoder", "held_out", "inverse_square_root", "relu_squared"} <= choices(Recipe)
    assert choices(Recipe) - documented() == set()
    assert set(PRESETS) - documented() == set()


def test_defaults_in_the_settings_are_the_real_ones() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    from tercet.training.optimizers import AdamW, Muon

    muon = Muon()
    assert f"lr: {muon.lr}, momentum: {muon.momentum}, weight_decay: 0, adam_lr: {muon.adam_lr}, beta1" in text
    assert f"weight_decay: {AdamW().weight_decay}}}" in text


@pytest.mark.parametrize("name", list(recipe_names()))
def test_every_recipe_begins_with_a_sentence_and_parses(name: str) -> None:
    assert len(recipe_names()[name]) > 20
    load_recipe(name)


def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "my_texts").mkdir()
    for i in range(20):
        (tmp_path / "my_texts" / f"{i}.txt").write_text(f"Once upon a time there were {i} bears. " * 40)
    blocks = PYTHON.findall((ROOT / "README.md").read_text())
    assert len(blocks) >= 2
    names: dict[str, Any] = {}  # one after the other, as a reader would
    for block in blocks:
        code = block.replace('"training.max_steps": 500', '"training.max_steps": 3, "model.stack.d_model": 32')
        exec(compile(code, "README.md", "exec"), names)
    assert "." in capsys.readouterr().out

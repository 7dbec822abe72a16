"""Packaged recipes are converted to every format with the same results, or rejected for the predicted reasons."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from recipe_formats import FORMATS, GUIDE, predict, results, write_table

from tercet.training import recipe_names

REPRESENTATIVE = [("demo", ("hf", "gguf"))]
LIMIT = 1e-4


@pytest.mark.parametrize(
    ("recipe", "formats"),
    [
        *(pytest.param(*pair, id=f"{pair[0]}-representative", marks=pytest.mark.slow) for pair in REPRESENTATIVE),
        *(pytest.param(name, FORMATS, id=name, marks=pytest.mark.exhaustive) for name in recipe_names()),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # from within peft
def test_conversion_of_a_recipe_is_exact_or_rejected(recipe: str, formats: Sequence[str], tmp_path: Path) -> None:
    """`results` fails unless the trained model is rejected exactly if `export_problems` lists problems."""
    predicted = predict(recipe)
    for to, result in results(recipe, tmp_path, formats):
        assert result.problems == predicted[to].problems, to
        assert result.difference is None or result.difference < LIMIT, to


@pytest.mark.slow
def test_table_in_the_guide_is_current() -> None:
    """After a change of a recipe, a preset or a format, run `recipe_formats.py --write`."""
    guide = GUIDE.read_text(encoding="utf-8")
    assert write_table(guide) == guide

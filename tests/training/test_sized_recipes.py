"""Recipes with `model.size`: the learning rate of the output layer follows from the size."""

import pytest

from tercet.config import UserError, to_plain
from tercet.nn.specs import ZeroProjections
from tercet.training import load_recipe
from tercet.training.optim.specs import AdamW, Muon


def head_lr(changes: dict[str, object], recipe: str = "gpt") -> float | None:
    optimizer = load_recipe(recipe, changes).training.optimizer
    assert isinstance(optimizer, Muon)
    return optimizer.head_lr


@pytest.mark.parametrize(("size", "rate"), [(32, 0.012), (64, 0.006), (128, 0.003), (256, 0.0015), (768, 0.0005)])
def test_the_rate_of_the_output_layer_is_proportional_to_one_over_the_width(size: int, rate: float) -> None:
    assert head_lr({"model": {"size": size}}) == pytest.approx(rate)


def test_the_rate_follows_that_of_the_other_parameters() -> None:
    assert head_lr({"training": {"optimizer": {"adam_lr": 0.02}}}) == pytest.approx(0.01)
    assert head_lr({"training": {"optimizer": {"head_lr": 0.5}}}) == 0.5


def embedding_deviation(model: dict[str, object]) -> float:
    recipe = load_recipe("gpt", {"model": model})
    assert isinstance(recipe.model.init, ZeroProjections)
    return recipe.model.init.embedding_std


@pytest.mark.parametrize(("size", "deviation"), [(32, 0.04), (64, 0.02), (128, 0.01), (256, 0.005)])
def test_a_tied_embedding_starts_with_a_deviation_proportional_to_one_over_the_width(
    size: int, deviation: float
) -> None:
    tied = {"size": size, "tie_embeddings": True}
    assert embedding_deviation(tied) == pytest.approx(deviation)
    assert head_lr({"model": tied}) == pytest.approx(0.006 * 64 / size)
    assert embedding_deviation({**tied, "tie_embeddings": False}) == 0.02
    assert embedding_deviation({**tied, "embedding_norm": False}) == 0.02
    assert embedding_deviation({**tied, "init": {"kind": "zero_projections", "embedding_std": 0.3}}) == 0.3


def test_other_optimizers_and_recipes_have_no_such_rate() -> None:
    recipe = load_recipe("gpt", {"training": {"optimizer": {"kind": "adamw", "lr": 0.001}}})
    assert isinstance(recipe.training.optimizer, AdamW)
    assert head_lr({}, "demo") is None


def test_the_recipe_of_a_run_is_complete() -> None:
    """`recipe.yaml` has no size, but all that follows from it, so a later rule does not change the run."""
    plain = to_plain(load_recipe("gpt", {"model": {"size": 96}}))
    assert "size" not in plain["model"]
    assert plain["model"]["stack"]["d_model"] == 96
    assert plain["training"]["optimizer"]["head_lr"] == pytest.approx(0.004)


@pytest.mark.parametrize("size", ["wide", 33, 0, [64]])
def test_other_sizes_are_rejected(size: object) -> None:
    with pytest.raises(UserError, match=r"model\.size=.*: expected the width of the model"):
        load_recipe("gpt", {"model": {"size": size}})

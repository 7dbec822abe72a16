"""Resharding of gathered weights in fsdp: equal training, and the trade-off between memory and communication."""

from pathlib import Path
from typing import Any

import pytest
import torch
from machines import run_ranks, start
from tiny_runs import ADAMW, NO_DROPOUT, figures, tiny_recipe

from tercet.checkpoint import load_model
from tercet.config import UserError
from tercet.settings_yaml import write_yaml
from tercet.training.planning.ranks import communicated_bytes, estimate_rank
from tercet.training.planning.step_memory import measure_step
from tercet.training.recipe.recipe import Recipe
from tercet.training.tasks.open_task import task_of

RANKS = Path(__file__).with_name("fsdp_program.py")
THREE_LAYERS = {"model": {"stack": {"n_layers": 3, "dropout": NO_DROPOUT}}}


def sharded(folder: Path, **settings: Any) -> Recipe:
    settings = {"devices": 2, "strategy": "fsdp", "ema": None, "optimizer": ADAMW, **settings}
    return tiny_recipe(folder, THREE_LAYERS, **settings)


@pytest.mark.parametrize("settings", [{}, {"strategy": "ddp", "devices": 2}, {"strategy": "tp", "devices": 2}])
def test_reshard_setting_requires_fsdp(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reshard_after_forward=false requires strategy=fsdp; set it"):
        tiny_recipe(tmp_path, reshard_after_forward=False, ema=None, **settings)


@pytest.mark.slow
def test_kept_weights_need_memory_of_ddp_except_optimizer(tmp_path: Path) -> None:
    recipe = task_of(sharded(tmp_path, reshard_after_forward=False), progress=False).recipe
    step = measure_step(recipe, micro=4, device="cuda", precision="fp32", checkpointing=False)
    rank = estimate_rank(recipe, step, checkpointing=False, available_bytes=None)
    assert rank.communication == step.weights + step.gradients
    assert rank.weights == -(-step.weights // 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"reshard_after_forward": True},
        {"reshard_after_forward": False},
        *(
            pytest.param({"reshard_after_forward": keep, "exact": True}, marks=pytest.mark.exhaustive)
            for keep in (True, False)
        ),
    ],
    ids=str,
)
def test_plan_equals_sent_bytes(settings: dict[str, Any], tmp_path: Path) -> None:
    """The gathers and reduce-scatters of a rank are as planned.

    The tolerance is the padding of matrices whose rows two ranks cannot share equally, and the few numbers of a loss.
    """
    recipe = task_of(sharded(tmp_path, max_steps=2, **settings), progress=False).recipe
    (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
    step = measure_step(recipe, micro=4, device="cpu", precision="fp32", checkpointing=False)
    planned_bytes = communicated_bytes(recipe, step, "fp32", share=8, passes=2)
    for rank in run_ranks(RANKS, tmp_path, 2):
        assert len(rank["sent"]) == 2
        for sent_bytes in rank["sent"]:
            assert planned_bytes <= sent_bytes < 1.02 * planned_bytes


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_three_ranks_take_the_steps_of_one(keep: bool, tmp_path: Path) -> None:
    """The number of ranks is not a power of two, which `exact` does not support."""
    runs = {"one rank": {}, "fsdp on 2": {"devices": 3, "reshard_after_forward": keep}}
    for machine, machine_settings in runs.items():
        settings = {
            "exact": False,
            "optimizer": ADAMW,
            "batch_size": 12,
            "ema": None,
            "max_steps": 6,
            **machine_settings,
        }
        start(tmp_path, "text", machine, tmp_path / machine, changes=THREE_LAYERS, **settings).finish()
    single_figures, three_rank_figures = (figures(tmp_path / machine) for machine in runs)
    for name in ("train/loss", "val/loss", "grad_norm"):
        assert dict(three_rank_figures[name]) == pytest.approx(dict(single_figures[name]), rel=1e-3), name


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["text", "pairs"])
def test_two_ranks_train_equally_and_resume(family: str, tmp_path: Path) -> None:
    """The tolerance is rounding, which AdamW amplifies if a gradient is nearly zero.

    `test_exact_ranks.py` tests bitwise identity with `exact`.
    """

    def run(out: str, **settings: Any) -> None:
        settings = {"exact": False, "optimizer": ADAMW, "schedule": "constant", **settings}
        changes = THREE_LAYERS if family == "text" else None
        start(tmp_path, family, "fsdp on 2", tmp_path / out, changes=changes, **settings).finish()

    run("whole")
    run("kept", reshard_after_forward=False)
    run("later", max_steps=8)
    run("later", reshard_after_forward=False)
    for folder in ("best", "last"):
        expected, *other_states = (
            load_model(tmp_path / out / folder).model.state_dict() for out in ("whole", "kept", "later")
        )
        for state in other_states:
            for name in expected:
                torch.testing.assert_close(state[name], expected[name], atol=1e-3, rtol=0)

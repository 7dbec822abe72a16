"""GPU memory: plans predict the memory of a step, and steps that do not fit are split in half."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import TINY

import tercet
from tercet.checkpoint.metrics import read_metrics
from tercet.checkpoint.run_record import read_record
from tercet.settings_yaml import write_yaml
from tercet.training import Recipe, train
from tercet.training.distributed.devices import free_unused_memory

WITHIN = 0.1
LIMIT = 5 << 30  # memory limit in bytes of the test that splits steps
SIZES: dict[str, Any] = {"max_len": 512, "stack": {"d_model": 768, "n_layers": 6, "n_heads": 12, "d_ff": 3072}}


def recipe_of(family: str, folder: Path, accelerator: str, *, rows: int, micro: int | None, **settings: Any) -> Recipe:
    """Return a recipe of three steps with a model that is large compared with the workspaces of the libraries."""
    (folder / "text.txt").write_text("".join(f"{n} times {n + 3} is {n * (n + 3)}.\n" for n in range(4000)))
    more = {"accelerator": accelerator, "batch_size": rows, "micro_batch_size": micro, "sample_tokens": 0,
            "max_steps": 3, "warmup_steps": 1, "precision": "bf16", **settings}  # fmt: skip
    special = {"bos": True, "eos": True, "pad": True, "mask": True} if family == "masked" else {"eos": False}
    data = {"tokenizer": {"kind": "characters", **special}}
    return TINY[family](folder, {"model": SIZES, "data": data}, **more)


@pytest.fixture
def limited(cuda: torch.device) -> Iterator[None]:
    free_unused_memory()
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((held + LIMIT) / torch.cuda.get_device_properties(0).total_memory)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("family", ["text", "masked"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_plan_predicts_the_memory_of_a_step(
    family: str, checkpointing: bool, tmp_path: Path, cuda: torch.device
) -> None:
    recipe = recipe_of(family, tmp_path, "gpu", rows=32, micro=32, activation_checkpointing=checkpointing)
    file = tmp_path / "recipe.yaml"
    file.write_text(write_yaml(recipe))
    planned = tercet.plan(file).memory[0]
    assert planned.checkpointing is checkpointing
    free_unused_memory()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    train(recipe, tmp_path / "run", quiet=True)
    assert torch.cuda.max_memory_allocated() - held == pytest.approx(planned.total, rel=WITHIN)


@pytest.mark.usefixtures("limited")
def test_step_that_does_not_fit_is_halved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = train(recipe_of("text", tmp_path, "gpu", rows=128, micro=None), tmp_path / "run", quiet=True)
    record = read_record(out)
    assert record is not None
    assert record.micro_batches
    assert record.micro_batches[-1][1] < 128
    assert "step 1 is out of memory with 128 rows per micro-batch; continuing with 64 rows" in capsys.readouterr().err
    assert len(read_metrics(out / "metrics.csv")["train/loss"]) == 3

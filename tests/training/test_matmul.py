"""By what fp32 is multiplied is measured once, kept in the run's folder, and in force while the run trains."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_recipe

from tercet.checkpoint.run_record import read_record
from tercet.training import machine, train
from tercet.training.machine import choose_matmul, matmul_precision
from tercet.training.specs import TrainingSpec
from tercet.training.tasks import language

SPEC = TrainingSpec(max_steps=1, accelerator="cpu")


def seconds(**took: float):
    return lambda *_, **__: took[torch.get_float32_matmul_precision()]


def multiply_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU whose oneDNN does not round what it multiplies; on one with AMX it does."""
    multiply = torch.Tensor.__matmul__

    def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return multiply(a.double(), b.double()).to(a.dtype)

    monkeypatch.setattr(torch.Tensor, "__matmul__", exact)


@pytest.mark.parametrize(
    ("default", "onednn", "expected"), [(1.0, 0.5, "medium"), (1.0, 0.9, "highest"), (0.5, 1.0, "highest")]
)
def test_the_faster_is_taken_where_it_is_worth_it(
    default: float, onednn: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_exactly(monkeypatch)
    monkeypatch.setattr(machine, "_seconds", seconds(highest=default, medium=onednn))
    assert choose_matmul(SPEC) == expected
    assert torch.get_float32_matmul_precision() == "highest"
    assert choose_matmul(TrainingSpec(max_steps=1, accelerator="cpu", precision="fp32")) == "highest"


def test_what_rounds_on_the_way_is_not_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_seconds", seconds(highest=1.0, medium=0.1))
    multiply_exactly(monkeypatch)
    multiply = torch.Tensor.__matmul__

    def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rounds = torch.get_float32_matmul_precision() == "medium" and a.dtype == torch.float32
        return multiply(a.bfloat16(), b.bfloat16()).float() if rounds else multiply(a, b)

    assert choose_matmul(SPEC) == "medium"
    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert choose_matmul(SPEC) == "highest"


def test_it_is_put_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), matmul_precision("medium"):
        _ = 1 / (torch.get_float32_matmul_precision() != "medium")
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_run_keeps_to_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_force = set[str]()
    loss = language.causal_loss

    def noted(*given, **how):
        in_force.add(torch.get_float32_matmul_precision())
        return loss(*given, **how)

    monkeypatch.setattr(language, "causal_loss", noted)
    monkeypatch.setattr(machine, "choose_matmul", lambda *_: "medium")
    out = train(tiny_recipe(tmp_path), tmp_path / "run", quiet=True)
    assert in_force == {"medium"}
    assert torch.get_float32_matmul_precision() == "highest"
    record = read_record(out)
    assert record is not None
    assert record.matmul == "medium"
    replace(record, finished=False).write(out)
    monkeypatch.setattr(machine, "choose_matmul", lambda *_: pytest.fail("measured again"))
    train(tiny_recipe(tmp_path), tmp_path / "run", quiet=True)

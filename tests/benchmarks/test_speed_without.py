"""Tercet with a kernel disabled: the kernel is off in that contender only."""

from pathlib import Path

import pytest
import torch
from benchmarks.speed.__main__ import parser
from benchmarks.speed.contender import Contender, Settings
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.without import QUESTIONS, Without, full_lineup
from torch import Tensor

from tercet.kernel import api
from tercet.kernel.build import library
from tercet.nn import Linear


class Product(Contender):
    """A contender that records the function that computed its product."""

    def __init__(self) -> None:
        super().__init__("tercet", "ours", Settings())
        self.linear, self.x = Linear(64, 64), torch.randn(512, 64)

    def run(self, n: int) -> float:
        self.gradient_function: str = str(self.linear(self.x).grad_fn)
        return 1.0

    def answer(self) -> Tensor:
        return torch.tensor(float(api.supports_training_linear(self.x, self.linear.weight) is None))


@pytest.mark.skipif(library() is None, reason="no compiled kernels")
def test_kernel_is_disabled_only_while_its_contender_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "supports_training_linear", lambda *_, **__: True)
    contender = Product()
    without = Without(Product(), "linear")
    contender.run(1)
    without.run(1)
    assert "Addmm" not in contender.gradient_function
    assert "Addmm" in without._contender.gradient_function  # pyright: ignore
    assert without.answer() == 1
    assert contender.answer() == 0


def test_each_kernel_has_an_existing_support_function() -> None:
    for kernel in QUESTIONS:
        Without(Product(), kernel).answer()


def test_tercet_is_repeated_for_each_disabled_kernel(tmp_path: Path) -> None:
    row = Row(name="x", title="X", lineup=lambda options: Lineup([Product()]))
    lineup = full_lineup(row, Options(folder=tmp_path, without=("linear", "adam")))
    assert [contender.name for contender in lineup.contenders] == [
        "tercet",
        "tercet, without linear",
        "tercet, without adam",
    ]


def test_unknown_kernel_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args(["--without", "all"]).without == tuple(QUESTIONS)
    with pytest.raises(SystemExit):
        parser().parse_args(["--without", "linear,lineer"])
    assert "no kernel is called lineer" in capsys.readouterr().err

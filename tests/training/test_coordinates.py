"""The coordinate check: scales of activations over widths, with faults that make them depend on the width."""

import json
from pathlib import Path

import pytest
import torch

from tercet.cli.main import main
from tercet.config import Plain, UserError, merge
from tercet.training.optim import muon
from tercet.training.planning.coordinates import Coordinate, CoordinateCheck, check_coordinates
from tercet.training.request import RunRequest

TEXT = "".join(f"{n} times {m} is {n * m}.\n" for n in range(3, 40) for m in range(2, 40))
SMALL: Plain = {
    "task": {"batch_size": 8},
    "data": {"tokenizer": {"kind": "characters"}},
    "model": {"max_len": 16},
    "training": {"accelerator": "cpu"},
}


def request_of(tmp_path: Path, changes: Plain | None = None) -> RunRequest:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    return RunRequest(recipe="gpt", data=str(text), changes=merge(SMALL, changes or {}))


def test_scales_of_the_recipe_do_not_depend_on_the_width(tmp_path: Path) -> None:
    check = check_coordinates(request_of(tmp_path), sizes=(128, 32, 64))
    assert check.sizes == (32, 64, 128)
    assert [one.name for one in check.coordinates] == ["attention", "feed-forward network", "residual stream", "logits"]
    assert check.drifting == []
    for one in check.coordinates:
        slope = torch.linalg.lstsq(
            torch.stack([torch.ones(3), torch.tensor([32.0, 64.0, 128.0]).log()], 1),
            torch.tensor(one.trained).log()[:, None],
        ).solution[1]
        assert one.drift == pytest.approx(float(slope), abs=1e-4)


def test_the_scale_of_the_residual_stream_is_that_of_the_norm_of_the_embeddings(tmp_path: Path) -> None:
    check = check_coordinates(request_of(tmp_path), sizes=(32, 64), steps=1)
    stream = next(one for one in check.coordinates if one.name == "residual stream")
    assert stream.initial == pytest.approx((1.0, 1.0), rel=0.05)  # projections are zero at first


def test_an_update_that_grows_with_the_width_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orthogonalize = muon.orthogonalize

    def grow(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
        return orthogonalize(matrices, iterations) * min(matrices.shape[1:]) / 32

    monkeypatch.setattr(muon, "orthogonalize", grow)
    check = check_coordinates(request_of(tmp_path), sizes=(32, 64, 128))
    assert {"attention", "feed-forward network"} <= set(check.drifting)


def test_adamw_with_one_rate_for_all_widths_drifts(tmp_path: Path) -> None:
    adamw: Plain = {"training": {"optimizer": {"kind": "adamw", "lr": 0.02}}}
    check = check_coordinates(request_of(tmp_path, adamw), sizes=(32, 64, 128, 256))
    assert check.drifting


@pytest.mark.parametrize(
    ("drift", "names"), [(0.3, []), (-0.3, []), (0.4, ["logits"]), (-0.4, ["logits"]), (float("nan"), ["logits"])]
)
def test_drift_above_the_limit_or_without_a_number(drift: float, names: list[str]) -> None:
    one = Coordinate(name="logits", initial=(1.0, 1.0), trained=(1.0, 2.0), drift=drift)
    check = CoordinateCheck(sizes=(32, 64), steps=8, losses=(2.0, 2.0), coordinates=(one,))
    assert check.drifting == names
    assert check.to_dict()["drifting"] == names
    assert ("learning rates do not transfer" in str(check.view().parts)) == bool(names)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "gpt", "--widths", "32,64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["sizes"] == [32, 64]
    assert answer["drifting"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt", "--widths", "64"], "pass at least two"),
        (["gpt", "--widths", "64,64"], "pass at least two"),
        (["gpt", "--widths", "64,big"], "expected widths separated by commas"),
        (["gpt", "--widths", "33,64"], "multiple of 32"),
        (["demo", "--widths", "64,128"], "which the recipe demo does not have; pass gpt or bert"),
        (["gpt", "--widths", "64,128", "--prompt", "a"], "--prompt has no effect with --widths"),
        (["gpt", "--widths", "64,128", "--heads"], "--heads has no effect with --widths"),
    ],
)
def test_wrong_commands(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *words]) == 2
    assert message in capsys.readouterr().err


def test_another_recipe_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sets model\.size"):
        check_coordinates(RunRequest(recipe="nanogpt-cpu"), sizes=(32, 64))

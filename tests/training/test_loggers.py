"""Missing requirements of a logger are reported in one line before any data is read."""

import errno
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pytorch_lightning.loggers import Logger
from tiny_runs import tiny_recipe

from tercet.config import UserError
from tercet.training import train
from tercet.training.loop.loggers import check_loggers, make_loggers
from tercet.training.loop.tracker import Tracker
from tercet.training.recipe.specs import LoggingSpec


@pytest.mark.parametrize(("name", "value", "without"), [("wandb", "offline", "none"), ("tensorboard", True, "false")])
def test_a_logger_that_is_not_installed(
    name: str, value: Any, without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    recipe = tiny_recipe(tmp_path, {"logging": {name: value}}, max_steps=1)
    words = (
        rf"logging\.{name} needs the package {name}; pip install 'tercet\[{name}\]', or pass --set "
        rf"logging.{name}={without}"
    )
    with pytest.raises(UserError, match=words):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mode", "has_key"), [("online", False), ("online", True), ("offline", False), ("none", False)]
)
def test_writing_online_needs_a_key(mode: Any, has_key: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = ModuleType("wandb")
    wandb.__dict__["login"] = lambda *, prompt: has_key or prompt
    wandb.__spec__ = object()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    if mode == "online" and not has_key:
        with pytest.raises(UserError, match="online needs a key: run `wandb login`"):
            check_loggers(LoggingSpec(wandb=mode))
    else:
        check_loggers(LoggingSpec(wandb=mode))


def test_invalid_key_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def login(*, prompt: bool) -> None:
        raise ValueError("API key must have 40+ characters, has 3.\nand a long explanation")

    wandb = ModuleType("wandb")
    wandb.__dict__["login"] = login
    wandb.__spec__ = object()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with pytest.raises(UserError, match=r"^W&B: API key must have 40\+ characters, has 3\.; try again, or pass --set"):
        check_loggers(LoggingSpec(wandb="online"))


def test_failing_tracker_loses_only_its_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    calls = list[int | None]()

    class Failing(Logger):
        name, version = "failing", ""

        def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            calls.append(step)
            if step == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tracker = Tracker(Failing(), "TensorBoard")
    for step in (1, 2, 3):
        tracker.log_metrics({"loss": 1.0}, step)
    tracker.finalize("success")
    assert calls == [1, 2]
    assert capsys.readouterr().err == (
        "TensorBoard: [Errno 28] No space left on device; this logger is disabled, and training continues\n"
    )


@pytest.mark.slow
def test_rejecting_service_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytorch_lightning.loggers import WandbLogger

    def refuse(self: object) -> None:
        raise RuntimeError("401: the key is unknown\nand a long explanation")

    pytest.importorskip("wandb")
    monkeypatch.setattr(WandbLogger, "experiment", property(refuse))
    recipe = tiny_recipe(tmp_path, {"logging": {"wandb": "offline"}}, max_steps=1)
    with pytest.raises(UserError, match=r"^W&B: 401: the key is unknown; try again, or pass --set logging.wandb=none$"):
        make_loggers(recipe, tmp_path)

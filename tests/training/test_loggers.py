"""Missing requirements of a logger are reported in one line before any data is read."""

import errno
import os
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pytorch_lightning.loggers import Logger
from tiny_runs import tiny_recipe

from tercet.config import UserError
from tercet.training import train
from tercet.training.loop.loggers import MAKERS, TITLES, check_loggers, make_loggers
from tercet.training.loop.tracker import Tracker
from tercet.training.recipe.specs import LoggingSpec

ROOT = Path(__file__).parents[2]
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    recipe = tiny_recipe(tmp_path, {"logging": {"tracker": name}}, max_steps=1)
    words = (
        rf"logging\.tracker: {name} needs the package {name}; pip install 'tercet\[{name}\]', or pass --set "
        r"logging\.tracker=none"
    )
    with pytest.raises(UserError, match=words):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_each_tracker_is_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [name for name in TRACKERS if not extras[name][0].startswith(name)] == []
    assert set(MAKERS) == set(TRACKERS) == set(TITLES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"tensorboard": True}, "the key tensorboard is now `tracker: tensorboard`"),
        ({"wandb": "offline"}, "the key wandb is now `tracker: wandb, with online: true for uploads during training`"),
        ({"wandb_project": "mine"}, "the key wandb_project is now `project`"),
    ],
)
def test_an_old_key_is_rejected_with_its_new_name(old: dict[str, Any], new: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"logging: {new}")):
        tiny_recipe(tmp_path, {"logging": old})


def test_only_wandb_uploads() -> None:
    with pytest.raises(UserError, match=r"^logging.online is only for the tracker wandb"):
        check_loggers(LoggingSpec(tracker="tensorboard", online=True))


@pytest.mark.parametrize(("online", "has_key"), [(True, False), (True, True), (False, False)])
def test_uploads_need_a_key(online: bool, has_key: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_wandb(monkeypatch, lambda *, prompt: has_key or prompt)
    spec = LoggingSpec(tracker="wandb", online=online)
    if online and not has_key:
        with pytest.raises(UserError, match=r"logging.online needs a key: run `wandb login`"):
            check_loggers(spec)
    else:
        check_loggers(spec)


def test_invalid_key_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def login(*, prompt: bool) -> None:
        raise ValueError("API key must have 40+ characters, has 3.\nand a long explanation")

    replace_wandb(monkeypatch, login)
    with pytest.raises(UserError, match=r"^W&B: API key must have 40\+ characters, has 3\.; try again, or pass --set"):
        check_loggers(LoggingSpec(tracker="wandb", online=True))


def replace_wandb(monkeypatch: pytest.MonkeyPatch, login: Any) -> None:
    wandb = ModuleType("wandb")
    wandb.__dict__["login"] = login
    wandb.__spec__ = object()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "wandb", wandb)


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


def test_a_tracker_prints_only_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow prints the address of a run on its server; with `--json`, stdout is one object."""

    class Talking(Logger):
        name, version = "talking", ""

        def log_hyperparams(self, *_: Any, **__: Any) -> None:
            print("settings")

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            print("metrics")

        def save(self) -> None:
            print("saved")

        def finalize(self, status: str) -> None:
            print("View run at: https://example.org")

        @property
        def experiment(self) -> None:
            print("experiment")

    replace_wandb(monkeypatch, lambda *, prompt: not print("login"))
    check_loggers(LoggingSpec(tracker="wandb", online=True))
    monkeypatch.setattr("tercet.training.loop.loggers.MAKERS", {"wandb": lambda *_: (Talking(), 0)})
    [tracker] = make_loggers(tiny_recipe(tmp_path, {"logging": {"tracker": "wandb"}}, max_steps=1), tmp_path, start=0)
    tracker.log_hyperparams({})
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.save()
    tracker.finalize("success")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "login\nexperiment\nsettings\nmetrics\nsaved\nView run at: https://example.org\n"


@pytest.mark.slow
def test_rejecting_service_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytorch_lightning.loggers import WandbLogger

    def refuse(self: object) -> None:
        raise RuntimeError("401: the key is unknown\nand a long explanation")

    pytest.importorskip("wandb")
    monkeypatch.setattr(WandbLogger, "experiment", property(refuse))
    recipe = tiny_recipe(tmp_path, {"logging": {"tracker": "wandb"}}, max_steps=1)
    with pytest.raises(
        UserError, match=r"^W&B: 401: the key is unknown; try again, or pass --set logging.tracker=none$"
    ):
        make_loggers(recipe, tmp_path, start=0)

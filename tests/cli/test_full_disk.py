"""A disk that becomes full during training: one line, exit code 2, and the same command resumes afterwards."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from full_disk import full_disk
from tercet.cli.main import main
from tercet.training.loop.checkpoint_io import CheckpointFolderIO

SETTINGS = ("training.save_every=1", "task.sample_tokens=0", "model.stack.n_layers=1", "model.stack.d_model=32")
FLAGS = ["--quiet", *(word for setting in SETTINGS for word in ("--set", setting))]
STATE_BYTES = 100_000  # less than a checkpoint, and more than all other files of these runs


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text("some words, and some more words. " * 60)
    return path


@contextmanager
def disk_full_at(step: int) -> Generator[None]:
    """Simulate a disk without space for the checkpoint of this step within the block."""
    save = CheckpointFolderIO.save_checkpoint

    def save_checkpoint(self: CheckpointFolderIO, checkpoint: dict[str, Any], *args: Any, **options: Any) -> None:
        with full_disk(STATE_BYTES) if checkpoint["global_step"] == step else nullcontext():
            save(self, checkpoint, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointFolderIO, "save_checkpoint", save_checkpoint)
        yield


def check_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith("tercet: error: disk full while writing ")
    assert "free some space, or choose another folder" in errors


@pytest.mark.slow
def test_a_training_loses_nothing(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "demo", "--data", str(text), *FLAGS, "--set", "training.max_steps=4", "--out"]
    assert main([*train, str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    with disk_full_at(3):
        assert main([*train, str(tmp_path / "run")]) == 2
    check_one_line(capsys)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-000001", "step-000002"]
    assert main([*train, str(tmp_path / "run")]) == 0
    for name in ("last/model.safetensors", "best/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.exhaustive
def test_a_comparison_resumes(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = ["compare", "demo", "--data", str(text), *FLAGS, "--set", "training.max_steps=2"]
    compare += ["--vary", "model.stack.position=rotary,alibi", "--out", str(tmp_path / "compared")]
    with disk_full_at(2):
        assert main(compare) == 2
    check_one_line(capsys)
    assert main(compare) == 0
    assert (tmp_path / "compared" / "comparison.json").is_file()

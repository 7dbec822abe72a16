"""The choice of the checkpoint to resume, and of those to keep."""

from collections.abc import Callable
from pathlib import Path

from tercet.training.run_folder.checkpoints import Checkpoints


def test_newest_undamaged_checkpoint_is_resumed(tmp_path: Path, finished_run: Callable[[str], Path]) -> None:
    out = finished_run("text")
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    newest = Checkpoints(out, keep=2).newest()
    assert newest is not None
    assert (newest.step, newest.folder.name) == (12, "step-000012")


def test_the_oldest_are_removed_by_number_and_damaged_ones_too(tmp_path: Path) -> None:
    """A million steps have one digit more, and would sort first by name."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    steps = (999_997, 999_998, 999_999, 1_000_000)
    folders = {step: checkpoints.state_path(step).parent for step in steps}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (tmp_path / "checkpoints" / "notes").mkdir()
    checkpoints.damaged[folders[999_999]] = "cut short"
    checkpoints.remove_old()
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"notes", "step-999998", "step-1000000"}

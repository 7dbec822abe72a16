"""Checkpoints from which a run can resume: `checkpoints/step-000250/`, each written atomically.

    state.ckpt     Lightning's checkpoint: weights, optimizer, counters; loads with weights_only
    shard-*        weights and optimizer, if they are sharded (see `sharded_state.py`)
    metrics.csv    the run's metrics up to this step
    manifest.json  the hashes of all files

Only the newest checkpoints are kept. A damaged checkpoint is reported and skipped, and the run resumes from the
preceding one. The final weights are the same, since a step depends only on (seed, step) and the state.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tercet.checkpoint.run_record import METRICS as METRICS
from tercet.checkpoint.run_record import RECIPE
from tercet.config import UserError
from tercet.storage import FileHash, read_manifest
from tercet.training.run_folder.saved_state import ARITHMETIC, RECIPE_HASH, read_state

FOLDER, STATE = "checkpoints", "state.ckpt"


@dataclass(frozen=True)
class Checkpoint:
    """A complete and undamaged checkpoint.

    Args:
        folder: Folder of the checkpoint.
        step: Number of steps that were trained.
        arithmetic: Numerical environments in which these steps were computed, the oldest first (see `arithmetic.py`).
    """

    folder: Path
    step: int
    arithmetic: tuple[Mapping[str, str], ...]

    @property
    def state(self) -> Path:
        return self.folder / STATE

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS


@dataclass
class Checkpoints:
    """The checkpoints of a run.

    Args:
        out: Folder of the run.
        keep: Number of checkpoints that are kept.

    Attributes:
        damaged: Errors of the checkpoints that were skipped, by folder.
    """

    out: Path
    keep: int
    damaged: dict[Path, str] = field(default_factory=dict[Path, str])

    def newest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there is none.

        Newer damaged checkpoints are added to `damaged`.
        """
        for step, folder in sorted(self._folders().items(), reverse=True):
            try:
                return _read(folder, step, self.recipe_hash())
            except UserError as error:
                self.damaged[folder] = str(error)
        return None

    def state_path(self, step: int) -> Path:
        """Return the path of the state file after `step` steps, which need not exist."""
        return self.out / FOLDER / f"step-{step:06d}" / STATE

    def recipe_hash(self) -> str:
        """Return the hash of the recipe, which identifies the run that a checkpoint belongs to."""
        return FileHash.from_path(self.out / RECIPE).xxh3

    def remove_old(self) -> None:
        """Remove all checkpoints except for the newest `keep` that are not in `damaged`."""
        folders = sorted(self._folders().items())
        whole = [folder for _, folder in folders if folder not in self.damaged]
        for _, folder in folders:
            if folder not in whole[-self.keep :]:
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> dict[int, Path]:
        parent = self.out / FOLDER
        names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        return {int(match[1]): parent / name for name in names if (match := re.fullmatch(r"step-(\d{1,18})", name))}


def _read(folder: Path, step: int, recipe_hash: str) -> Checkpoint:
    """Read and check a checkpoint.

    Raises:
        UserError: If it is incomplete, damaged or belongs to another run or step.
    """
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None or STATE not in manifest.files:
        raise UserError(f"incomplete checkpoint: {folder}")
    manifest.check(folder)
    state = read_state(folder / STATE)
    if (state["global_step"], state[RECIPE_HASH]) != (step, recipe_hash):
        raise UserError(f"{folder} contains the state of another run or another step")
    return Checkpoint(folder, step, tuple(state[ARITHMETIC]))

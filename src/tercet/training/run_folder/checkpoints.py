"""Where a run can go on from: `checkpoints/step-000250/`, each written whole, the newest ones kept.

    state.ckpt     Lightning's: weights, optimizer, counters; loads with weights_only
    shard-*        weights and optimizer, where they are sharded (`sharded_checkpoint.py`)
    metrics.csv    the run's, as far as this step
    manifest.json  the hashes of all

A checkpoint that is damaged is named and passed over, and the run goes on from the one before it: to the same end, for
a step follows from (seed, step) and the state alone.
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
    """A whole checkpoint.

    Attributes:
        arithmetic: of each machine and setting that steps so far were worked out with.
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
    """Args:
    out: the run's folder.
    keep: how many checkpoints are kept.

    Attributes:
        damaged: by folder, what is wrong with those that were passed over.
    """

    out: Path
    keep: int
    damaged: dict[Path, str] = field(default_factory=dict[Path, str])

    def newest(self) -> Checkpoint | None:
        """The newest that is whole; None where there is none."""
        for step, folder in sorted(self._folders().items(), reverse=True):
            try:
                return _read(folder, step, self.recipe_hash())
            except UserError as error:
                self.damaged[folder] = str(error)
        return None

    def state_path(self, step: int) -> Path:
        """Where the state after `step` steps goes."""
        return self.out / FOLDER / f"step-{step:06d}" / STATE

    def recipe_hash(self) -> str:
        """Which run it is: what was worked out by another recipe is no state of this one."""
        return FileHash.from_path(self.out / RECIPE).xxh3

    def remove_old(self) -> None:
        """All but the newest `keep` whole ones."""
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
    """Raises:
    UserError: where it is not whole.
    """
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None or STATE not in manifest.files:
        raise UserError(f"{folder} is not whole")
    manifest.check(folder)
    state = read_state(folder / STATE)
    if (state["global_step"], state[RECIPE_HASH]) != (step, recipe_hash):
        raise UserError(f"{folder} holds the state of another run, or of another step")
    return Checkpoint(folder, step, tuple(state[ARITHMETIC]))

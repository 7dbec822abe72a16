"""How Lightning's checkpoint becomes a folder that appears whole (`checkpoints.py` reads it)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO

from tercet.storage import report_write_errors, write_atomically, write_folder
from tercet.training.checkpoints import ARITHMETIC, METRICS, RECIPE_HASH, STATE, Checkpoints


class CheckpointFolderIO(TorchCheckpointIO):
    """Lightning's checkpoint as a folder that appears whole: a process killed in a save leaves the ones before.

    Args:
        checkpoints: of the run.
        arithmetic: what the steps so far were worked out with, which is kept with the state.
    """

    def __init__(self, checkpoints: Checkpoints, arithmetic: Sequence[Mapping[str, str]]) -> None:
        self.checkpoints, self.arithmetic = checkpoints, [dict(one) for one in arithmetic]

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        checkpoint = {**checkpoint, ARITHMETIC: self.arithmetic, RECIPE_HASH: self.checkpoints.recipe_hash()}
        metrics = self.checkpoints.out / METRICS
        folder = Path(path).parent
        with report_write_errors(folder), write_folder(folder) as new:
            write_atomically(new / STATE, lambda file: torch.save(checkpoint, file))
            if metrics.exists():
                write_atomically(new / METRICS, metrics.read_bytes())
        self.checkpoints.damaged.pop(folder, None)  # it is whole again

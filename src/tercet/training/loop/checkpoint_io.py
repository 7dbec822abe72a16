"""Writing of Lightning's checkpoints as folders that appear atomically.

`run_folder/checkpoints.py` finds and checks them.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.__version__ import version

from tercet.storage import report_write_errors, write_atomically, write_folder
from tercet.training.run_folder.checkpoints import METRICS, STATE, Checkpoints
from tercet.training.run_folder.saved_state import ARITHMETIC, RECIPE_HASH, State, own_tensors, read_state
from tercet.training.run_folder.sharded_state import has_shards, load_full_checkpoint


class CheckpointFolderIO(TorchCheckpointIO):
    """Lightning's input and output of checkpoints, each of which is a folder that appears atomically.

    If the process is killed during a save, the earlier checkpoints stay intact.

    Args:
        checkpoints: Checkpoints of the run.
        arithmetic: Numerical environments of the steps so far (see `run_folder/arithmetic.py`), saved with the state.
        on_save: Function called after each save with the number of trained steps.
    """

    def __init__(
        self, checkpoints: Checkpoints, arithmetic: Sequence[Mapping[str, str]], on_save: Callable[[int], None]
    ) -> None:
        self.checkpoints, self.arithmetic, self.on_save = checkpoints, [dict(entry) for entry in arithmetic], on_save

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with self.write(checkpoint, path):
            pass

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        folder, state = Path(path).parent, read_state(Path(path))
        state = load_full_checkpoint(folder, state) if has_shards(folder) else own_tensors(state)
        return add_version(state)

    @contextmanager
    def write(self, checkpoint: dict[str, Any], path: Any) -> Generator[Path]:
        """Yield a temporary folder that contains the checkpoint and gets its final name at the end of the context.

        More files may be added to the folder within the context.

        Args:
            checkpoint: Lightning's checkpoint.
            path: Path of the state file in the final folder.

        Raises:
            UserError: If the folder cannot be written.
        """
        checkpoint = {**checkpoint, ARITHMETIC: self.arithmetic, RECIPE_HASH: self.checkpoints.recipe_hash()}
        metrics = self.checkpoints.out / METRICS
        folder = Path(path).parent
        with report_write_errors(folder), write_folder(folder) as new:
            write_atomically(new / STATE, lambda file: torch.save(checkpoint, file))
            if metrics.exists():
                write_atomically(new / METRICS, metrics.read_bytes())
            yield new
        self.checkpoints.damaged.pop(folder, None)  # a damaged checkpoint of this step has been replaced
        self.on_save(checkpoint["global_step"])


def add_version(state: State) -> dict[str, Any]:
    """Return a state with the epoch and the version that Lightning requires in a checkpoint.

    The version is that of the installed Lightning, so that Lightning does not migrate the state.
    """
    return {**state, "epoch": 0, "pytorch-lightning_version": version}

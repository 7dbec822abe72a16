"""Checkpoints of sharded models: each rank writes its own shard while training continues.

    step-000250/
      state.ckpt                     as for an unsharded model, without the tensors of weights and optimizer
      shard-00001-....safetensors    one rank's shard of these (torch.distributed.checkpoint)
      metrics.csv, manifest.json

Training waits until the shards are copied to host memory. Files are written, hashed and renamed in the background. A
run can resume from the checkpoint with any number of ranks, or unsharded, because tensors are assembled from their
shards.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.optim import Optimizer

from tercet.training.loop.checkpoint_io import CheckpointFolderIO, add_version
from tercet.training.run_folder.saved_state import read_state
from tercet.training.run_folder.sharded_state import (
    OPTIMIZER,
    WEIGHTS,
    Checkpoint,
    flatten_checkpoint,
    has_shards,
    load_sharded_tensors,
    unflatten_checkpoint,
)


class ShardedStrategy(ModelParallelStrategy):
    """Lightning strategy for sharded models, with checkpoints that are written in the background.

    Args:
        data_parallel_size: Number of ranks that divide a batch among them.
        tensor_parallel_size: Number of ranks that compute the same rows. In both cases, each rank has a shard of the
            model.
        io: Writer of the part of a checkpoint that is not sharded; it also renames the folder at the end.
        offload: If True, the shards are in host memory, so the ranks also need to exchange tensors of the CPU.
    """

    def __init__(
        self, data_parallel_size: int, tensor_parallel_size: int, io: CheckpointFolderIO, *, offload: bool = False
    ) -> None:
        super().__init__(
            data_parallel_size=data_parallel_size, tensor_parallel_size=tensor_parallel_size,
            process_group_backend="cpu:gloo,cuda:nccl" if offload and torch.cuda.is_available() else None,
        )  # fmt: skip
        self.io = io
        self.group: dist.ProcessGroup | None = None
        self.executor = ThreadPoolExecutor(1)
        self.saving: Future[None] | None = None

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return get_model_state_dict(cast(Any, self.model))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return cast(Any, get_optimizer_state_dict(cast(Any, self.model), getattr(optimizer, "optimizer", optimizer)))

    def save_checkpoint(self, checkpoint: Checkpoint, filepath: Any, storage_options: Any = None) -> None:
        """Wait for the previous save, start a save in the background, and return when all tensors are copied.

        If the previous save failed, its error is raised.
        """
        self.wait()
        tensors, rest = flatten_checkpoint(checkpoint)
        with ExitStack() as stack:
            new = stack.enter_context(self.io.write(rest, filepath)) if self.is_global_zero else None
            new = self.broadcast(str(new))
            # A separate process group, since training exchanges tensors while the checkpoint is written.
            self.group = self.group or cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
            writer = HuggingFaceStorageWriter(new, save_distributed=True)
            writing = async_save(tensors, storage_writer=writer, process_group=self.group)
            folder = stack.pop_all()

        def finish() -> None:
            with folder:
                _result(cast(Any, writing))

        self.saving = self.executor.submit(finish)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Checkpoint:
        folder = Path(checkpoint_path).parent
        if not has_shards(folder):
            super().load_checkpoint(checkpoint_path, weights_only=True)  # fills the model and the optimizers
            return add_version(read_state(Path(checkpoint_path)))
        weights = get_model_state_dict(cast(Any, self.model))

        def place(name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
            if name.startswith(WEIGHTS):
                return cast(Tensor, weights[name.removeprefix(WEIGHTS)])
            weight = cast(Tensor, weights[name.removeprefix(OPTIMIZER).rpartition(".")[0]])
            return torch.empty_like(weight, dtype=dtype) if weight.shape == size else torch.empty(size, dtype=dtype)

        rest = add_version(read_state(Path(checkpoint_path)))
        checkpoint = unflatten_checkpoint(load_sharded_tensors(folder, place), rest)
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            set_optimizer_state_dict(cast(Any, self.model), optimizer, optim_state_dict=state)
        return checkpoint

    def post_training_step(self) -> None:
        if self.saving is not None and self.saving.done():
            self.wait()

    def on_train_end(self) -> None:
        self.wait()

    def wait(self) -> None:
        """Wait until the current save, if any, has finished. If it failed, its error is raised."""
        saving, self.saving = self.saving, None
        if saving is not None:
            saving.result()


def _result(future: Any) -> None:
    """Wait for a save. If it failed, raise the first error of its ranks instead of a CheckpointException."""
    try:
        future.result()
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None

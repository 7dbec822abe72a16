"""Checkpoints of a model that is cut up over ranks: each rank writes its own pieces, while training goes on.

    step-000250/
      state.ckpt                     as of a whole model, without tensors of weights and optimizer
      shard-00001-....safetensors    a rank's pieces of these (torch.distributed.checkpoint)
      metrics.csv, manifest.json

The next step waits until the pieces are copied to host memory; files are written, hashed and named beside training. Any
number of ranks goes on from such a checkpoint, and a whole model too: a tensor is put together from the pieces that it
was saved in.
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
    """Args:
    data_parallel_size, tensor_parallel_size: ranks that share the batch, and ranks that work on the same rows; either
        way each has a piece of the model.
    io: writes what is not cut up, and gives the folder its name in the end.
    offload: the pieces are in the host's memory, and are exchanged from there too.
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
        """Returns when all is copied; one save at a time. Raises what the one before has raised."""
        self.wait()
        tensors, rest = flatten_checkpoint(checkpoint)
        with ExitStack() as stack:
            new = stack.enter_context(self.io.write(rest, filepath)) if self.is_global_zero else None
            new = self.broadcast(str(new))
            # Of its own: training exchanges tensors at the same time.
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
        """Until the save that is under way has ended. Raises what it has raised."""
        saving, self.saving = self.saving, None
        if saving is not None:
            saving.result()


def _result(future: Any) -> None:
    """Raises what went wrong on any rank, without the envelope."""
    try:
        future.result()
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None

"""Lightning data module with the batches of a run.

Batches are a function of the step, so there is no state to save.
"""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset, Sampler

from tercet.training.loop.steps_ahead import StepsAhead, copy_to
from tercet.training.tasks.task import Task


class StepDataModule(pl.LightningDataModule):
    """Batches of the remaining steps. On a CUDA device, each is built and copied during the step before it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.ahead: StepsAhead[Any] | None = None

    def train_dataloader(self) -> "DataLoader[list[Any]] | StepsAhead[Any]":
        assert self.trainer is not None
        spec, copy = self.task.recipe.training, copy_to(self.trainer.strategy.root_device)
        batches = _StepDataset(self.task, spec.data_parallel_rank(self.trainer.global_rank), spec.data_parallel_size)
        steps = _StepSampler(self.trainer, self.task.plan.steps)
        if copy is None:
            return DataLoader(batches, sampler=steps, batch_size=None)
        self.ahead = StepsAhead(batches.__getitem__, steps, lambda: self.task.micro, copy)
        return self.ahead

    def close(self) -> None:
        """Stop the thread that builds batches, if there is one."""
        if self.ahead is not None:
            self.ahead.close()


class _StepDataset(Dataset[list[Any]]):
    """Dataset whose item `step` is this device's share of the batch of that step, as a list of micro-batches."""

    def __init__(self, task: Task, rank: int, world: int) -> None:
        self.task, self.rank, self.world = task, rank, world

    def __getitem__(self, step: int) -> list[Any]:
        return self.task.batches(step, self.rank, self.world)


class _StepSampler(Sampler[int]):
    """Sampler of the numbers of the remaining steps.

    Its length is the number of steps of the whole run, which Lightning compares with its count of batches.
    """

    def __init__(self, trainer: Any, steps: int) -> None:
        self.trainer, self.steps = trainer, steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.trainer.global_step, self.steps))

    def __len__(self) -> int:
        return self.steps

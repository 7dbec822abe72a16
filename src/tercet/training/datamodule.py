"""A task's steps, as Lightning wants them. All of it is a function of the step, so nothing need be saved."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset, Sampler

from tercet.training.tasks.task import Task


class StepDataModule(pl.LightningDataModule):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def train_dataloader(self) -> "DataLoader[list[Any]]":
        assert self.trainer is not None
        spec = self.task.recipe.training
        steps = _StepDataset(self.task, spec.data_parallel_rank(self.trainer.global_rank), spec.data_parallel_size)
        return DataLoader(steps, sampler=_StepSampler(self.trainer, self.task.plan.steps), batch_size=None)


class _StepDataset(Dataset[list[Any]]):
    """Item `step` is this device's share of that step's batch, in micro-batches."""

    def __init__(self, task: Task, rank: int, world: int) -> None:
        self.task, self.rank, self.world = task, rank, world

    def __getitem__(self, step: int) -> list[Any]:
        return self.task.batches(step, self.rank, self.world)


class _StepSampler(Sampler[int]):
    """The steps that are left. The length is that of the whole run: Lightning compares it with its own count."""

    def __init__(self, trainer: Any, steps: int) -> None:
        self.trainer, self.steps = trainer, steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.trainer.global_step, self.steps))

    def __len__(self) -> int:
        return self.steps

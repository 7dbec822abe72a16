"""Which rows each step sees, as Lightning wants them. All of it is a function of the step, so nothing need be saved."""

from collections.abc import Iterator
from math import ceil
from typing import Any

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset, Sampler

from tercet.data import Corpus, DataSpec, Order, Packed, PackedRows, PaddedRows, Windows
from tercet.objectives import Batch, rows_to_learn, windows_to_score
from tercet.training.recipe import Recipe, TrainingSpec

VALIDATION_TOKENS = 16_384  # in a batch


def training_rows(corpus: Corpus, data: DataSpec, length: int) -> PackedRows | PaddedRows:
    if isinstance(data.rows, Packed):
        return PackedRows(corpus.train, corpus.train_documents, length=length, document_mask=data.rows.document_mask)
    return PaddedRows(
        corpus.train,
        corpus.train_documents,
        length=length,
        side=data.rows.side,
        stride=data.rows.stride,
        pad_id=corpus.tokenizer.pad_id or 0,
    )


def total_steps(spec: TrainingSpec, n_rows: int) -> int:
    """Optimizer steps of the whole run; an epoch's last batch is filled up from the next."""
    if spec.max_steps is not None:
        return spec.max_steps
    assert spec.max_epochs is not None
    return ceil(spec.max_epochs * n_rows / spec.batch_size)


class Batches(pl.LightningDataModule):
    def __init__(self, corpus: Corpus, recipe: Recipe) -> None:
        super().__init__()
        self.corpus, self.recipe = corpus, recipe
        self.rows = training_rows(corpus, recipe.data, recipe.model.max_len)
        self.steps = total_steps(recipe.training, len(self.rows))
        # A model that never saw one document after another is not asked to go on from one to the next.
        together = isinstance(recipe.data.rows, Packed) and not recipe.data.rows.document_mask
        starts = None if together else corpus.validation_documents
        windows = Windows(corpus.validation, recipe.model.max_len, document_starts=starts)
        tokens = recipe.training.validation_tokens
        some = len(windows) if tokens is None else max(1, min(len(windows), tokens // recipe.model.max_len))
        self.windows, self.chosen = windows, np.linspace(0, len(windows) - 1, some).astype(np.int64)

    def train_dataloader(self) -> "DataLoader[list[Batch]]":
        assert self.trainer is not None
        steps = _Steps(self.rows, self.recipe, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(steps, sampler=_From(self.trainer, self.steps), batch_size=None)

    def validation_batches(self) -> list[Batch]:
        """This device's share of the validation windows; every device has equally many batches."""
        assert self.trainer is not None
        world = self.trainer.world_size
        mine = self.chosen[self.trainer.global_rank :: world]
        each = max(1, VALIDATION_TOKENS // self.recipe.model.max_len)
        most = ceil(len(self.chosen) / world)
        groups = np.array_split(mine, ceil(most / each))
        return [windows_to_score(self.windows.batch(group)) for group in groups]

    def first(self) -> list[Batch]:
        """The first device's first step, to measure speed with."""
        return _Steps(self.rows, self.recipe, 0, self.recipe.training.devices * self.recipe.training.nodes)[0]


class _Steps(Dataset[list[Batch]]):
    """Item `step` is this device's share of that step's rows, in micro-batches."""

    def __init__(self, rows: PackedRows | PaddedRows, recipe: Recipe, rank: int, world: int) -> None:
        spec = recipe.training
        self.rows, self.length, self.rank, self.world = rows, recipe.model.max_len, rank, world
        self.order = Order(len(rows), spec.batch_size, spec.seed)
        self.micro = spec.micro_batch_size or spec.batch_size // world

    def __getitem__(self, step: int) -> list[Batch]:
        numbers, epochs = self.order.rows(step)
        numbers, epochs = numbers[self.rank :: self.world], epochs[self.rank :: self.world]
        shift = {epoch: self.order.shift(int(epoch), self.length) for epoch in np.unique(epochs)}
        shifts = np.array([shift[epoch] for epoch in epochs])
        return [
            rows_to_learn(self.rows.batch(numbers[i : i + self.micro], shifts[i : i + self.micro]))
            for i in range(0, len(numbers), self.micro)
        ]


class _From(Sampler[int]):
    """The steps that are left. The length is that of the whole run: Lightning compares it with its own count."""

    def __init__(self, trainer: Any, steps: int) -> None:
        self.trainer, self.steps = trainer, steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.trainer.global_step, self.steps))

    def __len__(self) -> int:
        return self.steps

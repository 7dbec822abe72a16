"""Rows of text from memory to batches: the speed of data loading compared with a training step.

The data is that of the char shape, B 12 and T 64: the smallest model needs the most tokens per second.
"""

from typing import Any

import numpy as np
import torch
from benchmarks.speed.contender import Contender, Function
from benchmarks.speed.row import Lineup, Options, Row
from torch.utils.data import DataLoader, Dataset

from tercet.data.rows.token_rows import PackedRows
from tercet.objectives import collate_causal

ROWS, LENGTH = 12, 64
BATCHES = 50  # in a unit of work


class Slices(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A dataset with a row at any position, for PyTorch's loader."""

    def __init__(self, ids: np.ndarray) -> None:
        self._ids = torch.from_numpy(ids.astype(np.int64))

    def __len__(self) -> int:
        return (len(self._ids) - 1) // LENGTH

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = number * LENGTH
        return self._ids[at : at + LENGTH], self._ids[at + 1 : at + LENGTH + 1]


def lineup(options: Options) -> Lineup:
    count = 20_000 if options.scale == "tiny" else 1_000_000
    ids = np.random.default_rng(0).integers(0, 65, count).astype(np.uint16)
    packed = PackedRows(ids, np.zeros(1, np.int64), length=LENGTH)

    def ours(n: int) -> float:
        generator = np.random.default_rng(n)
        for _ in range(n * BATCHES):
            collate_causal(packed.batch(generator.integers(0, len(packed), ROWS), 3))
        return n * BATCHES * ROWS * LENGTH

    def theirs(n: int) -> float:
        n_batches = 0
        while n_batches < n * BATCHES:
            for _ in DataLoader(Slices(ids), batch_size=ROWS, shuffle=True, drop_last=True):
                n_batches += 1
                if n_batches == n * BATCHES:
                    break
        return n * BATCHES * ROWS * LENGTH

    def random_slices(n: int) -> float:
        for _ in range(n * BATCHES):
            places = torch.randint(len(ids) - LENGTH, (ROWS,)).tolist()
            inputs: Any = torch.stack([torch.from_numpy(ids[at : at + LENGTH].astype(np.int64)) for at in places])
            torch.stack([torch.from_numpy(ids[at + 1 : at + LENGTH + 1].astype(np.int64)) for at in places])
            assert inputs.shape == (ROWS, LENGTH)
        return n * BATCHES * ROWS * LENGTH

    lineup = Lineup()
    contenders: list[Contender] = [
        Function("tercet", "ours", ours),
        Function("torch DataLoader", "readme", theirs),
        Function("slices by lot (numpy)", "peer", random_slices),
    ]
    lineup.add(*contenders)
    return lineup


LOADING = Row(name="loading", title="Data loading: batches of 12 rows of 64 tokens", lineup=lineup)

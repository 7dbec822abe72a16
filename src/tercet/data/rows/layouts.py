"""Orders of rows for large data: shards in groups, and several sources in fixed shares.

Both are functions of (seed, position), like a permutation, so that no state has to be saved.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tercet.data.rows.order import Layout

CACHED_GROUPS = 8  # two groups of up to four sources: one that ends within a batch, and the next one


@dataclass(frozen=True)
class ShardGroups:
    """Random order of the shards in groups of `group`, and of the rows within each group.

    Rows are read one group after another, so that at most two groups of shards are required at a time.

    Attributes:
        sizes: Number of rows of each shard. Rows are numbered shard by shard.
        group: Number of shards per group; the last group of an epoch may have fewer.
    """

    sizes: tuple[int, ...]
    group: int

    @property
    def n_rows(self) -> int:
        return sum(self.sizes)

    def rows(self, positions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        epochs, index = np.divmod(positions, self.n_rows)
        numbers = np.empty_like(index)
        for epoch in np.unique(epochs).tolist():
            ends = self._group_ends(seed, epoch)
            groups = np.searchsorted(ends, index, side="right")
            for group in np.unique(groups[epochs == epoch]).tolist():
                in_group = (epochs == epoch) & (groups == group)
                first = ends[group - 1] if group else 0
                numbers[in_group] = _group_rows(self, seed, epoch, group)[index[in_group] - first]
        return numbers, epochs

    def groups(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Return the numbers of the shards of each group of an epoch, in the order of the groups."""
        shards = np.random.default_rng([seed, epoch, 2]).permutation(len(self.sizes))
        return [shards[first : first + self.group] for first in range(0, len(shards), self.group)]

    def current(self, position: int, seed: int) -> np.ndarray:
        """Return the numbers of the shards of the group that contains a position."""
        epoch, group = self._group_at(position, seed)
        return self.groups(seed, epoch)[group]

    def following(self, position: int, seed: int) -> np.ndarray:
        """Return the numbers of the shards of the group after the one that contains a position."""
        epoch, group = self._group_at(position, seed)
        groups = self.groups(seed, epoch)
        return groups[group + 1] if group + 1 < len(groups) else self.groups(seed, epoch + 1)[0]

    def _group_at(self, position: int, seed: int) -> tuple[int, int]:
        """Return the epoch of a position, and the number of its group in that epoch."""
        epoch, index = divmod(position, self.n_rows)
        return epoch, int(np.searchsorted(self._group_ends(seed, epoch), index, side="right"))

    def _group_ends(self, seed: int, epoch: int) -> np.ndarray:
        return _group_ends(self, seed, epoch)


@dataclass(frozen=True)
class Mixture:
    """Rows of several layouts in fixed shares, each in its own order and epochs.

    The first layout has floor(n w) of the first n positions, if w is its share. The second layout has its part of the
    remaining positions in the same way, and so on, so that each layout is at most a few rows off its share.

    Attributes:
        layouts: Layouts to mix. Rows are numbered layout by layout.
        weights: Share of the rows from each layout; they sum to 1.
    """

    layouts: tuple[Layout, ...]
    weights: tuple[float, ...]

    @property
    def n_rows(self) -> int:
        return sum(layout.n_rows for layout in self.layouts)

    def rows(self, positions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        numbers, epochs = np.empty_like(positions), np.empty_like(positions)
        first = 0
        for part, (layout, (at, part_positions)) in enumerate(zip(self.layouts, self._share(positions), strict=True)):
            if len(part_positions):
                part_numbers, part_epochs = layout.rows(part_positions, part_seed(seed, part))
                numbers[at], epochs[at] = part_numbers + first, part_epochs
            first += layout.n_rows
        return numbers, epochs

    def part_position(self, part: int, position: int) -> int:
        """Return the number of rows before a position that belong to layout `part`."""
        left = position
        for previous in range(part):
            left -= int(np.floor(left * self._part_of_rest(previous)))
        return left if part == len(self.layouts) - 1 else int(np.floor(left * self._part_of_rest(part)))

    def _share(self, positions: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each layout, the indices of its rows in `positions` (B,), and their positions in the layout."""
        at, left = np.arange(len(positions)), positions
        shares = list[tuple[np.ndarray, np.ndarray]]()
        for part in range(len(self.layouts) - 1):
            share = self._part_of_rest(part)
            previous = np.floor(left * share).astype(np.int64)
            is_selected = np.floor((left + 1) * share).astype(np.int64) > previous
            shares.append((at[is_selected], previous[is_selected]))
            at, left = at[~is_selected], (left - previous)[~is_selected]
        return [*shares, (at, left)]

    def _part_of_rest(self, part: int) -> float:
        return self.weights[part] / sum(self.weights[part:])


def part_seed(seed: int, part: int) -> int:
    """Return the seed of layout `part`. With the seed of the mixture, equally long layouts would have equal orders."""
    return int(np.random.SeedSequence([seed, part, 3]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@lru_cache(maxsize=CACHED_GROUPS)
def _group_ends(layout: ShardGroups, seed: int, epoch: int) -> np.ndarray:
    """Return the position in the epoch at which each group ends."""
    sizes = np.array(layout.sizes, dtype=np.int64)
    return np.cumsum([sizes[shards].sum() for shards in layout.groups(seed, epoch)])


@lru_cache(maxsize=CACHED_GROUPS)
def _group_rows(layout: ShardGroups, seed: int, epoch: int, group: int) -> np.ndarray:
    """Return the rows of a group in their order."""
    sizes = np.array(layout.sizes, dtype=np.int64)
    firsts = [0, *np.cumsum(sizes).tolist()]
    shards = layout.groups(seed, epoch)[group]
    rows = np.concatenate([np.arange(firsts[shard], firsts[shard + 1]) for shard in shards])
    return np.random.default_rng([seed, epoch, 4, group]).permutation(rows)

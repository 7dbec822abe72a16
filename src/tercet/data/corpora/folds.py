"""Folds of cross-validation: the division of all documents or examples into parts of about equal size.

Those of equal identity, such as equal texts or the texts of a group, form a unit that is never divided. Units are
assigned one by one, the largest first, and those with a rare label before others of their size (Sechidis et al. 2011).
Each goes to a fold that is small enough that sizes never differ by more than the largest unit. Among these folds, it
goes to the one with the fewest of its labels, relative to the total of each label. If a unit has several labels, sizes
may differ by one more, because the labels would otherwise be spread no better than at random.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Sequence

from tercet.config import UserError
from tercet.data.split_specs import Fold
from tercet.data.text_hashes import hash_bytes


def assign_folds(
    identities: Sequence[int], *, folds: int, seed: int = 0, labels: Sequence[Sequence[str]] = ()
) -> dict[int, int]:
    """Return the fold of each identity, from 1.

    The result depends on the identities and labels, and not on their order.

    Args:
        identities: (N,) number of each example below 2^64. Examples with equal numbers are in the same fold.
        folds: Number of folds; some are empty if there are fewer distinct identities.
        seed: Seed of the division.
        labels: (N,) labels of each example, or () to divide by size only.
    """
    sizes, label_counts = Counter(identities), {identity: Counter[str]() for identity in identities}
    for identity, example_labels in zip(identities, labels or ((),) * len(identities), strict=True):
        label_counts[identity].update(example_labels)
    totals = Counter[str]()
    for counts in label_counts.values():
        totals.update(counts)

    def position(identity: int) -> tuple[int, int, list[tuple[str, int]], int]:
        counts = label_counts[identity]
        rarest = min((totals[label] for label in counts), default=totals.total())
        return -sizes[identity], rarest, sorted(counts.items()), hash_bytes(struct.pack("<QQ", seed, identity))

    spare = int(any(len(counts) > 1 for counts in label_counts.values()))
    max_difference = max(sizes.values(), default=0) + spare
    fold_sizes, fold_labels = [0] * folds, [Counter[str]() for _ in range(folds)]
    assigned = dict[int, int]()
    for identity in sorted(sizes, key=position):
        size, counts = sizes[identity], label_counts[identity]
        limit = min(fold_sizes) + max_difference - size
        _, _, fold = min(
            (_overlap(fold_labels[fold], counts, totals), fold_sizes[fold], fold)
            for fold in range(folds)
            if fold_sizes[fold] <= limit
        )
        fold_sizes[fold] += size
        fold_labels[fold].update(counts)
        assigned[identity] = fold + 1
    return assigned


def find_fold(
    identities: Iterable[int], split: Fold, labels: Sequence[Sequence[str]] = (), *, name: str, plural: str, remedy: str
) -> frozenset[int]:
    """Return the identities in the validation part.

    Args:
        identities: (N,) number of each example below 2^64. Examples with equal numbers are in the same fold.
        split: Settings of the division.
        labels: (N,) labels of each example, or () to divide by size only.
        name: Name of the data in the message.
        plural: Name of several examples in the message.
        remedy: End of the message: how to get more examples.

    Raises:
        UserError: If there are fewer distinct identities than folds.
    """
    numbers = [int(identity) for identity in identities]
    if (distinct := len(set(numbers))) < split.folds:
        fewer_folds = f"pass --folds {distinct} or fewer (data.validation.folds), or " if distinct > 1 else ""
        raise UserError(f"{name}: {split.folds} folds, but only {distinct:,} distinct {plural}; {fewer_folds}{remedy}")
    assigned = assign_folds(numbers, folds=split.folds, seed=split.seed, labels=labels)
    return frozenset(identity for identity, fold in assigned.items() if fold == split.fold)


def _overlap(fold: Counter[str], unit: Counter[str], totals: Counter[str]) -> float:
    """Return how many of the labels of a unit a fold already has; a rare label counts more than a frequent one."""
    return sum(fold[label] * count / totals[label] ** 2 for label, count in unit.items())

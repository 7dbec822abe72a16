"""What is trained, and on what: all in which the families differ. Everything else in this room is the same for all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card
from tercet.objectives import Loss
from tercet.training.recipe.recipe import Recipe
from tercet.training.tasks.plan import Plan


class Task(Protocol):
    """Attributes:
    plan: how many steps there are, and the rows of each; a budget of hours is settled when the run begins.
    static: every step has the same shapes, so that compiling pays.
    micro: rows that a device holds at once, of a translator tokens a side: as the recipe has it, or fewer, which may be
        set at any step.
    data_name, data_hash: which data it is.
    tokenizer_hash: of the tokenizer, or both.
    """

    plan: Plan
    static: bool
    micro: int
    data_name: str
    data_hash: str
    tokenizer_hash: str

    @property
    def recipe(self) -> Recipe:
        """With the vocabulary's size."""
        ...

    def describe(self) -> str:
        """How much data there is, in a few words."""
        ...

    def batches(self, step: int, rank: int, world: int) -> list[Any]:
        """The micro-batches of device `rank` among `world` in a step, counted from 0: a function of (seed, step)."""
        ...

    def tokens_before(self, step: int) -> int:
        """The tokens that the model read in all steps before this one, over all devices: inputs, special ones among
        them and padding not, repeats counted each time; of a translator both sides. A function of (seed, step)."""
        ...

    def validation_groups(self) -> list[np.ndarray]:
        """The validation set in batches, as numbers of its rows: the same on any number of devices."""
        ...

    def validation_batch(self, group: np.ndarray) -> Any:
        """One of them."""
        ...

    def loss(self, model: Any, batch: Any, *, smoothing: float = 0.0) -> Loss: ...

    def validate_batch(self, model: Any, batch: Any) -> tuple[Loss, dict[str, Tensor]]:
        """The loss of a validation batch, and sums over its targets of other figures, such as how many were right."""
        ...

    def scores(self, model: Any) -> dict[str, float]:
        """What else is measured at a validation, by one device, such as {"val/bleu": 31.2}."""
        ...

    def sample(self, model: Any) -> str:
        """What the model writes as it is now, for people to read."""
        ...

    def save(self, folder: Path, model: Any, card: Card, state: Mapping[str, Tensor]) -> None:
        """Write the model folder."""
        ...


def describe_validation(count: int, items: str, *, near_duplicates: int, left_out: int = 0, cut: int = 0) -> list[str]:
    """Return what `Task.describe` reports of the validation part: nothing if all of it is used, and separate from
    training.

    Args:
        count: Items of the validation part.
        items: Their name, such as "pairs".
        left_out: Conversations whose answers begin beyond the context.
        cut: Items of which only the beginning is validated on.
    """
    duplicates = "duplicate" if near_duplicates == 1 else "duplicates"
    facts = [
        *([f"{left_out:,} whose answers begin beyond max_len left out"] if left_out else []),
        *([f"{cut:,} longer than max_len cut"] if cut else []),
        *([f"{near_duplicates:,} near {duplicates} of training {items}"] if near_duplicates else []),
    ]
    noun = items.removesuffix("s") if count == 1 else items
    return [f"{count:,} validation {noun} ({', '.join(facts)})"] if facts else []

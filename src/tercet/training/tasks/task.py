"""Protocol of training tasks: everything that differs between model families."""

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
    """A training task: data, batches, loss, validation and samples.

    Attributes:
        plan: Number of steps and the rows of each. A length in hours is converted when the run starts.
        static: If True, all steps have the same shapes, so that compiling pays off.
        micro: Rows per device and forward pass, or tokens per side for translation, as in the recipe. It may be reduced
            at any step.
        data_name, data_hash: Name and hash of the data.
        tokenizer_hash: Hash of the tokenizer, or of both tokenizers.
    """

    plan: Plan
    static: bool
    micro: int
    data_name: str
    data_hash: str
    tokenizer_hash: str

    @property
    def recipe(self) -> Recipe:
        """Recipe with the vocabulary size."""
        ...

    def describe(self) -> str:
        """Describe the amount of data in one line."""
        ...

    def batches(self, step: int, rank: int, world: int) -> list[Any]:
        """Return the micro-batches of a device in a step, a function of (seed, step).

        Args:
            step: Step, counted from 0.
            rank: Data-parallel rank of the device.
            world: Number of data-parallel devices.
        """
        ...

    def tokens_before(self, step: int) -> int:
        """Return the number of input tokens in all steps before `step`, over all devices.

        Special tokens and repetitions count, padding does not; translation counts both sides. This is a function of
        (seed, step).
        """
        ...

    def validation_groups(self) -> list[np.ndarray]:
        """Return the batches of the validation part as row numbers, the same for any number of devices."""
        ...

    def validation_batch(self, group: np.ndarray) -> Any:
        """Return the batch of a validation group."""
        ...

    def loss(self, model: Any, batch: Any, *, smoothing: float = 0.0) -> Loss: ...

    def validate_batch(self, model: Any, batch: Any) -> tuple[Loss, dict[str, Tensor]]:
        """Return the loss of a validation batch, and sums of other metrics over its targets."""
        ...

    def scores(self, model: Any) -> dict[str, float]:
        """Return additional validation metrics, computed on one device, such as {"val/bleu": 31.2}."""
        ...

    def sample(self, model: Any) -> str:
        """Return a text sample of the current model."""
        ...

    def save(self, folder: Path, model: Any, card: Card, state: Mapping[str, Tensor]) -> None:
        """Write the model folder."""
        ...


def describe_validation(count: int, items: str, *, near_duplicates: int, left_out: int = 0, cut: int = 0) -> list[str]:
    """Return what `Task.describe` reports of the validation part.

    The list is empty if the whole validation part is used and has no near duplicates in the training part.

    Args:
        count: Number of validation items.
        items: Plural name of the items, such as "pairs".
        near_duplicates: Number of near duplicates of training items.
        left_out: Number of conversations whose answers start after the context.
        cut: Number of items that are truncated.
    """
    duplicates = "duplicate" if near_duplicates == 1 else "duplicates"
    facts = [
        *([f"{left_out:,} whose answers start after max_len left out"] if left_out else []),
        *([f"{cut:,} longer than max_len cut"] if cut else []),
        *([f"{near_duplicates:,} near {duplicates} of training {items}"] if near_duplicates else []),
    ]
    noun = items.removesuffix("s") if count == 1 else items
    return [f"{count:,} validation {noun} ({', '.join(facts)})"] if facts else []

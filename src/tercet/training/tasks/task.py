"""Protocol of training tasks, which contain all code of training that differs between model families."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card
from tercet.objectives import Loss
from tercet.tokens import Tokenizer
from tercet.training.recipe.recipe import Recipe
from tercet.training.tasks.plan import Plan


class Task(Protocol):
    """A training task: data, batches, loss, validation and samples.

    Attributes:
        plan: Number of steps and the rows of each step. A length in hours is converted when the run starts.
        static: If True, the batches of all steps have the same shapes, so that compiling pays off.
        micro: Rows per device and forward pass, or tokens per side for translation. Initially that of the recipe; it is
            reduced if a step runs out of memory.
        data_name, data_hash: Name and hash of the data.
        tokenizer: Tokenizer; for translation, of the target.
        tokenizer_hash: Hash of the tokenizer; for translation, of both tokenizers.
    """

    plan: Plan
    static: bool
    micro: int
    data_name: str
    data_hash: str
    tokenizer: Tokenizer
    tokenizer_hash: str

    @property
    def recipe(self) -> Recipe:
        """Recipe with the vocabulary sizes and labels of the data."""
        ...

    def describe(self) -> str:
        """Describe the data in one line: its amount, and items that are left out or truncated."""
        ...

    def batches(self, step: int, rank: int, world: int) -> list[Any]:
        """Return the micro-batches of a device in a step.

        The rows of the step are a function of (seed, step), and are shared equally by all devices.

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
        """Return the row numbers of each validation batch, the same for any number of devices."""
        ...

    def validation_batch(self, group: np.ndarray) -> Any:
        """Return the batch for one of `validation_groups`."""
        ...

    def loss(self, model: Any, batch: Any, *, smoothing: float = 0.0) -> Loss:
        """Return the training loss of a batch, as a sum over its targets and their number.

        Args:
            model: Model of the task's family.
            batch: Micro-batch from `batches`.
            smoothing: Fraction of label smoothing.
        """
        ...

    def validate_batch(self, model: Any, batch: Any) -> tuple[Loss, dict[str, Tensor]]:
        """Return the loss of a validation batch, and the sums of other metrics over its targets, by name."""
        ...

    def scores(self, model: Any) -> dict[str, float]:
        """Return additional validation metrics, computed on one device, such as {"val/bleu": 31.2}."""
        ...

    def sample(self, model: Any) -> str:
        """Return text that shows the quality of the current model, such as generated text or predictions."""
        ...

    def save(self, folder: Path, model: Any, card: Card, state: Mapping[str, Tensor]) -> None:
        """Write a model folder with model, tokenizers and card.

        Args:
            folder: Folder to write.
            model: Model.
            card: Model card.
            state: Weights to write, by name, instead of those of `model`.
        """
        ...


def describe_validation(count: int, items: str, *, near_duplicates: int, left_out: int = 0, cut: int = 0) -> list[str]:
    """Return the description of the validation part for `Task.describe`, as a list of at most one phrase.

    The list is empty if no validation item is left out, truncated or a near duplicate of a training item.

    Args:
        count: Number of validation items.
        items: Plural name of the items, such as "pairs".
        near_duplicates: Number of near duplicates of training items.
        left_out: Number of conversations that are left out because their answers start after `max_len` tokens.
        cut: Number of items that are truncated to `max_len` tokens.
    """
    duplicates = "duplicate" if near_duplicates == 1 else "duplicates"
    facts = [
        *([f"{left_out:,} left out for answers that start after max_len"] if left_out else []),
        *([f"{cut:,} truncated to max_len"] if cut else []),
        *([f"{near_duplicates:,} near {duplicates} of training {items}"] if near_duplicates else []),
    ]
    noun = items.removesuffix("s") if count == 1 else items
    return [f"{count:,} validation {noun} ({', '.join(facts)})"] if facts else []

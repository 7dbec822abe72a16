"""What is trained, and on what: all in which the families differ. Everything else in this room is the same for all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from tercet.checkpoint import Card
from tercet.objectives import Loss
from tercet.training.recipe import Recipe


class Task(Protocol):
    """Attributes:
    recipe: with the vocabulary's size.
    steps: optimizer steps of the whole run.
    steps_per_epoch: how many of them see all data once.
    static: every step has the same shapes, so that compiling pays.
    data_name, data_hash: which data it is.
    tokenizer_hash: of the tokenizer, or both.
    """

    recipe: Recipe
    steps: int
    steps_per_epoch: float
    static: bool
    data_name: str
    data_hash: str
    tokenizer_hash: str

    def describe(self) -> str:
        """How much data there is, in a few words."""
        ...

    def batches(self, step: int, rank: int, world: int) -> list[Any]:
        """The micro-batches of device `rank` among `world` in a step, counted from 0: a function of (seed, step)."""
        ...

    def tokens(self, step: int) -> int:
        """Real tokens of a step, over all devices."""
        ...

    def validation(self, rank: int, world: int) -> list[Any]:
        """This device's share of the validation set; every device has equally many batches."""
        ...

    def loss(self, model: Any, batch: Any, *, smoothing: float = 0.0) -> Loss: ...

    def scores(self, model: Any) -> dict[str, float]:
        """What else is measured at a validation, such as {"val/bleu": 31.2}."""
        ...

    def sample(self, model: Any) -> str:
        """What the model writes as it is now, for people to read."""
        ...

    def save(self, folder: Path, model: Any, card: Card, state: Mapping[str, Tensor]) -> None:
        """Write the model folder."""
        ...


def task_of(recipe: Recipe, *, progress: bool) -> Task:
    """Read and tokenise the data, and look for whatever the user can have got wrong.

    Raises:
        UserError: where data and settings do not fit.
    """
    from tercet.data import DataSpec

    if isinstance(recipe.data, DataSpec):
        from tercet.training.language import LanguageTask

        return LanguageTask(recipe, progress=progress)
    from tercet.training.translation import TranslationTask

    return TranslationTask(recipe, progress=progress)

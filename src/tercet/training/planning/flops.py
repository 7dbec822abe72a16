"""The FLOPs of training, for a token that a step reads, or a pair of them: what `tercet.inspect.model_table` counts, as
the recipe trains the model.

    6 N + 12 L H K T                  all of it learns, every place is scored
    - 6 (1 - r) N_head                a masked model scores the share r of the places alone
    - 2 N_frozen                      of a matrix that does not learn no gradient is worked out
    + 6 N_adapter                     of an adapter beside it

What is worked out once more for activation checkpointing is not counted, as it is not in MFU.
"""

from dataclasses import dataclass
from typing import Literal

from tercet.config import UserError
from tercet.inspect import ModelTable, model_table
from tercet.training.planning.step_memory import StepMemory, measure_step
from tercet.training.recipe.recipe import MaskedRecipe, Recipe

HEAD = ("transform", "unembedding")  # the layers that masked places alone meet


@dataclass(frozen=True, kw_only=True)
class TrainingFlops:
    """Attributes:
    per_token: forward and backward, for a token, or a source's and a target's together.
    multiplied: numbers of the matrices that every token meets.
    """

    per_token: int
    multiplied: int
    unit: Literal["token", "token pair"]

    def for_tokens(self, tokens: float) -> float:
        """Of as many tokens as a run counts: of a translator both sides'."""
        return tokens / (2 if self.unit == "token pair" else 1) * self.per_token


def training_flops(recipe: Recipe, memory: StepMemory | None = None) -> TrainingFlops:
    """Of a recipe that has the vocabulary's size, with rows as long as the model takes.

    Args:
        memory: a step of it that was counted, which knows what learns.

    Raises:
        UserError: where the model's sizes do not fit together.
    """
    try:
        table = model_table(recipe.model)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    if memory is None and (recipe.freeze or recipe.adapter is not None):
        memory = measure_step(recipe, micro=1, device="cuda", precision="fp32", checkpointing=False)
    flops = table.flops_training - _unscored_flops(recipe, table)
    if memory is not None:
        flops += 6 * memory.adapter - 2 * memory.frozen_multiplied
    return TrainingFlops(per_token=flops, multiplied=table.multiplied, unit=table.unit)


def _unscored_flops(recipe: Recipe, table: ModelTable) -> int:
    """FLOPs of places that no loss asks for."""
    if not isinstance(recipe, MaskedRecipe):
        return 0
    length = recipe.model.max_len
    scored_share = recipe.task.masking.max_predictions(length) / length
    head = sum(row.flops for row in table.rows if row.name.partition(".")[0] in HEAD)
    return round(3 * (1 - scored_share) * head)

"""FLOPs of training per input token, or per pair of a source and a target token for translation.

They are those of `tercet.inspect.model_table`, with corrections for the recipe:

    6 N + 12 L H K T                  all weights are trained, all positions are scored
    - 6 (1 - r) N_head                a masked model scores only the fraction r of the positions
    - 2 N_frozen                      frozen matrices have no weight gradient
    + 6 N_adapter                     an adapter is trained in addition

N is the number of elements of the multiplied matrices, L the number of attentions, H of heads, K the width of a head
and T the maximum length. Recomputation for activation checkpointing is not counted, as in MFU.
"""

from dataclasses import dataclass
from typing import Literal

from tercet.config import UserError
from tercet.inspect import ModelTable, model_table
from tercet.training.planning.step_memory import StepMemory, measure_step
from tercet.training.recipe.recipe import MaskedRecipe, Recipe

HEAD = ("transform", "unembedding")  # layers that process only masked positions


@dataclass(frozen=True, kw_only=True)
class TrainingFlops:
    """FLOPs of forward and backward passes.

    Attributes:
        per_token: FLOPs per token, or per pair of a source and a target token.
        multiplied: Number of elements of the matrices that are multiplied for every token.
        unit: "token", or "token pair" for translation.
    """

    per_token: int
    multiplied: int
    unit: Literal["token", "token pair"]

    def for_tokens(self, tokens: float) -> float:
        """Return the FLOPs for a number of tokens, which for translation counts source and target tokens."""
        return tokens / (2 if self.unit == "token pair" else 1) * self.per_token


def training_flops(recipe: Recipe, memory: StepMemory | None = None) -> TrainingFlops:
    """Return the FLOPs of a recipe with rows of the maximum length.

    Args:
        recipe: Recipe with its vocabulary sizes.
        memory: Result of `measure_step` for the recipe, with the sizes of frozen matrices and of the adapter; None to
            measure them if the recipe has any.

    Raises:
        UserError: If the model's sizes do not fit together.
    """
    try:
        table = model_table(recipe.model, length=recipe.row_len)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    if memory is None and (recipe.freeze or recipe.adapter is not None):
        memory = measure_step(recipe, micro=1, device="cuda", precision="fp32", checkpointing=False)
    flops = table.flops_training - _unscored_flops(recipe, table)
    if memory is not None:
        flops += 6 * memory.adapter - 2 * memory.frozen_multiplied
    return TrainingFlops(per_token=flops, multiplied=table.multiplied, unit=table.unit)


def _unscored_flops(recipe: Recipe, table: ModelTable) -> int:
    """Return the FLOPs per token that the head of a masked model does not need, and 0 for other recipes.

    `model_table` counts the head at all positions, but training applies it only to masked ones.
    """
    if not isinstance(recipe, MaskedRecipe):
        return 0
    length = recipe.row_len
    scored_share = recipe.task.masking.max_predictions(length) / length
    head = sum(row.flops for row in table.rows if row.name.partition(".")[0] in HEAD)
    return round(3 * (1 - scored_share) * head)

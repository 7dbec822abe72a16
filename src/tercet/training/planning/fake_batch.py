"""Micro-batches and losses of each task, without data, to measure a training step on fake tensors."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tercet.data import Packed, TextSpec
from tercet.objectives import (
    CausalBatch,
    LabeledBatch,
    MaskedBatch,
    PairBatch,
    QueryBatch,
    causal_loss,
    classify_loss,
    contrastive_loss,
    masked_loss,
    seq2seq_loss,
)
from tercet.training.recipe.recipe import (
    ChatRecipe,
    LabelsRecipe,
    LanguageRecipe,
    MaskedRecipe,
    Recipe,
    TranslationRecipe,
    VectorsRecipe,
)

_ids = partial(torch.zeros, dtype=torch.long)
_mask = partial(torch.ones, dtype=torch.bool)


def fake_batch(recipe: Recipe, micro: int) -> Any:
    """Return a micro-batch of the recipe's task, filled with constants.

    Its rows have the maximum length, and it has the masks that the recipe's data requires.

    Args:
        recipe: Recipe with its vocabulary sizes.
        micro: Rows, or tokens per side for translation, padding included.
    """
    length = recipe.row_len
    match recipe:
        case LanguageRecipe():
            return CausalBatch(_ids(micro, length), _ids(micro, length), *_masks(recipe.data, micro, length))
        case ChatRecipe():
            return CausalBatch(_ids(micro, length), _ids(micro, length))
        case MaskedRecipe():
            n_predicted = micro * recipe.task.masking.max_predictions(length)
            masks = _masks(recipe.data, micro, length)
            return MaskedBatch(_ids(micro, length), _ids(n_predicted), _ids(n_predicted), *masks)
        case TranslationRecipe():
            length = min(length, micro)
            rows = micro // length
            return PairBatch(_ids(rows, length), _mask(rows, length), _ids(rows, length), _ids(rows, length))
        case LabelsRecipe():
            segments = None if recipe.data.pair_field is None else _ids(micro, length)
            targets = _label_targets(recipe, micro, length)
            return LabeledBatch(_ids(micro, length), _mask(micro, length), targets, segments)
        case VectorsRecipe():
            documents = micro * (1 if recipe.data.negative_field is None else 2)
            queries, texts = (micro, length), (documents, length)
            return QueryBatch(
                _ids(*queries), _mask(*queries), _ids(*texts), _mask(*texts), _mask(micro, documents), _ids(micro)
            )
        case _:
            raise TypeError(f"no batch for a {type(recipe).__name__}")


def fake_loss(recipe: Recipe, model: Any, batch: Any) -> Tensor:
    """Return the training loss of the recipe's task, summed over the targets."""
    smoothing = recipe.training.label_smoothing
    match recipe:
        case LanguageRecipe() | ChatRecipe():
            return causal_loss(model, batch, smoothing=smoothing, objective=recipe.task.objective).total
        case MaskedRecipe():
            return masked_loss(model, batch, smoothing=smoothing, objective=recipe.task.objective).total
        case TranslationRecipe():
            return seq2seq_loss(model, batch, smoothing=smoothing, objective=recipe.task.objective).total
        case LabelsRecipe():
            return classify_loss(model, batch, smoothing=smoothing, objective=recipe.task.objective).total
        case VectorsRecipe():
            spec = recipe.task
            return contrastive_loss(
                model, batch, pooling=spec.pooling, temperature=spec.temperature, sizes=spec.sizes
            ).total
        case _:
            raise TypeError(f"no loss for a {type(recipe).__name__}")


def _masks(data: TextSpec, rows: int, length: int) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask of real tokens and the document ids, both of shape (rows, length).

    The mask is None for packed rows. The document ids are None unless packed rows have a document mask.
    """
    if isinstance(data.rows, Packed):
        return None, _ids(rows, length) if data.rows.document_mask else None
    return _mask(rows, length), None


def _label_targets(recipe: LabelsRecipe, rows: int, length: int) -> Tensor:
    if recipe.data.problem_type == "multi_label_classification":
        return torch.zeros(rows, len(recipe.classifier.labels))
    if recipe.data.problem_type == "regression":
        return torch.zeros(rows)
    return _ids(rows, length) if recipe.data.over == "tokens" else _ids(rows)

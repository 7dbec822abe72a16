"""Verdict on a finished run: its best model compared with simple baselines, and with itself before fine-tuning.

The scores of the best model are those of its validation. The baselines are computed on the same validation part, and
the pretrained model is validated in the same way.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tercet.checkpoint import load_model, read_card
from tercet.checkpoint.run_record import PRETRAINED_COPY
from tercet.config import UserError
from tercet.evaluate import multi_label_scores, regression_scores
from tercet.evaluate.baselines import ngram_losses, unigram
from tercet.evaluate.verdicts import (
    COUNTS,
    LABELS_ADVICE,
    MORE_TRAINING,
    Verdict,
    judge,
    judge_accuracy,
    judge_before,
    judge_rmse,
)
from tercet.models import AnyModel, build
from tercet.models.inference import inference_mode
from tercet.objectives import IGNORE_INDEX, move_batch
from tercet.training.distributed.devices import accelerator
from tercet.training.recipe.pretrained import load_pretrained_weights
from tercet.training.run_folder.changes import read_recipe
from tercet.training.tasks.open_task import task_of
from tercet.training.tasks.task import Task

COUNTED_TOKENS = 1 << 25  # training tokens that are counted for a language model or a translator
NGRAM_TOKENS, NGRAM_ORDER = 1 << 22, 6  # training tokens that are counted for n-gram models, and their largest n


def judge_run(folder: Path) -> list[Verdict]:
    """Return the verdicts on the best model of a run; empty if it is better than the baselines or has no validation.

    The data of the run is opened again, from its cache. If that is not possible, there are no verdicts.

    Args:
        folder: Run folder.
    """
    return _judge(folder, _judge_baseline, _judge_pretrained)


def judge_fine_tuning(folder: Path) -> list[Verdict]:
    """Return the verdict on the best model of a fine-tuning, compared with the pretrained model.

    Args:
        folder: Run folder, or another folder, for which there is no verdict.
    """
    if not (folder / PRETRAINED_COPY / "config.json").exists():
        return []
    return _judge(folder, _judge_pretrained)


def _judge(folder: Path, *judges: Callable[[Task, dict[str, float], Path], list[Verdict]]) -> list[Verdict]:
    metrics = read_card(folder).metrics
    if "val/loss" not in metrics:
        return []
    with suppress(UserError, OSError):
        recipe = read_recipe(folder)
        if recipe.training.is_sharded:
            return []
        copy = folder / PRETRAINED_COPY
        pretrained = load_model(copy) if (copy / "config.json").exists() else None
        task = task_of(recipe, pretrained=pretrained, progress=False)
        return [verdict for judge_task in judges for verdict in judge_task(task, metrics, copy)]
    return []


def _judge_pretrained(task: Task, metrics: dict[str, float], copy: Path) -> list[Verdict]:
    if not (copy / "config.json").exists():
        return []
    recipe = task.recipe
    model = build(recipe.model, seed=recipe.training.seed)
    if load_pretrained_weights(model, load_model(copy).model, str(copy)).new:  # it could not do the task before
        return []
    loss = validation_loss(task, model.eval().to(accelerator(recipe.training)))
    return judge_before(metrics["val/loss"], loss, unit=loss_unit(task))


def validation_loss(task: Task, model: AnyModel) -> float:
    """Return the validation loss of a model, `val/loss`."""
    total = count = 0.0
    for group in task.validation_groups():
        batch = move_batch(task.validation_batch(group), model)
        with inference_mode(model.modules()):
            loss, _ = task.validate_batch(model, batch)
        total, count = total + float(loss.plain), count + float(loss.count)
    return total / max(1.0, count)


def unigram_loss(task: Any, metrics: dict[str, float]) -> float | None:
    """Return the validation loss of counting tokens, in nats per target; None if the task has no such baseline.

    Args:
        task: Task of a run.
        metrics: Validation metrics of the run.
    """
    match task.recipe.task.kind:
        case "masked":
            return metrics.get("val/unigram_entropy")
        case "language" | "translation" as kind:
            train, validation = task.corpus.train, task.corpus.validation
            if kind == "translation":
                train, validation = train.target, validation.target
            counted = unigram(
                train[:COUNTED_TOKENS], validation, vocab_size=task.corpus.tokenizer.vocab_size, n_bytes=1
            )  # fmt: skip
            return counted.loss_nats_per_token
        case _:
            return None


def ngram_loss(task: Any) -> float:
    """Return the loss of the best n-gram model on the validation part of a text, in nats per token.

    Args:
        task: Task of a run on running text.
    """
    corpus = task.corpus
    train = np.asarray(corpus.train[:NGRAM_TOKENS])
    return min(ngram_losses(train, corpus.validation, vocab_size=corpus.tokenizer.vocab_size, order=NGRAM_ORDER))


def _judge_baseline(task: Any, metrics: dict[str, float], _: Path) -> list[Verdict]:
    if task.recipe.task.kind == "labels":
        return _judge_labels(task, metrics)
    baseline = unigram_loss(task, metrics)
    if baseline is None:
        return []
    return judge(
        metrics["val/loss"], baseline, measure=loss_unit(task), name=COUNTS["unigram"], advice=MORE_TRAINING
    )  # fmt: skip


def _judge_labels(task: Any, metrics: dict[str, float]) -> list[Verdict]:
    held_out = task.corpus.validation
    targets = held_out.labels if held_out.over == "tokens" else held_out.targets(np.arange(len(held_out)))
    match held_out.problem_type:
        case "single_label_classification":
            counts = np.bincount(targets[targets != IGNORE_INDEX])
            return judge_accuracy(metrics["val/accuracy"], float(counts.max() / counts.sum()))
        case "multi_label_classification":
            constant = multi_label_scores(targets > 0, targets > 0, held_out.names, resamples=0).constant_f1
            return judge(
                metrics.get("val/f1", 0.0), constant, measure="macro F1",
                name="always predicting the labels of most texts", advice=LABELS_ADVICE, higher_is_better=True,
                style=".1%",
            )  # fmt: skip
        case _:
            constant = regression_scores(targets, targets, resamples=0).constant_rmse
            return judge_rmse(metrics.get("val/rmse", 0.0), constant)


def loss_unit(task: Any) -> str:
    """Return the unit of the validation loss of a task."""
    units = {"masked": "nats per masked token", "chat": "nats per answer token", "labels": "validation loss",
             "translation": "nats per target token"}  # fmt: skip
    return units.get(task.recipe.task.kind, "nats per token")

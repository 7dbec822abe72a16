"""Scores of the model: recorded validations, a baseline, and optionally the results of `tercet evaluate`.

The baseline needs no model. For tokens, it is the entropy of their frequencies if this is recorded, otherwise uniform
guessing: ln n nats for n tokens or labels. For numbers, it is the mean of the training labels.
"""

import math
from collections.abc import Mapping
from typing import Any

from tercet.checkpoint import TrainedModel
from tercet.evaluate import (
    ChatEvaluation,
    LabelsEvaluation,
    LanguageEvaluation,
    MaskedEvaluation,
    TranslationEvaluation,
    VectorsEvaluation,
    evaluation_of,
)
from tercet.notebook import Table, View
from tercet.reports.markup import Markup, Section, element, join, missing, paragraph, scrolling_table
from tercet.reports.measures import MEASURES
from tercet.reports.subject import ReportSubject

UNITS = {
    "language": "nats per token", "chat": "nats per answer token", "translation": "nats per target token",
    "masked": "nats per masked token", "labels": "nats per label", "vectors": "nats per query",
}  # fmt: skip


def score_section(subject: ReportSubject, *, evaluate: bool) -> Section:
    """Return the section with the scores of the model.

    Args:
        subject: Subject of the report.
        evaluate: If True, also score the model as `tercet evaluate` does.

    Raises:
        UserError: If the model is to be scored and its data is not available.
    """
    parts = [_recorded_scores(subject)]
    if evaluate and subject.trained_model is not None:
        parts.append(_evaluation_tables(subject.trained_model))
    elif (
        subject.trained_model is not None
        and "evaluate" in subject.trained_model.verbs
        and subject.trained_model.card.data_settings
    ):
        command = "`tercet watch RUN --export PAGE.html --evaluate`"
        words = f"This report contains no evaluation. {command} also scores the model as `tercet evaluate` does"
        suffix = ", compared with counting and compression." if subject.task == "language" else "."
        parts.append(missing(words + suffix))
    return Section(id="scores", title="Scores", body=join(*parts))


def _recorded_scores(subject: ReportSubject) -> Markup:
    """Return a table with a row per measure and columns for the saved model, the last validation and the baseline."""
    trained_model = subject.trained_model
    model_metrics = (
        {} if trained_model is None else {k: v for k, v in trained_model.card.metrics.items() if k.startswith("val/")}
    )
    last_points = {name: point for name in ("val/loss", *MEASURES) if (point := subject.latest(name)) is not None}
    names = [name for name in ("val/loss", *MEASURES) if name in model_metrics or name in last_points]
    if not names:
        return missing("No validation is recorded.")
    step = max((step for step, _ in last_points.values()), default=0)
    header = ["measure"]
    if model_metrics and trained_model is not None:
        header.append(f"this model, step {trained_model.card.step:,}")
    has_last_column = bool(last_points) and not (
        model_metrics and trained_model is not None and trained_model.card.step == step
    )
    header += [f"last, step {step:,}"] if has_last_column else []
    guessing = _guessing_scores(subject)
    columns = bool(model_metrics) + has_last_column
    rows = list[list[str]]()
    for name in names:
        title, form = MEASURES[name][:2] if name in MEASURES else (f"Loss, {_unit(subject)}", "{:.4f}")
        values = [model_metrics.get(name)] if model_metrics else []
        values += [last_points[name][1] if name in last_points else None] if has_last_column else []
        rows.append([title, *("" if value is None else form.format(value) for value in values), guessing.get(name, "")])
        if name == "val/loss" and _unit(subject).endswith("token"):
            powers = ("" if value is None or value > 700 else f"{math.exp(value):,.2f}" for value in values)
            rows.append(["Perplexity", *powers, ""])
    if any(row[-1] for row in rows):
        header.append("without a model")
    else:
        rows = [row[:-1] for row in rows]
    right = (False, *(True for _ in range(columns)), False)
    return scrolling_table(
        rows, label="Scores on the validation part, recorded during training", header=header, right=right
    )


def _unit(subject: ReportSubject) -> str:
    return "share of the variance" if _problem_type(subject) == "regression" else UNITS.get(subject.task, "nats")


def _problem_type(subject: ReportSubject) -> str:
    data: Any = subject.recipe.get("data")
    if subject.trained_model is not None and subject.task == "labels":
        return subject.trained_model.require("classify").label_head.problem_type
    return str(data.get("problem_type", "")) if isinstance(data, Mapping) else ""


def _guessing_scores(subject: ReportSubject) -> dict[str, str]:
    """Return the scores of the baseline by measure, as texts; empty if there is no baseline."""
    if entropy := subject.latest("val/unigram_entropy"):
        return {"val/loss": f"{entropy[1]:.4f}, counting tokens"}
    trained_model = subject.trained_model
    if trained_model is None:
        return {}
    if subject.task == "labels":
        labels = len(trained_model.require("classify").label_head.labels)
        match _problem_type(subject):
            case "regression":
                return {"val/loss": "1, predicting the mean"}
            case "single_label_classification" if labels > 1:
                uniform = f"uniform over {labels:,} labels"
                return {
                    "val/loss": f"{math.log(labels):.4f}, {uniform}",
                    "val/accuracy": f"{1 / labels:.1%}, {uniform}",
                }
            case _:
                return {}
    if subject.task == "vectors":
        return {}
    vocabulary = trained_model.model.spec.vocab_size
    if "val/unigram_entropy" in trained_model.card.metrics:
        return {"val/loss": f"{trained_model.card.metrics['val/unigram_entropy']:.4f}, counting tokens"}
    return {"val/loss": f"{math.log(vocabulary):.4f}, uniform over {vocabulary:,} tokens"}


def _evaluation_tables(trained_model: TrainedModel) -> Markup:
    """Return the tables that `tercet evaluate` prints for the model."""
    return join(
        element("h3", "Scores of ", element("code", "tercet evaluate"), " on held-out data"),
        *map(_part, _score(trained_model).parts),
    )


def _part(part: Table | str) -> Markup:
    if isinstance(part, str):
        return _note(part)
    return join(scrolling_table(part.rows, label="", header=part.header, right=part.right), _note(part.caption))


def _note(text: str) -> Markup:
    return paragraph(text, class_="note") if text else Markup()


def _score(trained_model: TrainedModel) -> View:
    match evaluation_of(trained_model):
        case LanguageEvaluation() as evaluation:
            corpus = evaluation.load()
            return evaluation.score(corpus).view(evaluation.baselines(corpus))
        case TranslationEvaluation() as evaluation:
            return evaluation.score(evaluation.load()).scores.view()
        case MaskedEvaluation() as evaluation:
            return evaluation.score(evaluation.load()).view()
        case ChatEvaluation() as evaluation:
            return evaluation.score(evaluation.load()).view()
        case LabelsEvaluation() as evaluation:
            return evaluation.score(evaluation.load()).view()
        case VectorsEvaluation() as evaluation:
            return evaluation.score(evaluation.load()).view()
        case _:
            raise TypeError(f"no tables for {trained_model.kind}")

"""Find the errors of a trained model of any task, on its held-out data or on other data."""

from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Int

from tercet.checkpoint import Encoder, TrainedModel
from tercet.checkpoint.training_data import open_training_data
from tercet.config import UserError
from tercet.data import ConversationCorpus, Corpus, CustomDataset, LabelCorpus, ParallelCorpus
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.data.sources.id_files import IdDtype
from tercet.data.sources.line_documents import DocumentUnit
from tercet.evaluate.errors.labels import LabelErrors, find_label_errors
from tercet.evaluate.errors.matching_rows import matching_rows
from tercet.evaluate.errors.numbers import RegressionErrors, find_number_errors
from tercet.evaluate.errors.pairs import PairErrors, find_pair_errors
from tercet.evaluate.errors.selection import ErrorSelection, Ranking, count_marked
from tercet.evaluate.errors.texts import TextErrors, find_text_errors
from tercet.evaluate.errors.token_errors import ScoredTokens
from tercet.evaluate.masked import count_ids, training_counts
from tercet.evaluate.tasks import evaluation_of
from tercet.evaluate.tasks.chat import ChatEvaluation
from tercet.evaluate.tasks.evaluation import Part
from tercet.evaluate.tasks.labels import LabelsEvaluation
from tercet.evaluate.tasks.language import LanguageEvaluation
from tercet.evaluate.tasks.masked import MaskedEvaluation
from tercet.evaluate.tasks.translation import TranslationEvaluation

ModelErrors = TextErrors | PairErrors | LabelErrors | RegressionErrors

# Settings of the data that each task has; the other settings of `ErrorOptions` are those of all tasks.
DATA_SETTINGS = {
    "language": ("data", "encoding", "text_field", "documents", "dtype"),
    "masked": ("data", "encoding", "text_field", "documents", "dtype"),
    "chat": ("data", "encoding"),
    "labels": ("data", "encoding", "text_field"),
    "translation": ("source", "target", "part", "encoding"),
}


class ErrorOptions(TypedDict, total=False):
    """Settings of `Run.find_errors`: other data, how it is read, and the fields of `ErrorSelection`."""

    source: str | Path | None  # translation models: other sentence pairs
    target: str | Path | None
    part: Part | None
    encoding: str | None
    text_field: str | None
    documents: DocumentUnit | None
    dtype: IdDtype | None
    where: str | None  # COLUMN=VALUE: only these rows of the .jsonl, .csv or .tsv file `data` or `source`
    top: int
    min_length: int | None
    max_length: int | None
    rare: int | None
    rank_by: Ranking
    batch_tokens: int


def find_errors(
    trained_model: TrainedModel, data: str | Path | CustomDataset | None = None, **options: Any
) -> ModelErrors:
    """Return the worst predictions of a model on held-out data, or on all of `data`.

    Args:
        trained_model: A language model, masked model, chat model, translator, classifier or regression.
        data: File, folder, named dataset or dataset of another package. For a translator, pass `source` and `target`.
        options: Settings of `ErrorOptions`.

    Raises:
        UserError: If the model or a setting is not supported, the data is missing or has changed since the training, no
            text matches the filters, or the outputs of the model are not finite.
        TypeError: If there is no such setting.
    """
    batch_tokens, where = int(options.pop("batch_tokens", BATCH_TOKENS)), options.pop("where", None)
    settings = {name: options.pop(name) for name in _ALL_DATA_SETTINGS if name in options}
    settings = {name: value for name, value in {"data": data, **settings}.items() if value is not None}
    selection = ErrorSelection(**options)
    check_data_settings(trained_model, settings)
    if selection.rank_by == "chrf" and trained_model.task != "translation":
        raise UserError(
            f"chrF ranks translations, and {trained_model.folder} is {trained_model.kind}; use mean or total"
        )
    is_held_out = "data" not in settings and "source" not in settings
    counts = _count_training_tokens(trained_model) if is_held_out or selection.rare is not None else None
    evaluation: Any = evaluation_of(trained_model)
    loaded = evaluation.load(**settings) if where is None else _load_rows(evaluation, settings, where)
    match evaluation:
        case LanguageEvaluation() | MaskedEvaluation() | ChatEvaluation():
            return find_text_errors(_score_tokens(evaluation, loaded, counts, batch_tokens), selection)
        case TranslationEvaluation():
            return find_pair_errors(
                evaluation.trained_model, loaded.pairs, selection, train_counts=counts, batch_tokens=batch_tokens
            )
        case LabelsEvaluation():
            rare = None
            if selection.rare is not None:
                assert counts is not None
                rare = count_marked((counts <= selection.rare)[loaded.ids], loaded.starts)
            find = find_number_errors if loaded.problem_type == "regression" else find_label_errors
            return find(evaluation.trained_model, loaded, selection, rare_tokens=rare, batch_tokens=batch_tokens)
        case _:
            raise TypeError(f"no errors for {trained_model.kind}")


_ALL_DATA_SETTINGS = tuple(dict.fromkeys(name for names in DATA_SETTINGS.values() for name in names))


def lists_errors(trained_model: TrainedModel) -> bool:
    """Return whether the errors of a model can be listed: all that can be evaluated, except those for search."""
    is_reranker = isinstance(trained_model, Encoder) and trained_model.is_reranker
    return "evaluate" in trained_model.verbs and trained_model.task in DATA_SETTINGS and not is_reranker


def check_data_settings(trained_model: TrainedModel, settings: dict[str, Any]) -> None:
    """Check that the model has errors to list, and that it supports these settings of the data.

    Raises:
        UserError: If the model or a setting is not supported.
    """
    trained_model.require("evaluate")
    if not lists_errors(trained_model):
        raise UserError(
            f"{trained_model.folder} is {trained_model.kind} for search, whose errors are not listed; use "
            f"`tercet evaluate {trained_model.folder}`"
        )
    names = DATA_SETTINGS[trained_model.task]
    if unsupported := [name for name in settings if name not in names]:
        raise UserError(
            f"{unsupported[0]} does not apply to {trained_model.folder}, which is {trained_model.kind}; "
            f"available: {', '.join(names)}"
        )


def _load_rows(evaluation: Any, settings: dict[str, Any], where: str) -> Any:
    """Load the rows of the file in `settings` that match a condition.

    Raises:
        UserError: If there is no single file, or as in `matching_rows`.
    """
    name = next((name for name in ("data", "source") if name in settings), None)
    if name is None or "target" in settings or isinstance(settings[name], CustomDataset):
        raise UserError("rows are selected in one file with a column for each value; pass it as data or source")
    encoding = settings.get("encoding") or "utf-8"
    with matching_rows(settings[name], where, encoding=encoding) as path:
        return evaluation.load(**{**settings, name: path, "encoding": "utf-8"})


def _score_tokens(
    evaluation: LanguageEvaluation | MaskedEvaluation | ChatEvaluation,
    loaded: Any,
    counts: Int[np.ndarray, " V"] | None,
    batch_tokens: int,
) -> ScoredTokens:
    predicted = None
    match evaluation:
        case ChatEvaluation():
            ids, starts = loaded.ids, np.asarray(loaded.starts)
            losses = evaluation.token_losses(loaded, batch_tokens=batch_tokens)
        case MaskedEvaluation():
            ids, starts = loaded.validation, np.append(loaded.validation_documents, len(loaded.validation))
            losses, predicted = evaluation.token_losses(loaded, batch_tokens=batch_tokens)
        case LanguageEvaluation():
            ids, starts = loaded.validation, np.append(loaded.validation_documents, len(loaded.validation))
            losses = evaluation.token_losses(loaded, batch_tokens=batch_tokens)
    return ScoredTokens(
        ids=ids,
        losses=losses,
        starts=starts,
        tokenizer=evaluation.trained_model.tokenizer,
        predicted=predicted,
        train_counts=counts,
    )


def _count_training_tokens(trained_model: TrainedModel) -> Int[np.ndarray, " V"]:
    """Return how often each token occurs in the training data; for sentence pairs, in the targets.

    Raises:
        UserError: If the training data is not on this machine, or has changed.
    """
    size = trained_model.tokenizer.vocab_size
    match open_training_data(trained_model, download=True):
        case Corpus() as corpus:
            return training_counts(corpus)
        case ParallelCorpus(train=train):
            return count_ids(train.target, size)
        case LabelCorpus(train=train) | ConversationCorpus(train=train):
            return count_ids(train.ids, size)
        case _:
            raise UserError(
                f"{trained_model.folder} does not contain its training data settings, so tokens cannot be counted and "
                "nothing is held out; pass other data, and leave the filter of rare tokens out"
            )

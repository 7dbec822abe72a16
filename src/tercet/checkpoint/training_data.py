"""Open the training data of a model again, if it is still on this machine.

Models may come from anyone, so the paths in a model's card and recipe are not trusted. A file is hashed and compared
with the card's `data_hash` before its text is used: only an author who already had the file could have written its
hash. A URL is never fetched.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

from tercet.checkpoint.trained_model import TrainedModel
from tercet.config import UserError
from tercet.data import (
    DATASETS,
    LABEL_DATASETS,
    PAIR_DATASETS,
    QUERY_DATASETS,
    ConversationCorpus,
    ConversationsSpec,
    Corpus,
    LabelCorpus,
    LabelsSpec,
    PairsSpec,
    ParallelCorpus,
    QueriesSpec,
    QueryCorpus,
    TextSpec,
    prepare,
    prepare_conversations,
    prepare_labels,
    prepare_pairs,
    prepare_queries,
)
from tercet.data.cache import ChangedData
from tercet.data.datasets.downloads import offline
from tercet.data.datasets.pair_datasets import language_names
from tercet.data.shards.find_prepared import is_url
from tercet.data.sources.files import find_path

TrainingData = Corpus | ParallelCorpus | LabelCorpus | ConversationCorpus | QueryCorpus
DataSpec = TextSpec | PairsSpec | LabelsSpec | ConversationsSpec | QueriesSpec


def apply_languages(spec: PairsSpec, trained_model: TrainedModel) -> PairsSpec:
    """Return `spec` with the languages of the pairs that a translator was trained on.

    They select the columns of the data, or the direction of a named dataset. If the card of the model does not contain
    its data settings, `spec` is returned unchanged.
    """
    trained_on = trained_model.trained_on(PairsSpec)
    if trained_on is None:
        return spec
    return replace(spec, source_language=trained_on.source_language, target_language=trained_on.target_language)


def translation_languages(trained_model: TrainedModel) -> tuple[str | None, str | None]:
    """Return the languages that a translator translates from and to, as far as its data settings name them.

    They are named as in the data: "de", "German" or a column. Each is None if the settings do not name it, cannot be
    read, or are those of another task.
    """
    try:
        spec = trained_model.trained_on(PairsSpec)
        return (None, None) if spec is None else language_names(spec)
    except UserError:
        return None, None


def open_training_data(trained_model: TrainedModel, *, download: bool = False) -> TrainingData | None:
    """Open training and validation part of a model's training data, tokenized with the model's tokenizer.

    Args:
        trained_model: Model whose card contains the data settings.
        download: If True, download a named dataset that is not on this machine.

    Returns:
        The data, or None if the card does not contain its settings.

    Raises:
        UserError: If the data is missing, is not what the model was trained on, or cannot be read.
    """
    spec = find_training_data(trained_model)
    if spec is None:
        return None
    tokenizer, expected_hash = trained_model.tokenizer, trained_model.card.data_hash
    try:
        with nullcontext() if download else offline():
            match spec:
                case PairsSpec():
                    source = trained_model.source_tokenizer
                    return prepare_pairs(
                        spec, tokenizer=tokenizer, source_tokenizer=source, expected_hash=expected_hash
                    )
                case LabelsSpec():
                    return prepare_labels(spec, tokenizer=tokenizer, expected_hash=expected_hash)
                case QueriesSpec():
                    return prepare_queries(spec, tokenizer=tokenizer, expected_hash=expected_hash)
                case ConversationsSpec():
                    template = trained_model.chat_template
                    return prepare_conversations(
                        spec, tokenizer=tokenizer, template=template, expected_hash=expected_hash
                    )
                case TextSpec():
                    return prepare(spec, tokenizer=tokenizer, expected_hash=expected_hash)
    except ChangedData:
        raise UserError(
            f"{spec.source} has changed since the training, so its validation part may contain training data; "
            f"{other_data_hint(trained_model)}"
        ) from None


def find_training_data(trained_model: TrainedModel) -> DataSpec | None:
    """Return the settings of a model's training data after checking that the data may be opened.

    Returns:
        The settings, or None if the card does not contain them.

    Raises:
        UserError: If the card has no hash to compare the data with, or a file is missing or at a URL.
    """
    match trained_model.task:
        case "translation":
            spec = trained_model.trained_on(PairsSpec, opens=True)
        case "labels":
            spec = trained_model.trained_on(LabelsSpec, opens=True)
        case "vectors":
            spec = trained_model.trained_on(QueriesSpec, opens=True)
        case "chat":
            spec = trained_model.trained_on(ConversationsSpec, opens=True)
        case _:
            spec = trained_model.trained_on(TextSpec, opens=True)
    if spec is None:
        return None
    for path in _paths(spec):
        if is_url(path) or not find_path(path).exists():
            raise UserError(
                f"{trained_model.folder} was trained on {path}, which is not on this machine; "
                f"{other_data_hint(trained_model)}"
            )
    if not trained_model.card.data_hash:
        raise UserError(
            f"{trained_model.folder} has no data_hash in its card.json to compare {spec.source} with; "
            f"{other_data_hint(trained_model)}"
        )
    return spec


def _paths(spec: DataSpec) -> Iterator[str]:
    """Yield every path or URL that is read with `spec`; named datasets and those of other packages have none."""
    names = {*DATASETS, *PAIR_DATASETS, *LABEL_DATASETS, *QUERY_DATASETS}
    for part in (spec, spec.validation, *getattr(spec, "mixture", ())):
        for key in ("source", "target"):
            source = getattr(part, key, None)
            if isinstance(source, str) and source not in names:
                yield source


def other_data_hint(trained_model: TrainedModel) -> str:
    """Return the command that evaluates a model on other data, for error messages."""
    flags = "--source FILE --target FILE" if trained_model.task == "translation" else "--data PATH"
    return f"to use other data: tercet evaluate {trained_model.folder} {flags}"

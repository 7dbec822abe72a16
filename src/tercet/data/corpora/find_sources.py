"""Early check that the training data exists and has the right fields."""

from collections.abc import Iterable

from tercet.data.label_spec import LabelsSpec
from tercet.data.sources.custom_dataset import CustomDataset
from tercet.data.sources.dataset_source import DatasetDocuments, DatasetSource
from tercet.data.specs import ConversationsSpec, PairsSpec, QueriesSpec, TextSpec


def check_sources(spec: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec | QueriesSpec) -> None:
    """Check that the training data of `spec` exists, and that its first item can be read.

    The check includes all files of prepared folders, and connects to their URLs. Named datasets are not checked,
    because they may have to be downloaded first. Of a dataset of another package, the first examples are read twice.

    Raises:
        UserError: If a file does not exist, has an unsupported suffix or lacks a field, or a text is empty; or a
            dataset of another package is empty or does not have the same examples twice. For a missing file, the
            message suggests the nearest name.
    """
    for source in (spec.source, getattr(spec.validation, "source", None)):
        if isinstance(source, CustomDataset):
            DatasetSource(dataset=source).check()
    match spec:
        case TextSpec():
            from tercet.data.datasets.text_datasets import DATASETS, find_text
            from tercet.data.sources.documents import DocumentFiles

            if spec.source not in DATASETS:
                from tercet.data.shards.find_prepared import may_be_prepared

                if spec.mixture or may_be_prepared(spec.source):
                    from tercet.data.corpora.prepared import check_prepared, is_prepared

                    if is_prepared(spec):
                        check_prepared(spec)
                        return
                documents = find_text(spec)
                documents.size()
                if isinstance(documents, DocumentFiles | DatasetDocuments):
                    _read_first(documents.pieces())
        case PairsSpec():
            from tercet.data.datasets.pair_datasets import PAIR_DATASETS, find_pairs

            if spec.target is not None or spec.source not in PAIR_DATASETS:
                pairs = find_pairs(spec)
                pairs.size()
                _read_first(pairs.examples())
        case LabelsSpec():
            from tercet.data.datasets.label_datasets import LABEL_DATASETS, find_labels
            from tercet.data.datasets.query_datasets import QUERY_DATASETS

            if spec.source not in (QUERY_DATASETS if spec.negatives else LABEL_DATASETS):
                labels = find_labels(spec)
                labels.size()
                _read_first(labels.examples())
        case QueriesSpec():
            from tercet.data.datasets.query_datasets import QUERY_DATASETS, find_queries

            if spec.source not in QUERY_DATASETS:
                queries = find_queries(spec)
                queries.size()
                _read_first(queries.examples())
        case ConversationsSpec():
            from tercet.data.examples.conversations import find_conversations

            conversations = find_conversations(spec)
            conversations.size()
            _read_first(conversations.examples())


def _read_first(items: Iterable[object]) -> None:
    for _ in items:
        return

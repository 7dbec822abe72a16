"""Early check that the training data exists."""

from tercet.data.specs import ConversationsSpec, LabelsSpec, PairsSpec, QueriesSpec, TextSpec


def check_sources(spec: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec | QueriesSpec) -> None:
    """Check that the training data of `spec` exists, without reading all of it.

    The check includes all files of prepared folders, and connects to their URLs. Named datasets are not checked,
    because they may have to be downloaded first.

    Raises:
        UserError: If a file does not exist or has an unsupported suffix. For a missing file, the message suggests the
            nearest name.
    """
    match spec:
        case TextSpec():
            from tercet.data.datasets.text_datasets import DATASETS, find_text

            if spec.source not in DATASETS:
                from tercet.data.shards.find_prepared import may_be_prepared

                if spec.mixture or may_be_prepared(spec.source):
                    from tercet.data.corpora.prepared import check_prepared, is_prepared

                    if is_prepared(spec):
                        check_prepared(spec)
                        return
                find_text(spec).size()
        case PairsSpec():
            from tercet.data.datasets.pair_datasets import PAIR_DATASETS, find_pairs

            if spec.target is not None or spec.source not in PAIR_DATASETS:
                find_pairs(spec).size()
        case LabelsSpec():
            from tercet.data.datasets.label_datasets import LABEL_DATASETS, find_labels
            from tercet.data.datasets.query_datasets import QUERY_DATASETS

            if spec.source not in (QUERY_DATASETS if spec.negatives else LABEL_DATASETS):
                find_labels(spec).size()
        case QueriesSpec():
            from tercet.data.datasets.query_datasets import QUERY_DATASETS, find_queries

            if spec.source not in QUERY_DATASETS:
                find_queries(spec).size()
        case ConversationsSpec():
            from tercet.data.examples.conversations import find_conversations

            find_conversations(spec).size()

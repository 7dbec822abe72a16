"""Evaluation of a reranker: it sorts the first documents that BM25 finds for the queries of the validation part."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tercet.checkpoint.training_data import find_training_data, open_training_data, other_data_hint
from tercet.config import UserError, parse, to_plain
from tercet.data import Example, LabelsSpec, QueryPair, read_label_examples
from tercet.data.datasets.query_datasets import QUERY_DATASETS
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.data.sources.custom_dataset import CustomDataset, plain_source
from tercet.encoding.rerank import score_relevance
from tercet.evaluate.retrieval import CANDIDATES, SearchResults, search_reranked
from tercet.evaluate.tasks.evaluation import Kind, SearchEvaluation


@dataclass(frozen=True)
class RerankEvaluation(SearchEvaluation):
    kind: ClassVar[Kind] = "reranker"

    def load(
        self, data: str | Path | CustomDataset | None = None, *, encoding: str | None = None
    ) -> tuple[QueryPair, ...]:
        """Return the queries and documents of the validation part of the model's data, or of the file `data`.

        Args:
            data: A file of pairs, with the fields of the training data; or a named dataset, of which the validation
                part is read.
            encoding: Encoding of the file.

        Raises:
            UserError: If the data is missing, has changed since the training, or has no relevant pair.
        """
        trained_model = self.trained_model
        if data is not None:
            trained_on = trained_model.trained_on(LabelsSpec)
            assert trained_on is not None  # `is_reranker`
            source = plain_source(data)
            is_dataset = trained_on.negatives and str(data) in QUERY_DATASETS
            validation = None if is_dataset else {"kind": "held_out", "source": source}
            changes = {"source": source, "validation": validation, "encoding": encoding or "utf-8"}
            spec = parse(LabelsSpec, to_plain(trained_on) | changes)
        else:
            open_training_data(trained_model, download=True)  # checks that the data has not changed
            spec = find_training_data(trained_model)
            if not isinstance(spec, LabelsSpec):
                raise UserError(
                    f"{trained_model.folder} does not contain its training data settings; "
                    f"{other_data_hint(trained_model)}"
                )
        pairs = pair_queries(read_label_examples(spec, "validation"))
        if not pairs:
            raise UserError(f"{spec.source} has no relevant pair to search for; use data with at least one")
        return pairs

    def search(
        self, pairs: Sequence[QueryPair], *, candidates: int = CANDIDATES, batch_tokens: int = BATCH_TOKENS
    ) -> SearchResults:
        """Return the results in search.

        Args:
            pairs: Queries and documents.
            candidates: Number of the first documents of BM25 that are reranked.
            batch_tokens: Maximum number of tokens per batch, including padding.

        Raises:
            UserError: If there are fewer than two documents, or bm25s is not installed.
        """
        model, tokenizer = self.trained_model.model, self.trained_model.tokenizer

        def score_pairs(pairs: Sequence[tuple[str, str]]) -> tuple[list[float], int]:
            scores, cuts = score_relevance(model, tokenizer, pairs, batch_tokens=batch_tokens)
            return scores, sum(cuts)

        return search_reranked(score_pairs, pairs, candidates=candidates)


def pair_queries(examples: Sequence[Example]) -> tuple[QueryPair, ...]:
    """Return the relevant pairs of queries and documents. Irrelevant documents of the same query are hard negatives.

    Queries without a relevant document are left out.

    Args:
        examples: Pairs with one label if the document is relevant, and none if it is not.
    """
    pairs = [QueryPair(*example.texts) for example in examples if example.labels and all(example.texts)]
    documents = {pair.query: pair.document for pair in pairs}
    negatives = (example.texts for example in examples if not example.labels and example.texts[0] in documents)
    return (*pairs, *(QueryPair(query, documents[query], negative) for query, negative in negatives))

"""Evaluation of text vectors by search among the validation part of queries and documents, or in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tercet.checkpoint.training_data import open_training_data, other_data_hint
from tercet.config import UserError, parse
from tercet.data import QueriesSpec, QueryCorpus, QueryPair, read_examples
from tercet.data.datasets.query_datasets import QUERY_DATASETS, find_queries
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.data.sources.custom_dataset import CustomDataset, plain_source
from tercet.encoding import embed
from tercet.evaluate.retrieval import SearchResults, search_vectors
from tercet.evaluate.tasks.evaluation import Kind, SearchEvaluation

FIELDS = ("query_field", "document_field", "negative_field")  # settings that also apply to other files


@dataclass(frozen=True)
class VectorsEvaluation(SearchEvaluation):
    kind: ClassVar[Kind] = "encoder of texts"

    def load(
        self, data: str | Path | CustomDataset | None = None, *, encoding: str | None = None
    ) -> tuple[QueryPair, ...]:
        """Return the validation part of the model's data, or all pairs of the file `data`.

        Args:
            data: A file of queries and documents, with the fields of the training data; or a named dataset, of which
                the validation part is read.
            encoding: Encoding of the file.

        Raises:
            UserError: If the data is missing, or has changed since the training.
        """
        trained_model = self.trained_model
        if data is not None:
            trained_on = trained_model.trained_on(QueriesSpec)
            fields = {name: getattr(trained_on, name) for name in FIELDS} if trained_on else dict[str, Any]()
            spec = parse(QueriesSpec, {"source": plain_source(data), "encoding": encoding or "utf-8", **fields})
            return tuple(read_examples(find_queries(spec, "validation" if str(data) in QUERY_DATASETS else "train")))
        corpus = open_training_data(trained_model, download=True)
        if corpus is None:
            raise UserError(
                f"{trained_model.folder} does not contain its training data settings; {other_data_hint(trained_model)}"
            )
        assert isinstance(corpus, QueryCorpus)
        return corpus.validation_texts

    def search(self, pairs: Sequence[QueryPair], *, batch_tokens: int = BATCH_TOKENS) -> SearchResults:
        """Return the results in search.

        Args:
            pairs: Queries and documents.
            batch_tokens: Maximum number of tokens per batch, including padding.

        Raises:
            UserError: If there are fewer than two documents, or a vector is not finite.
        """
        encoder = self.trained_model

        def embed_texts(texts: Sequence[str]) -> tuple[np.ndarray, int]:
            embeddings = embed(
                encoder.model, encoder.tokenizer, texts, pooling=encoder.sentence.pooling,
                projection=encoder.projection, normalize=False, max_len=encoder.text_len, batch_tokens=batch_tokens,
            )  # fmt: skip
            return embeddings.vectors, embeddings.truncated

        return search_vectors(embed_texts, pairs, sizes=encoder.sentence.sizes)

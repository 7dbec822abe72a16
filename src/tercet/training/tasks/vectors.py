"""Training task of text vectors: queries and documents that belong together get similar vectors.

The pairs of a step are sorted by length, so that micro-batches need little padding. The choice of pairs for a step is a
function of the seed and the step.
"""

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card, TrainedModel, save_model
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.config import UserError
from tercet.data import QueryPairs, prepare_queries, query_rows
from tercet.data.rows.batching import cut_rows, deal_micro_batches
from tercet.encoding import embed
from tercet.evaluate.retrieval import validation_measures
from tercet.models import EncoderOnly
from tercet.objectives import Loss, QueryBatch, collate_queries, contrastive_loss
from tercet.training.recipe.recipe import VectorsRecipe
from tercet.training.tasks.plan import RowSums, plan_of
from tercet.training.tasks.task import describe_validation

SAMPLE_CANDIDATES = 200  # pairs of the validation part whose documents are searched for a sample
SAMPLE_CHARACTERS = 100  # of a text in a sample


class VectorsTask:
    static = False

    def __init__(
        self, recipe: VectorsRecipe, *, pretrained: TrainedModel | None = None, progress: bool = False
    ) -> None:
        self.length = recipe.row_len
        if self.length < 3:
            raise UserError(f"max_len={self.length} is too small for a token between two special tokens; increase it")
        if pretrained is not None and pretrained.projection is not None:
            raise UserError(
                f"pretrained: {pretrained.folder} has dense layers after the pooling, which task: vectors cannot "
                "train; use a model without them"
            )
        corpus = self.corpus = prepare_queries(
            recipe.data, tokenizer=pretrained and pretrained.tokenizer, progress=progress
        )
        self.recipe = recipe.with_vocabulary(corpus.tokenizer.vocab_size)
        self.lengths = _row_lengths(corpus.train, self.length)
        self.tokens = RowSums(self.lengths)
        self.micro = recipe.task.micro_batch(recipe.training.data_parallel_size)
        self.plan = plan_of(recipe.training, len(corpus.train), batch=recipe.task.batch_size, micro=self.micro)
        self.data_name, self.data_hash = corpus.name, corpus.hash
        self.tokenizer, self.tokenizer_hash = corpus.tokenizer, corpus.tokenizer.hash

    def describe(self) -> str:
        corpus = self.corpus
        cut, held_out_cut = (
            sum(int((lengths + 2 > self.length).sum()) for lengths in part.lengths)
            for part in (corpus.train, corpus.validation)
        )
        negatives = int((corpus.train.lengths[2] > 0).sum())
        facts = [
            f"{len(corpus.train):,} training pairs",
            *([f"{negatives:,} hard negatives"] if negatives else []),
            *([f"{corpus.skipped:,} left out for having no query or no document"] if corpus.skipped else []),
            *([f"{cut:,} texts truncated to max_len"] if cut else []),
            *describe_validation(
                len(corpus.validation), "pairs", near_duplicates=corpus.near_duplicates, cut=held_out_cut
            ),
        ]
        return ", ".join(facts)

    def batches(self, step: int, rank: int, world: int) -> list[QueryBatch]:
        numbers, _ = self.plan.rows(step)
        groups = deal_micro_batches(numbers, self.lengths[numbers], size=self.micro, rank=rank, world=world)
        return [self._batch(self.corpus.train, group) for group in groups]

    def tokens_before(self, step: int) -> int:
        return self.tokens.sum_before(self.plan, step)

    def validation_groups(self) -> list[np.ndarray]:
        numbers = np.arange(len(self.corpus.validation))
        return cut_rows(numbers, ceil(len(numbers) / self.recipe.task.micro_batch(1)))

    def validation_batch(self, group: np.ndarray) -> QueryBatch:
        return self._batch(self.corpus.validation, group)

    def loss(self, model: EncoderOnly, batch: QueryBatch, *, smoothing: float = 0.0) -> Loss:
        spec = self.recipe.task
        return contrastive_loss(model, batch, pooling=spec.pooling, temperature=spec.temperature, sizes=spec.sizes)

    def validate_batch(self, model: EncoderOnly, batch: QueryBatch) -> tuple[Loss, dict[str, Tensor]]:
        return self.loss(model, batch), {}

    def scores(self, model: EncoderOnly) -> dict[str, float]:
        """Return the measures of search among all documents of the validation part."""
        measures = validation_measures(
            model, self.tokenizer, self.corpus.validation_texts, pooling=self.recipe.task.pooling
        )
        return {f"val/{name}": value for name, value in measures.items()}

    def sample(self, model: EncoderOnly) -> str:
        """Return some validation queries with their documents and the most similar ones."""
        pairs = self.corpus.validation_texts[:SAMPLE_CANDIDATES]
        queries, documents = ([pair[side] for pair in pairs] for side in (0, 1))
        queries = queries[: self.recipe.task.sample_texts]
        query_vectors, document_vectors = (
            embed(model, self.tokenizer, texts, pooling=self.recipe.task.pooling).vectors
            for texts in (queries, documents)
        )
        closest = (query_vectors @ document_vectors.T).argmax(1).tolist()
        blocks = list[str]()
        for query, document, number in zip(queries, documents, closest, strict=False):
            lines = {"query": query, "text": document, "closest": documents[number]}
            texts = {name: " ".join(text.split())[:SAMPLE_CHARACTERS] for name, text in lines.items()}
            blocks.append("\n".join(f"{name:<8} {text}" for name, text in texts.items()))
        return "\n\n".join(blocks)

    def save(self, folder: Path, model: EncoderOnly, card: Card, state: Mapping[str, Tensor]) -> None:
        sentence = SentenceSettings(pooling=self.recipe.task.pooling, sizes=self.recipe.task.sizes)
        save_model(folder, model, self.corpus.tokenizer, card, sentence=sentence, state=state)

    def _batch(self, pairs: QueryPairs, numbers: np.ndarray) -> QueryBatch:
        tokenizer = self.tokenizer
        assert tokenizer.bos_id is not None
        assert tokenizer.eos_id is not None
        # Without a padding token any token can be used, because the mask excludes padding.
        special = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id or 0}
        return collate_queries(query_rows(pairs, numbers, max_len=self.length, **special))


def _row_lengths(pairs: QueryPairs, max_len: int) -> np.ndarray:
    """Return the number of tokens of each pair, with the special tokens of its texts, (P,) int64."""
    queries, documents, negatives = pairs.lengths
    texts = [np.minimum(queries + 2, max_len), np.minimum(documents + 2, max_len)]
    return texts[0] + texts[1] + np.where(negatives > 0, np.minimum(negatives + 2, max_len), 0)

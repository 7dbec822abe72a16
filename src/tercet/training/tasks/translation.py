"""Training task of translators: predict each token from the source sentence and the preceding tokens.

A step takes some buckets of sentence pairs of similar length from the current epoch. The choice of buckets is a
function of the seed and the step.
"""

import itertools
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card, TrainedModel, save_model, tokenizer_hash
from tercet.config import UserError
from tercet.data import Buckets, Pairs, gather, prepare_pairs
from tercet.data.datasets.pair_datasets import target_language
from tercet.data.rows.batching import cut_rows, cut_share
from tercet.evaluate import bleu
from tercet.evaluate.protocols import bleu_tokenizer
from tercet.generation import Beam, translate
from tercet.models import EncoderDecoder
from tercet.objectives import Loss, PairBatch, collate_pairs, seq2seq_loss
from tercet.training.recipe.recipe import TranslationRecipe
from tercet.training.tasks.plan import RowSums, plan_of
from tercet.training.tasks.task import describe_validation

VALIDATION_TOKENS = 8_192  # per batch


class TranslationTask:
    static = False

    def __init__(
        self, recipe: TranslationRecipe, *, pretrained: TrainedModel | None = None, progress: bool = False
    ) -> None:
        world = recipe.training.data_parallel_size
        tokenizer = None if pretrained is None else pretrained.tokenizer
        source_tokenizer = None if pretrained is None else pretrained.source_tokenizer
        corpus = self.corpus = prepare_pairs(
            recipe.data,
            tokenizer=tokenizer,
            source_tokenizer=None if source_tokenizer is tokenizer else source_tokenizer,
            progress=progress,
        )
        joint = corpus.source_tokenizer is corpus.tokenizer
        if not joint and recipe.model.share_embeddings:
            raise UserError(
                "model.share_embeddings requires one vocabulary; set it to false, or leave out source_tokenizer"
            )
        self.recipe = recipe.with_vocabulary(
            corpus.tokenizer.vocab_size, source_size=None if joint else corpus.source_tokenizer.vocab_size
        )
        max_len = recipe.row_len
        self.bucket_tokens = self.micro = recipe.task.bucket_tokens(world)
        seed = recipe.training.seed
        self.buckets = Buckets(corpus.train, tokens=self.bucket_tokens, max_len=max_len, seed=seed)
        self.tokens = RowSums(self.buckets.real_tokens)
        self.plan = plan_of(recipe.training, len(self.buckets), batch=recipe.task.buckets_per_step(world), micro=1)
        self.data_name, self.data_hash = corpus.name, corpus.hash
        self.tokenizer = corpus.tokenizer
        self.tokenizer_hash = tokenizer_hash(corpus.tokenizer, corpus.source_tokenizer)
        self.max_len = max_len
        self.held_out_lengths = np.maximum(corpus.validation.source_lengths, corpus.validation.target_lengths)
        self.language = target_language(recipe.data)
        references = [reference for _, reference in self._scored_pairs()]
        if references:
            try:
                bleu_tokenizer("detokenized", self.language, references)
            except UserError as error:
                raise UserError(f"{error}, or set task.validation_sentences to 0 to train without BLEU") from None

    def describe(self) -> str:
        left_out = [
            *([f"{self.corpus.skipped:,} left out for an empty side"] if self.corpus.skipped else []),
            *([f"{self.buckets.skipped:,} left out for exceeding max_len"] if self.buckets.skipped else []),
        ]
        held_out = describe_validation(
            len(self.corpus.validation),
            "pairs",
            near_duplicates=self.corpus.near_duplicates,
            cut=int((self.held_out_lengths > self.max_len).sum()),
        )
        training = f"{len(self.corpus.train):,} training pairs"
        facts = [training, *left_out, f"{self.buckets.padding:.1%} padding", *held_out]
        return ", ".join(facts)

    def batches(self, step: int, rank: int, world: int) -> list[PairBatch]:
        numbers, epochs = self.plan.rows(step)
        shares = (cut_share(values, rank=rank, world=world).tolist() for values in (numbers, epochs))
        buckets = itertools.starmap(self.buckets.numbers, zip(*shares, strict=True))
        pieces = ceil(self.bucket_tokens / self.micro)  # per bucket
        return [self._batch(self.corpus.train, rows) for bucket in buckets for rows in cut_rows(bucket, pieces)]

    def tokens_before(self, step: int) -> int:
        return self.tokens.sum_before(self.plan, step)

    def validation_groups(self) -> list[np.ndarray]:
        pairs, order = self.corpus.validation, np.argsort(self.held_out_lengths, kind="stable")
        longest = sum(min(int(side.max()), self.max_len) for side in (pairs.source_lengths, pairs.target_lengths))
        return cut_rows(order, ceil(longest * len(order) / VALIDATION_TOKENS))

    def validation_batch(self, group: np.ndarray) -> PairBatch:
        return self._batch(self.corpus.validation, group)

    def loss(self, model: EncoderDecoder, batch: PairBatch, *, smoothing: float = 0.0) -> Loss:
        return seq2seq_loss(model, batch, smoothing=smoothing, objective=self.recipe.task.objective)

    def validate_batch(self, model: EncoderDecoder, batch: PairBatch) -> tuple[Loss, dict[str, Tensor]]:
        return self.loss(model, batch), {}

    def scores(self, model: EncoderDecoder) -> dict[str, float]:
        """Return the cased, detokenized BLEU of greedy translations as `val/bleu`; empty if none are scored."""
        pairs = self._scored_pairs()
        if not pairs:
            return {}
        translations = self._translate(model, [source for source, _ in pairs])
        return {"val/bleu": bleu(translations, [reference for _, reference in pairs], language=self.language)}

    def sample(self, model: EncoderDecoder) -> str:
        pairs = self.corpus.validation_texts[: self.recipe.task.sample_sentences]
        translations = self._translate(model, [source for source, _ in pairs])
        return "\n\n".join(
            f"source     {source}\nreference  {reference}\noutput     {text}"
            for (source, reference), text in zip(pairs, translations, strict=True)
        )

    def save(self, folder: Path, model: EncoderDecoder, card: Card, state: Mapping[str, Tensor]) -> None:
        corpus = self.corpus
        source_tokenizer = None if corpus.source_tokenizer is corpus.tokenizer else corpus.source_tokenizer
        save_model(folder, model, corpus.tokenizer, card, source_tokenizer=source_tokenizer, state=state)

    def _scored_pairs(self) -> Sequence[tuple[str, str]]:
        return self.corpus.validation_texts[: self.recipe.task.validation_sentences]

    def _batch(self, pairs: Pairs, numbers: np.ndarray) -> PairBatch:
        source, target = self.corpus.source_tokenizer, self.corpus.tokenizer
        assert source.pad_id is not None
        assert target.pad_id is not None
        assert target.bos_id is not None
        special = {"source_pad": source.pad_id, "bos": target.bos_id, "pad": target.pad_id}
        return collate_pairs(gather(pairs, numbers, max_len=self.max_len, **special))

    def _translate(self, model: EncoderDecoder, texts: list[str]) -> list[str]:
        source, target = self.corpus.source_tokenizer, self.corpus.tokenizer
        answers = translate(model, target, texts, Beam(size=1), source_tokenizer=source)
        return [answer[0].text for answer in answers]

"""The task of a language model: predict each token of a text from those before it."""

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card, save_model
from tercet.config import UserError
from tercet.data import Corpus, DataSpec, Order, Packed, PackedRows, PaddedRows, Windows, prepare
from tercet.generation import Sampling, encode_prompt, generate
from tercet.models import DecoderOnly, DecoderOnlySpec
from tercet.objectives import CausalBatch, Loss, causal_loss, rows_to_learn, windows_to_score
from tercet.training.recipe import Recipe, TrainingSpec

VALIDATION_TOKENS = 16_384  # in a batch


def training_rows(corpus: Corpus, data: DataSpec, length: int) -> PackedRows | PaddedRows:
    if isinstance(data.rows, Packed):
        return PackedRows(corpus.train, corpus.train_documents, length=length, document_mask=data.rows.document_mask)
    return PaddedRows(
        corpus.train,
        corpus.train_documents,
        length=length,
        side=data.rows.side,
        stride=data.rows.stride,
        pad_id=corpus.tokenizer.pad_id or 0,
    )


def total_steps(spec: TrainingSpec, steps_per_epoch: float) -> int:
    """Optimizer steps of the whole run; an epoch's last batch is filled up from the next."""
    if spec.max_steps is not None:
        return spec.max_steps
    assert spec.max_epochs is not None
    return ceil(spec.max_epochs * steps_per_epoch)


class LanguageTask:
    static = True

    def __init__(self, recipe: Recipe, *, progress: bool = False) -> None:
        assert isinstance(recipe.data, DataSpec)
        assert isinstance(recipe.model, DecoderOnlySpec)
        spec, self.length = recipe.training, recipe.model.max_len
        if spec.batch_tokens is not None:
            raise UserError("training.batch_tokens is for sentence pairs; text comes in equal rows: set batch_size")
        if spec.best_by != "loss":
            raise UserError(f"training.best_by={spec.best_by} is for translation; set it to loss")
        if spec.validation_sentences is not None:
            raise UserError("training.validation_sentences is for translation; for text set validation_tokens")
        self.corpus = prepare(recipe.data, progress=progress)
        self.recipe = recipe.with_vocabulary(self.corpus.tokenizer.vocab_size)
        self.rows = training_rows(self.corpus, recipe.data, self.length)
        self.steps_per_epoch = len(self.rows) / spec.batch_size
        self.steps = total_steps(spec, self.steps_per_epoch)
        self.order = Order(len(self.rows), spec.batch_size, spec.seed)
        self.data_name, self.data_hash = self.corpus.name, self.corpus.hash
        self.tokenizer_hash = self.corpus.tokenizer.hash
        # A model that never saw one document after another is not asked to go on from one to the next.
        starts = self.corpus.validation_documents if recipe.data.documents_apart else None
        self.windows = Windows(self.corpus.validation, self.length, document_starts=starts)
        wanted = spec.validation_tokens
        some = len(self.windows) if wanted is None else max(1, min(len(self.windows), wanted // self.length))
        self.chosen = np.linspace(0, len(self.windows) - 1, some).astype(np.int64)
        if spec.sample_tokens and spec.sample_prompt is not None:
            encode_prompt(self.corpus.tokenizer, spec.sample_prompt)  # refused now, not after an hour

    def describe(self) -> str:
        return f"{len(self.corpus.train):,} training tokens"

    def batches(self, step: int, rank: int, world: int) -> list[CausalBatch]:
        numbers, epochs = self.order.rows(step)
        numbers, epochs = numbers[rank::world], epochs[rank::world]
        shift = {epoch: self.order.shift(int(epoch), self.length) for epoch in np.unique(epochs)}
        shifts = np.array([shift[epoch] for epoch in epochs])
        spec = self.recipe.training
        micro = spec.micro_batch_size or spec.batch_size // world
        return [
            rows_to_learn(self.rows.batch(numbers[i : i + micro], shifts[i : i + micro]))
            for i in range(0, len(numbers), micro)
        ]

    def tokens(self, step: int) -> int:
        return self.recipe.training.batch_size * self.length

    def validation(self, rank: int, world: int) -> list[CausalBatch]:
        mine = self.chosen[rank::world]
        each = max(1, VALIDATION_TOKENS // self.length)
        most = ceil(len(self.chosen) / world)
        return [windows_to_score(self.windows.batch(group)) for group in np.array_split(mine, ceil(most / each))]

    def loss(self, model: DecoderOnly, batch: CausalBatch, *, smoothing: float = 0.0) -> Loss:
        return causal_loss(model, batch, smoothing=smoothing)

    def scores(self, model: DecoderOnly) -> dict[str, float]:
        return {}

    def sample(self, model: DecoderOnly) -> str:
        spec = self.recipe.training
        sampling = Sampling(max_new_tokens=spec.sample_tokens, seed=spec.seed)
        completion = generate(model, self.corpus.tokenizer, [self.sample_prompt()], sampling)[0]
        return completion.prompt + completion.text

    def sample_prompt(self) -> str:
        """What samples begin with: the recipe's own prompt, else text that the tokenizer is sure to know."""
        prompt = self.recipe.training.sample_prompt
        return self.corpus.tokenizer.decode(self.corpus.validation[:8].tolist()) if prompt is None else prompt

    def save(self, folder: Path, model: DecoderOnly, card: Card, state: Mapping[str, Tensor]) -> None:
        save_model(folder, model, self.corpus.tokenizer, card, state=state)

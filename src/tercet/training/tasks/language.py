"""Training task of language models: predict each token of a text from the preceding tokens."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card, TrainedModel, save_model
from tercet.config import UserError
from tercet.data import TokenRows, Windows, prepare
from tercet.data.rows.batching import cut_share
from tercet.generation import Sampling, encode_prompt, generate
from tercet.models import DecoderOnly
from tercet.objectives import CausalBatch, Loss, causal_loss, collate_causal, collate_windows
from tercet.training.recipe.recipe import LanguageRecipe
from tercet.training.tasks.plan import plan_of
from tercet.training.tasks.task import describe_validation
from tercet.training.tasks.text_rows import (
    fetch_ahead,
    find_strands,
    group_windows,
    layout_of,
    row_tokens,
    spread,
    strand_rows,
    training_rows,
)


class LanguageTask:
    static = True

    def __init__(
        self, recipe: LanguageRecipe, *, pretrained: TrainedModel | None = None, progress: bool = False
    ) -> None:
        spec, self.length = recipe.task, recipe.row_len
        self.corpus = prepare(recipe.data, tokenizer=pretrained and pretrained.tokenizer, progress=progress)
        self.chat_template = pretrained and pretrained.chat_template
        self.recipe = recipe.with_vocabulary(self.corpus.tokenizer.vocab_size)
        self.rows = training_rows(self.corpus, recipe.data, self.length)
        self.strands = find_strands(self.corpus, recipe.data)
        self.tokens = row_tokens(self.rows, self.length)
        self.micro = spec.micro_batch(recipe.training.data_parallel_size)
        layout = layout_of(self.rows)
        self.plan = plan_of(recipe.training, len(self.rows), batch=spec.batch_size, micro=self.micro, layout=layout)
        self.data_name, self.data_hash = self.corpus.name, self.corpus.hash
        self.tokenizer, self.tokenizer_hash = self.corpus.tokenizer, self.corpus.tokenizer.hash
        # With a document mask the model never attends across documents, so validation does not either.
        starts = self.corpus.validation_documents if recipe.data.has_document_mask else None
        self.windows = Windows(self.corpus.validation, self.length, document_starts=starts)
        self.validation_windows = spread(len(self.windows), self.length, spec.validation_tokens)
        if spec.has_samples and spec.sample_prompt is not None:
            try:
                encode_prompt(self.corpus.tokenizer, spec.sample_prompt)  # rejected before training starts
            except UserError as error:
                remedy = (
                    "or set it to text that the tokenizer can encode, or to null for the start of the validation text"
                )
                raise UserError(f"task.sample_prompt {spec.sample_prompt!r}: {error}; {remedy}") from None

    def describe(self) -> str:
        corpus = self.corpus
        documents = len(corpus.validation_documents)
        held_out = describe_validation(documents, "documents", near_duplicates=corpus.near_duplicates)
        return ", ".join([f"{corpus.train_tokens:,} training tokens", *held_out])

    def batches(self, step: int, rank: int, world: int) -> list[CausalBatch]:
        fetch_ahead(self.rows, self.plan, step)
        numbers, epochs = (cut_share(values, rank=rank, world=world) for values in self.plan.rows(step))
        return [
            collate_causal(self._rows(numbers[i : i + self.micro], epochs[i : i + self.micro]))
            for i in range(0, len(numbers), self.micro)
        ]

    def _rows(self, numbers: np.ndarray, epochs: np.ndarray) -> TokenRows:
        return strand_rows(self.rows, self.strands, self.plan, numbers, epochs, self.length)

    def tokens_before(self, step: int) -> int:
        return self.tokens.sum_before(self.plan, step)

    def validation_groups(self) -> list[np.ndarray]:
        return group_windows(self.validation_windows, self.length)

    def validation_batch(self, group: np.ndarray) -> CausalBatch:
        return collate_windows(self.windows.batch(group))

    def loss(self, model: DecoderOnly, batch: CausalBatch, *, smoothing: float = 0.0) -> Loss:
        return causal_loss(model, batch, smoothing=smoothing, objective=self.recipe.task.objective)

    def validate_batch(self, model: DecoderOnly, batch: CausalBatch) -> tuple[Loss, dict[str, Tensor]]:
        return self.loss(model, batch), {}

    def scores(self, model: DecoderOnly) -> dict[str, float]:
        return {}

    def sample(self, model: DecoderOnly) -> str:
        sampling = Sampling(max_new_tokens=self.recipe.task.sample_tokens, seed=self.recipe.training.seed)
        completion = generate(model, self.corpus.tokenizer, [self.sample_prompt()], sampling)[0]
        return completion.prompt + completion.text

    def sample_prompt(self) -> str:
        """Return the prompt of samples: the recipe's, or by default the start of the validation text."""
        prompt = self.recipe.task.sample_prompt
        return self.corpus.tokenizer.decode(self.corpus.validation[:8].tolist()) if prompt is None else prompt

    def save(self, folder: Path, model: DecoderOnly, card: Card, state: Mapping[str, Tensor]) -> None:
        save_model(folder, model, self.corpus.tokenizer, card, state=state, chat_template=self.chat_template)

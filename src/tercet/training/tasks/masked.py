"""Training task of encoders on running text: predict masked tokens from the tokens on both sides.

The rows of a step are masked in blocks of `BLOCK` rows. The masks of a block are drawn from (seed, step, block). A row
is therefore masked in the same way for any number of devices, any micro-batch size and after resuming, and differently
in every epoch. Validation uses the fixed masks of `tercet evaluate`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tercet.checkpoint import Card, TrainedModel, save_model
from tercet.config import UserError
from tercet.data import prepare
from tercet.data.rows.token_rows import Blocks
from tercet.evaluate.masked import FIXED_MASKING, masked_windows, token_counts
from tercet.models import EncoderOnly
from tercet.models.inference import inference_mode
from tercet.objectives import (
    IGNORE_INDEX,
    Loss,
    MaskedBatch,
    collate_masked,
    concatenate_masked,
    likeliest_tokens,
    masked_loss,
    masked_states,
    move_batch,
)
from tercet.training.recipe.recipe import MaskedRecipe
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

BLOCK = 64  # rows that are masked together
SAMPLES = 3  # windows per sample


class MaskedTask:
    static = True

    def __init__(self, recipe: MaskedRecipe, *, pretrained: TrainedModel | None = None, progress: bool = False) -> None:
        spec, self.length = recipe.task, recipe.row_len
        if self.length < 3:
            raise UserError(f"max_len={self.length} is too small for a token between two special tokens; increase it")
        self.corpus = prepare(recipe.data, tokenizer=pretrained and pretrained.tokenizer, progress=progress)
        self.recipe = recipe.with_vocabulary(self.corpus.tokenizer.vocab_size)
        self.rows = training_rows(self.corpus, recipe.data, self.length - 1)
        self.strands = find_strands(self.corpus, recipe.data)
        self.tokens = row_tokens(self.rows, self.length)
        self.micro = spec.micro_batch(recipe.training.data_parallel_size)
        layout = layout_of(self.rows)
        self.plan = plan_of(recipe.training, len(self.rows), batch=spec.batch_size, micro=self.micro, layout=layout)
        self.data_name, self.data_hash = self.corpus.name, self.corpus.hash
        self.tokenizer, self.tokenizer_hash = self.corpus.tokenizer, self.corpus.tokenizer.hash
        starts = self.corpus.validation_documents if recipe.data.has_document_mask else None
        pad = self.corpus.tokenizer.pad_id or 0
        self.windows = Blocks(self.corpus.validation, self.length, document_starts=starts, pad_id=pad)
        self.validation_windows = spread(len(self.windows), self.length, spec.validation_tokens)
        # This rejects a tokenizer without a mask token before training starts.
        self.validation_batch(self.validation_windows[:1])
        self.unigram = self._unigram_entropy()

    def describe(self) -> str:
        corpus = self.corpus
        documents = len(corpus.validation_documents)
        held_out = describe_validation(documents, "documents", near_duplicates=corpus.near_duplicates)
        facts = [f"{corpus.train_tokens:,} training tokens", *held_out]
        return ", ".join([*facts, f"unigram entropy {self.unigram:.3f} nats"])

    def batches(self, step: int, rank: int, world: int) -> list[MaskedBatch]:
        fetch_ahead(self.rows, self.plan, step)
        numbers, epochs = self.plan.rows(step)
        share = len(numbers) // world
        first, end = rank * share, (rank + 1) * share
        blocks = range(first // BLOCK, -(-end // BLOCK))
        masked = concatenate_masked([self._block(step, block, numbers, epochs) for block in blocks])
        offset = blocks.start * BLOCK
        return [_cut(masked, i - offset, min(i + self.micro, end) - offset) for i in range(first, end, self.micro)]

    def tokens_before(self, step: int) -> int:
        return self.tokens.sum_before(self.plan, step)

    def validation_groups(self) -> list[np.ndarray]:
        return group_windows(self.validation_windows, self.length)

    def validation_batch(self, group: np.ndarray) -> MaskedBatch:
        """Return windows of the validation text, with masks that depend only on the number of the window."""
        return masked_windows(self.windows, group, self.corpus.tokenizer, FIXED_MASKING)

    def loss(self, model: EncoderOnly, batch: MaskedBatch, *, smoothing: float = 0.0) -> Loss:
        return masked_loss(model, batch, smoothing=smoothing, objective=self.recipe.task.objective)

    def validate_batch(self, model: EncoderOnly, batch: MaskedBatch) -> tuple[Loss, dict[str, Tensor]]:
        states = masked_states(model, batch)  # (N, D)
        loss = masked_loss(model, batch, states=states, objective=self.recipe.task.objective)
        return loss, {"accuracy": (likeliest_tokens(model, states) == batch.targets).sum()}

    def scores(self, model: EncoderOnly) -> dict[str, float]:
        """Return the loss of a unigram model on the masked validation tokens, as a baseline."""
        return {"val/unigram_entropy": self.unigram}

    def sample(self, model: EncoderOnly) -> str:
        """Return windows of the validation text, each masked, filled in by the model, and original."""
        batch = self.validation_batch(self.validation_windows[:SAMPLES])
        inputs, positions, targets = batch.inputs, batch.positions, batch.targets
        with inference_mode(model.modules()):
            predictions = likeliest_tokens(model, masked_states(model, move_batch(batch, model))).cpu()
        used = targets != IGNORE_INDEX
        filled, original = inputs.clone(), inputs.clone()
        filled.view(-1)[positions[used]] = predictions[used]
        original.view(-1)[positions[used]] = targets[used]
        end = min(self.recipe.task.sample_tokens, self.length)
        views = {"masked": inputs, "filled": filled, "original": original}
        return "\n\n".join(
            "\n".join(f"{name:<9} {self._text(view[row, :end])}" for name, view in views.items())
            for row in range(len(inputs))
        )

    def save(self, folder: Path, model: EncoderOnly, card: Card, state: Mapping[str, Tensor]) -> None:
        save_model(folder, model, self.corpus.tokenizer, card, state=state)

    def _block(self, step: int, block: int, numbers: np.ndarray, epochs: np.ndarray) -> MaskedBatch:
        block_rows = slice(block * BLOCK, (block + 1) * BLOCK)
        generator = np.random.default_rng([self.recipe.training.seed, step, block])
        rows = strand_rows(self.rows, self.strands, self.plan, numbers[block_rows], epochs[block_rows], self.length - 1)
        return collate_masked(rows, self.corpus.tokenizer, masking=self.recipe.task.masking, generator=generator)

    def _unigram_entropy(self) -> float:
        """Return the nats per token of a unigram model with add-one counts on all masked validation tokens."""
        counts = token_counts(self.corpus)
        nats = np.log(counts.sum()) - np.log(np.maximum(counts, 1))
        batches = map(self.validation_batch, self.validation_groups())
        targets = np.concatenate([batch.targets[batch.targets != IGNORE_INDEX].numpy() for batch in batches])
        if not len(targets):
            raise UserError("no token of the validation text was masked; provide more text")
        return float(nats[targets].mean())

    def _text(self, tokens: Tensor) -> str:
        """Return a window as one line, with mask tokens but without other special tokens."""
        tokenizer = self.corpus.tokenizer
        visible_tokens = [
            token for token in tokens.tolist() if token not in tokenizer.special_ids or token == tokenizer.mask_id
        ]
        return " ".join(tokenizer.decode(visible_tokens, skip_special=False).split())


def _cut(batch: MaskedBatch, first: int, end: int) -> MaskedBatch:
    """Return the rows from `first` to `end` (exclusive) of a batch.

    Each row of the batch has the same number of masked positions.
    """
    n_rows, length = batch.inputs.shape
    share = len(batch.positions) // n_rows
    positions, targets = (part[first * share : end * share] for part in (batch.positions, batch.targets))
    return MaskedBatch(
        batch.inputs[first:end],
        torch.where(targets == IGNORE_INDEX, 0, positions - first * length),
        targets,
        None if batch.token_mask is None else batch.token_mask[first:end],
        None if batch.documents is None else batch.documents[first:end],
    )

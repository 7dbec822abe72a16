"""Training task of chat models: predict each token of the answers from all preceding tokens.

The conversations of a step are sorted by length, so that micro-batches need little padding. The choice of conversations
for a step is a function of the seed and the step.
"""

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card, TrainedModel, save_model
from tercet.config import UserError
from tercet.data import Conversations, conversation_rows, prepare_conversations
from tercet.data.rows.batching import BATCH_TOKENS, cut_rows, deal_micro_batches
from tercet.generation import Sampling
from tercet.generation.stream import stream
from tercet.generation.text import end_ids
from tercet.models import DecoderOnly
from tercet.objectives import CausalBatch, Loss, causal_loss, collate_windows
from tercet.training.recipe.recipe import ChatRecipe
from tercet.training.tasks.plan import RowSums, plan_of
from tercet.training.tasks.task import describe_validation

SAMPLE_TOKENS = 60  # maximum tokens of an answer in a sample


class ChatTask:
    static = False

    def __init__(self, recipe: ChatRecipe, *, pretrained: TrainedModel | None = None, progress: bool = False) -> None:
        spec, data, self.length = recipe.task, recipe.data, recipe.row_len
        corpus = self.corpus = prepare_conversations(
            data,
            tokenizer=pretrained and pretrained.tokenizer,
            template=None if pretrained is None or data.chat_template is not None else pretrained.chat_template,
            progress=progress,
        )
        self.recipe = recipe.with_vocabulary(corpus.tokenizer.vocab_size)
        self.rows, self.held_out = (part.learnable(self.length) for part in (corpus.train, corpus.validation))
        self.lengths = np.minimum(corpus.train.lengths[self.rows] - 1, self.length)  # input tokens per row
        self.tokens = RowSums(self.lengths)
        for part, rows in (("training", self.rows), ("validation", self.held_out)):
            if not len(rows):
                raise UserError(
                    f"{corpus.name}: no {part} conversation has an answer within {self.length} tokens; "
                    "provide more or shorter conversations, or increase task.max_len or model.max_len"
                )
        self.micro = spec.micro_batch(recipe.training.data_parallel_size)
        self.plan = plan_of(recipe.training, len(self.rows), batch=spec.batch_size, micro=self.micro)
        self.data_name, self.data_hash = corpus.name, corpus.hash
        self.tokenizer, self.tokenizer_hash = corpus.tokenizer, corpus.tokenizer.hash

    def describe(self) -> str:
        corpus = self.corpus
        cut, held_out_cut = (
            int((part.lengths[rows] - 1 > self.length).sum())
            for part, rows in ((corpus.train, self.rows), (corpus.validation, self.held_out))
        )
        n_excluded = len(corpus.train) - len(self.rows)
        facts = [
            f"{len(self.rows):,} training conversations",
            *([f"{corpus.skipped:,} left out for having no answer"] if corpus.skipped else []),
            *([f"{n_excluded:,} left out for answers that start after max_len"] if n_excluded else []),
            *([f"{cut:,} truncated to max_len"] if cut else []),
            *describe_validation(
                len(corpus.validation),
                "conversations",
                near_duplicates=corpus.near_duplicates,
                left_out=len(corpus.validation) - len(self.held_out),
                cut=held_out_cut,
            ),
            *(["plain chat template, since the model has none"] if corpus.is_plain else []),
        ]
        return ", ".join(facts)

    def batches(self, step: int, rank: int, world: int) -> list[CausalBatch]:
        numbers, _ = self.plan.rows(step)
        groups = deal_micro_batches(numbers, self.lengths[numbers], size=self.micro, rank=rank, world=world)
        return [self._batch(self.corpus.train, self.rows[group]) for group in groups]

    def tokens_before(self, step: int) -> int:
        return self.tokens.sum_before(self.plan, step)

    def validation_groups(self) -> list[np.ndarray]:
        lengths = np.minimum(self.corpus.validation.lengths[self.held_out] - 1, self.length)
        sorted_by_length = self.held_out[np.argsort(lengths, kind="stable")]
        return cut_rows(sorted_by_length, ceil(int(lengths.max()) * len(lengths) / BATCH_TOKENS))

    def validation_batch(self, group: np.ndarray) -> CausalBatch:
        return self._batch(self.corpus.validation, group)

    def loss(self, model: DecoderOnly, batch: CausalBatch, *, smoothing: float = 0.0) -> Loss:
        return causal_loss(model, batch, smoothing=smoothing, objective=self.recipe.task.objective)

    def validate_batch(self, model: DecoderOnly, batch: CausalBatch) -> tuple[Loss, dict[str, Tensor]]:
        return self.loss(model, batch), {}

    def scores(self, model: DecoderOnly) -> dict[str, float]:
        return {}

    def sample(self, model: DecoderOnly) -> str:
        """Return the start of some validation conversations, with their first answer and that of the model.

        The model decodes greedily. Both answers are limited to `SAMPLE_TOKENS` tokens.
        """
        held_out, tokenizer = self.corpus.validation, self.corpus.tokenizer
        numbers = self.held_out[: self.recipe.task.sample_conversations]
        starts, firsts = held_out.starts[numbers], held_out.first_answers[numbers]
        prompts = [held_out.ids[start : start + first].tolist() for start, first in zip(starts, firsts, strict=True)]
        answers = [list[int]() for _ in numbers]
        sampling = Sampling(temperature=0, max_new_tokens=SAMPLE_TOKENS, seed=self.recipe.training.seed)
        for column in stream(model, prompts, sampling, stop_ids=end_ids(tokenizer)):
            for answer, token in zip(answers, column, strict=True):
                if token is not None:
                    answer.append(token.id)
        blocks = list[str]()
        for number, prompt, answer in zip(numbers, prompts, answers, strict=True):
            first, end = held_out.starts[number] + len(prompt), held_out.starts[number + 1]
            # Number of tokens up to the first token outside the answer.
            length = np.argmin(np.append(held_out.answers[first:end], False))
            reference = held_out.ids[first : first + min(length, SAMPLE_TOKENS)]
            lines = {"prompt": prompt, "answer": reference.tolist(), "output": answer}
            blocks.append(
                "\n".join(f"{name:<8} {' '.join(tokenizer.decode(ids).split())}" for name, ids in lines.items())
            )
        return "\n\n".join(blocks)

    def save(self, folder: Path, model: DecoderOnly, card: Card, state: Mapping[str, Tensor]) -> None:
        save_model(folder, model, self.corpus.tokenizer, card, state=state, chat_template=self.corpus.template)

    def _batch(self, conversations: Conversations, numbers: np.ndarray) -> CausalBatch:
        """Return a batch of conversations, padded on the right.

        A causal model never attends to padding on the right, so any token id can be used for it.
        """
        pad = self.corpus.tokenizer.pad_id or 0
        return collate_windows(conversation_rows(conversations, numbers, max_len=self.length, pad=pad))

"""Scores of a masked language model on fixed masks, and those of baselines on the same masks.

    masked loss = -(sum of ln p(token | all visible tokens)) / masked tokens

The masks of window w of the text depend only on the random seed (seed, w), so scores are reproducible, and comparable
between models with the same tokenizer and context. Each selected token becomes the mask token: the 80/10/10 rule of
training is off, so the loss is slightly higher than in training. Its exponential is not a perplexity, since tokens that
are masked together are not predicted from each other; `pseudo_perplexity` masks one token at a time (Salazar et al.
2020).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.config import UserError
from tercet.data import Corpus
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.data.rows.token_rows import Blocks
from tercet.data.shards.sharded_array import TokenArray
from tercet.encoding.pseudo import pseudo_logprobs
from tercet.evaluate.score_summary import PredictionScores, finite
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.models import EncoderOnly
from tercet.models.inference import inference_mode
from tercet.notebook import Table, View
from tercet.objectives import (
    IGNORE_INDEX,
    MaskedBatch,
    Masking,
    collate_masked,
    concatenate_masked,
    masked_states,
    move_batch,
    split_logits,
    token_logprobs,
    unmaskable_ids,
)
from tercet.objectives.batch import overlap_copies
from tercet.tokens import Tokenizer

COUNT_BLOCK = 1 << 22
FIXED_MASKING = Masking(rate=0.15, masked=1.0, random=0.0)
PLATEAU_MARGIN = 0.02  # a loss less than this fraction below the unigram entropy reflects only token frequencies


@dataclass(frozen=True, kw_only=True, repr=False)
class MaskedScores(PredictionScores):
    """Scores of a masked language model.

    Attributes:
        masked_loss: Nats per masked token.
        masked_accuracy: Fraction of masked tokens that the model considers most likely.
        unigram_entropy: Nats per token of the add-one smoothed unigram model of the training text, on the same tokens.
        most_frequent_accuracy: Fraction of masked tokens that are the most frequent token of the training text.
        mask_rate: Fraction of the tokens that are masked; special tokens do not count.
        tokens: Number of masked and scored tokens.
        context: Maximum number of tokens that a prediction depends on.
        seed: Seed of the masks.
    """

    masked_loss: float
    masked_accuracy: float
    unigram_entropy: float
    most_frequent_accuracy: float
    mask_rate: float
    tokens: int
    context: int
    seed: int

    @property
    def plateau(self) -> bool:
        """True if the model is hardly better than the unigram model, or its loss is NaN.

        Training often stays in this state for a while.
        """
        return not self.masked_loss < (1 - PLATEAU_MARGIN) * self.unigram_entropy

    def to_dict(self, pseudo_perplexity: float | None = None) -> dict[str, Any]:
        """Return the scores for JSON, with the pseudo-perplexity if it was measured."""
        pseudo = {} if pseudo_perplexity is None else {"pseudo_perplexity": finite(pseudo_perplexity)}
        return {**super().to_dict(), "plateau": self.plateau, **pseudo}

    def view(self, pseudo_perplexity: float | None = None) -> View:
        """Return the scores of the model, then those of the baselines on the same masks."""
        rows = [
            ("model", f"{self.masked_loss:.4f}", f"{self.masked_accuracy:.1%}"),
            ("unigram", f"{self.unigram_entropy:.4f}", ""),
            ("most frequent token", "", f"{self.most_frequent_accuracy:.1%}"),
        ]
        facts = f"{self.tokens:,} tokens masked, {self.mask_rate:.1%} of the text; context {self.context:,}"
        pseudo = [] if pseudo_perplexity is None else [f"pseudo-perplexity {pseudo_perplexity:,.2f}"]
        table = Table(header=("", "nats per masked token", "accuracy"), rows=rows)
        return View((table, "", f"{facts}, seed {self.seed}", *pseudo, *self.metrics_table()))


def score_masked(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    rate: float = 0.15,
    seed: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    tokens: int | None = None,
    document_mask: bool = False,
) -> MaskedScores:
    """Return masked loss and accuracy on the validation part of a corpus, with baselines.

    The model stays on its device, its mode (train or eval) is restored, and global random state does not change.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        corpus: Corpus with a validation part.
        rate: Fraction of each window that is masked.
        seed: Seed of the masks.
        batch_tokens: Maximum number of tokens per batch; a batch has at least one window.
        tokens: Approximate number of tokens to read, in windows spread over the whole part; by default all.
        document_mask: If True, no token attends to another document, for a model that was trained in this way.

    Raises:
        ValueError: If the tokenizer has more ids than the model.
        UserError: If the tokenizer has no mask token, bos or eos, no token was masked, or an output is not finite.
    """
    sums = _MaskedSums(token_counts(corpus))
    predictions = predict_masked(
        model, tokenizer, corpus, rate=rate, seed=seed, batch_tokens=batch_tokens, tokens=tokens,
        document_mask=document_mask,
    )  # fmt: skip
    for _, batch, logprobs, predicted in predictions:
        sums.add(batch, logprobs, predicted == batch.targets)
    if not sums.tokens:
        raise UserError(f"no token was masked at a rate of {rate:g}; pass more text or a higher rate")
    if not math.isfinite(float(sums.nats)):
        raise UserError(DIVERGENCE_MESSAGE)
    return MaskedScores(
        masked_loss=float(sums.nats) / sums.tokens,
        masked_accuracy=sums.right / sums.tokens,
        unigram_entropy=float(sums.entropy) / sums.tokens,
        most_frequent_accuracy=sums.frequent / sums.tokens,
        mask_rate=sums.tokens / sums.candidates,
        tokens=sums.tokens,
        context=model.max_len,
        seed=seed,
    )


def predict_masked(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    rate: float = 0.15,
    seed: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    tokens: int | None = None,
    document_mask: bool = False,
) -> Iterator[tuple[np.ndarray, MaskedBatch, Tensor, Tensor]]:
    """Yield batches of windows of the validation part with the predictions for their masked tokens.

    Arguments and errors as in `score_masked`.

    Yields:
        The numbers (B,) of the windows, each of which begins at its number times the context of the model; the batch,
        without unused targets; ln p (N,) of its targets; and the most likely token (N,) instead of each.
    """
    if tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {model.vocab_size}; use the model's tokenizer"
        )
    masking = replace(FIXED_MASKING, rate=rate)
    blocks = Blocks(
        corpus.validation,
        model.max_len,
        document_starts=corpus.validation_documents if document_mask else None,
        pad_id=tokenizer.pad_id or 0,
    )
    n_windows = len(blocks) if tokens is None else max(1, min(len(blocks), tokens // model.max_len))

    def launch() -> Iterator[tuple[tuple[np.ndarray, MaskedBatch], Tensor]]:
        for numbers in _spread_windows(blocks, n_windows, max(1, batch_tokens // model.max_len)):
            batch, answers = _predict(model, masked_windows(blocks, numbers, tokenizer, masking, seed=seed))
            yield (numbers, batch), answers

    for (numbers, batch), (logprobs, predicted) in overlap_copies(launch()):
        yield numbers, batch, logprobs, predicted.long()


class _MaskedSums:
    """Sums over masked tokens, of the model and of the baselines.

    Args:
        counts: Frequency of each token in the training text, as from `token_counts`.
    """

    def __init__(self, counts: np.ndarray) -> None:
        self._counts, self._most_frequent = counts, int(counts.argmax())
        with np.errstate(divide="ignore"):
            self._unigram = torch.from_numpy(
                -np.log(counts / counts.sum())
            )  # (V,), inf for tokens that are never masked
        self.nats = self.entropy = torch.zeros((), dtype=torch.float64)
        self.right = self.frequent = self.tokens = self.candidates = 0

    def add(self, batch: MaskedBatch, logprobs: Tensor, hits: Tensor) -> None:
        self.nats, self.entropy = self.nats - logprobs.double().sum(), self.entropy + self._unigram[batch.targets].sum()
        self.right += int(hits.sum())
        self.frequent += int((batch.targets == self._most_frequent).sum())
        self.tokens += len(batch.targets)
        visible = self._counts[batch.inputs.numpy()] > 0  # visible tokens of the text
        if batch.token_mask is not None:
            visible &= batch.token_mask.numpy()
        self.candidates += len(batch.targets) + int(visible.sum())


def _spread_windows(blocks: Blocks, count: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yield the numbers of `count` windows spread over the whole text, in batches."""
    windows = np.linspace(0, len(blocks) - 1, count).astype(np.int64)
    for start in range(0, count, batch_size):
        yield windows[start : start + batch_size]


def masked_windows(
    blocks: Blocks, numbers: np.ndarray, tokenizer: Tokenizer, masking: Masking, *, seed: int = 0
) -> MaskedBatch:
    """Return the windows with these numbers, each masked with the random seed (seed, number)."""
    return concatenate_masked(
        [
            collate_masked(
                blocks.batch(np.array([number])),
                tokenizer,
                masking=masking,
                generator=np.random.default_rng([seed, number]),
            )
            for number in numbers.tolist()
        ]
    )


def token_counts(corpus: Corpus) -> np.ndarray:
    """Return the count of each token in the training text plus one (V,).

    Special tokens, which are never masked, have 0.
    """
    counts = training_counts(corpus) + 1
    counts[unmaskable_ids(corpus.tokenizer)] = 0
    return counts


def training_counts(corpus: Corpus) -> np.ndarray:
    """Return the count of each token in the training text (V,)."""
    counts = np.zeros(corpus.tokenizer.vocab_size, np.int64)
    for folder in corpus.folders:
        counts += folder.token_counts()
    if not corpus.folders:
        counts += count_ids(corpus.train, len(counts))
    return counts


def count_ids(ids: TokenArray, vocab_size: int) -> np.ndarray:
    """Return the count of each id (V,)."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(ids), COUNT_BLOCK):
        counts += np.bincount(ids[start : start + COUNT_BLOCK], minlength=vocab_size)
    return counts


def pseudo_perplexity(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    within_word: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> float:
    """Return the exponential of the mean of -ln p(token | all other tokens of its text), over all texts.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        texts: Texts to score.
        within_word: If True, also mask the tokens to the right in the same word (Kauf and Ivanova 2023).
        batch_tokens: Maximum number of tokens per batch.

    Raises:
        UserError: If the texts have no tokens.
    """
    text_logprobs = pseudo_logprobs(model, tokenizer, texts, within_word=within_word, batch_tokens=batch_tokens)
    logprobs = np.concatenate([np.zeros(0), *text_logprobs]).astype(np.float64)
    if not len(logprobs):
        raise UserError("the texts have no tokens to score; pass at least one word")
    mean = -math.fsum(logprobs) / len(logprobs)
    return math.inf if mean > 700 else math.exp(mean)


def _predict(model: EncoderOnly, batch: MaskedBatch) -> tuple[MaskedBatch, Float[Tensor, "2 N"]]:
    """Return the batch without ignored targets; ln p of each target, and the most likely token as a float32.

    Every id below 2^24 is exact in float32.
    """
    used = batch.targets != IGNORE_INDEX
    batch = batch._replace(positions=batch.positions[used], targets=batch.targets[used])
    device_batch, answers = move_batch(batch, model), list[Tensor]()
    with inference_mode(model.modules()):
        for rows, logits in split_logits(model, masked_states(model, device_batch)):
            targets = device_batch.targets[rows]
            answers.append(torch.stack((token_logprobs(logits, targets), logits.argmax(-1).float())))
    return batch, torch.cat(answers, dim=-1)

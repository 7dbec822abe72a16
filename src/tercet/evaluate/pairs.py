"""Log-likelihood of given translations by forced decoding.

    ln p(target | source) = sum of ln p(token | source, tokens before it), including the end of the sentence

Log-probabilities are those of the model, without label smoothing. Sums are in float64 on the CPU. The score of a pair
does not depend on the other pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.config import UserError
from tercet.data.rows.batching import map_by_length
from tercet.generation.protocol import device_of
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.generation.translate import encode_sources
from tercet.models import EncoderDecoder
from tercet.models.inference import inference_mode
from tercet.objectives import IGNORE_INDEX, PairBatch, pad_rows, seq2seq_logprobs
from tercet.objectives.batch import to_host, wait_for_copies
from tercet.tokens import Tokenizer

HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class TargetLogprobs:
    """ln p of each token of the targets of sentence pairs.

    Attributes:
        targets: Scored ids of each target.
        logprobs: ln p of each of them, in float32.
        truncated: For each pair, True if a side exceeded the model's maximum length.
    """

    targets: list[list[int]]
    logprobs: list[Tensor]
    truncated: list[bool]


@dataclass(frozen=True, kw_only=True)
class PairScore:
    """The score of a sentence pair.

    Attributes:
        logprob: Natural logarithm of the probability of the target.
        tokens: Number of scored target tokens. The end token is one of them, unless the target was truncated.
        truncated: If True, a side exceeded the model's maximum length and its end was neither read nor scored.
    """

    logprob: float
    tokens: int
    truncated: bool

    @property
    def nats_per_token(self) -> float:
        return -self.logprob / self.tokens


def score_pairs(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    source_tokenizer: Tokenizer | None = None,
    batch_tokens: int = 8192,
) -> list[PairScore]:
    """Return the score of each pair of source and target texts, in their order.

    The model stays on its device, and its mode (train or eval) is restored.

    Args:
        model: The translation model.
        tokenizer: Target tokenizer; also the source tokenizer if `source_tokenizer` is None.
        pairs: Sentence pairs.
        source_tokenizer: Source tokenizer, if it differs from the target tokenizer.
        batch_tokens: Maximum number of tokens per side and batch, including padding; a longer pair is a separate batch.

    Raises:
        UserError: If a text cannot be encoded, the target tokenizer has no bos, a tokenizer has no eos, or the outputs
            of the model are not finite.
    """
    scored = score_targets(model, tokenizer, pairs, source_tokenizer=source_tokenizer, batch_tokens=batch_tokens)
    tokens = torch.tensor([len(target) for target in scored.targets], dtype=torch.long)
    row = torch.arange(len(tokens)).repeat_interleave(tokens)
    token_logprobs = torch.cat([torch.zeros(0), *scored.logprobs]).double()
    sums = torch.zeros(len(tokens), dtype=torch.float64).index_add(0, row, token_logprobs)
    return [
        PairScore(logprob=total, tokens=len(target), truncated=was_cut)
        for total, target, was_cut in zip(sums.tolist(), scored.targets, scored.truncated, strict=True)
    ]


def score_targets(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    source_tokenizer: Tokenizer | None = None,
    batch_tokens: int = 8192,
) -> TargetLogprobs:
    """Return ln p of each token of the targets; arguments and errors as in `score_pairs`."""
    source_encoder = tokenizer if source_tokenizer is None else source_tokenizer
    opening, eos = tokenizer.target_opening, tokenizer.eos_id
    if tokenizer.bos_id is None or eos is None or source_encoder.eos_id is None:
        raise UserError("the tokenizer has no beginning or end token; train a tokenizer for translation")
    max_len = model.max_len
    sources, cut = encode_sources(source_encoder, [source for source, _ in pairs], max_len=max_len)
    targets = [[*ids.tolist(), eos] for ids in tokenizer.encode_batch([target.strip() for _, target in pairs])]
    longest = max_len + 1 - len(opening)
    cut = [was_cut or len(target) > longest for was_cut, target in zip(cut, targets, strict=True)]
    targets = [target[:longest] for target in targets]
    ignored = [IGNORE_INDEX] * (len(opening) - 1)

    def logprobs(numbers: list[int]) -> tuple[Tensor, ...]:
        """Return ln p of the tokens of each target, in asynchronous copies to the host."""
        source, source_mask = pad_rows([sources[number] for number in numbers], HOST)
        inputs, _ = pad_rows([[*opening, *targets[number][:-1]] for number in numbers], HOST)
        wanted, real = pad_rows([[*ignored, *targets[number]] for number in numbers], HOST)
        with inference_mode(model.modules()):
            batch = PairBatch(source, source_mask, inputs, wanted.masked_fill(~real, IGNORE_INDEX))
            token_logprobs = to_host(seq2seq_logprobs(model, batch))  # (N,)
        return token_logprobs.split([len(targets[number]) for number in numbers])

    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    pair_logprobs = map_by_length(logprobs, lengths, batch_tokens)
    wait_for_copies(device_of(model))
    if not all(bool(token_logprobs.isfinite().all()) for token_logprobs in pair_logprobs):
        raise UserError(DIVERGENCE_MESSAGE)
    return TargetLogprobs(targets=targets, logprobs=pair_logprobs, truncated=cut)

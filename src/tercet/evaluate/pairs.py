"""How likely a model finds given translations: the decoder is made to write them, and each token's probability is read.

    ln p(target | source) = sum of ln p(token | source, tokens before it), the end of the sentence included

Plain log-probabilities, whatever the training smoothed. Sums are taken in float64 on the CPU; a pair's score does not
depend on the pairs beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.config import UserError
from tercet.generation.protocol import device_of
from tercet.generation.sampling import DIVERGED
from tercet.models import EncoderDecoder
from tercet.models.rest import at_rest
from tercet.tokens import Tokenizer

LOGITS_AT_ONCE = 1 << 24  # 64 MiB of float32, whatever the vocabulary


@dataclass(frozen=True, kw_only=True)
class PairScore:
    """Attributes:
    logprob: natural log of the target's probability.
    tokens: the target's, its end included.
    truncated: a side was longer than the model takes; what did not fit was neither seen nor scored.
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
    """The score of each pair of a source and a target text, in their order.

    Args:
        tokenizer: the target's, and the source's where there is no `source_tokenizer`.
        batch_tokens: tokens of a side read at once, padding included; a longer pair stands alone.

    The model stays on its device and gets its own train or eval mode back.

    Raises:
        UserError: where a text cannot be encoded, a tokenizer lacks bos or eos, or the model's outputs are not numbers.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens} must be 1 or more")
    of_source = tokenizer if source_tokenizer is None else source_tokenizer
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if bos is None or eos is None or of_source.eos_id is None:
        raise UserError("the tokenizer has no token for the beginning or the end: train one for translation")
    most = model.max_len
    sources = [ids.tolist() for ids in of_source.encode_batch([source.strip() for source, _ in pairs])]
    targets = [[*ids.tolist(), eos] for ids in tokenizer.encode_batch([target.strip() for _, target in pairs])]
    room = most - 1 - len(of_source.opening)
    cut = [len(source) > room or len(target) > most for source, target in zip(sources, targets, strict=True)]
    sources = [of_source.frame(source, max_len=most) for source in sources]
    targets = [target[:most] for target in targets]
    sums = torch.zeros(len(pairs), dtype=torch.float64)
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    for rows in _batches(lengths, batch_tokens):
        found = _logprobs(model, [sources[row] for row in rows], [targets[row] for row in rows], bos)
        if not bool(found.isfinite().all()):
            raise UserError(DIVERGED)
        sums[rows] = found
    return [
        PairScore(logprob=total, tokens=len(target), truncated=was_cut)
        for total, target, was_cut in zip(sums.tolist(), targets, cut, strict=True)
    ]


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Pairs of like length together, the longest first: what does not fit into memory fails at once."""
    rest = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while rest:
        rows = max(1, batch_tokens // lengths[rest[0]])
        yield rest[:rows]
        rest = rest[rows:]


def _logprobs(model: EncoderDecoder, sources: list[list[int]], targets: list[list[int]], bos: int) -> Tensor:
    """ln p of each target (B,), float64 on the CPU."""
    device = device_of(model)
    source, source_real = _padded(sources, device)
    inputs, _ = _padded([[bos, *target[:-1]] for target in targets], device)
    wanted, real = _padded(targets, device)
    with at_rest(model.modules()):
        memory = model.encode(source, padding=source_real)  # (B, S, D)
        hidden = model.hidden(inputs, memory, memory_padding=source_real)[real]  # (N, D)
        n_rows = max(1, LOGITS_AT_ONCE // model.vocab_size)
        parts = zip(hidden.split(n_rows), wanted[real].split(n_rows), strict=True)
        losses = torch.cat([F.cross_entropy(model.logits(h), w, reduction="none").cpu() for h, w in parts])
    row = real.nonzero()[:, 0].cpu()
    return torch.zeros(len(targets), dtype=torch.float64).index_add(0, row, -losses.double())


def _padded(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows (B, L), padded on the right with any id, and where they are real."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths[:, None]

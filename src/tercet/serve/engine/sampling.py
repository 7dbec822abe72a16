"""Sample the next tokens of a batch; each row has its own settings and generator, so rows are independent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.generation.sampling import choose
from tercet.generation.specs import Sampling
from tercet.generation.stream import Token

TopTokens = tuple[tuple[int, float], ...]  # (id, log-probability), likeliest first


@dataclass(frozen=True, kw_only=True)
class SampledToken(Token):
    """A token with its log-probability, and the likeliest tokens at its position."""

    top: TopTokens = ()


class SamplingRow(Protocol):
    """The state of a row that determines its next token."""

    ids: list[int]
    settings: Sampling  # rows with equal settings are sampled together
    generator: torch.Generator


def sample_rows(rows: Sequence[SamplingRow], logits: Float[Tensor, "B V"]) -> tuple[list[int], dict[int, Exception]]:
    """Return the next token of each row, and the exceptions of failed rows by their index in the batch.

    The token of a failed row is 0.
    """
    groups: dict[Sampling, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.settings, []).append(number)
    tokens, errors = [0] * len(rows), dict[int, Exception]()
    pending = list(groups.values())
    while pending:
        group = pending.pop()
        group_logits = logits if len(group) == len(rows) else logits[group]
        members = [rows[number] for number in group]
        try:
            ids = choose(
                group_logits,
                [row.ids for row in members],
                members[0].settings,
                [row.generator for row in members],
            )
        except Exception as error:
            if len(group) == 1:
                errors[group[0]] = error
            else:  # the logits of a row are not numbers: sample rows separately, so that only this row fails
                pending += [[number] for number in group]
            continue
        for number, token in zip(group, ids.tolist(), strict=True):
            tokens[number] = token
    return tokens, errors


def top_tokens(logits: Float[Tensor, "B V"], counts: Sequence[int]) -> list[TopTokens]:
    """Return the `counts[b]` likeliest tokens of each row with their log-probabilities.

    If the vocabulary has fewer tokens, all are returned.
    """
    count = min(max(counts, default=0), logits.shape[-1])
    if not count:
        return [()] * len(counts)
    values, ids = logits.float().log_softmax(-1).topk(count)
    pairs = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [tuple(zip(row[:count], logprobs[:count], strict=True)) for row, logprobs, count in pairs]

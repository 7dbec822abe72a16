"""Speculative decoding: verify several draft tokens in one forward pass, and replace rejected ones.

A draft token x that was drawn from q is accepted with probability min(1, p(x) / q(x)), where p is the distribution that
`Sampling` makes of the model's logits at that position. If it is rejected, the token is drawn from the residual:

    P(x) = q(x) min(1, p(x) / q(x)) + P(rejected) max(0, p(x) - q(x)) / sum of max(0, p - q) = p(x)

Each token therefore has the model's own distribution, for any draft tokens: Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding"; Chen et al. 2023. A draft token that was not drawn but looked up (`Lookup`) is
accepted if a draw from p gives the same token. The probability of this is also p(x), and the text is that of `stream`
with the same seed.

The result of a row depends on its own tokens and generator, not on other rows. If the window of a row moves, its
visible tokens are prefilled again, without draft tokens.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tercet.config import UserError
from tercet.generation.decode_graphs import GraphModel, can_capture
from tercet.generation.prefill import prefill
from tercet.generation.protocol import RewindingCacheType, SpeculativeDecoder, device_of, parts_of
from tercet.generation.sampling import distribution, draw, mark_seen
from tercet.generation.specs import Sampling
from tercet.generation.speculative_graphs import GraphRounds, Rounds, graph_rounds
from tercet.generation.speculative_row import Row
from tercet.generation.stream import Token, check_seeds, window_start
from tercet.models.inference import inference_mode
from tercet.objectives import pad_rows, token_logprobs
from tercet.spec import DraftTokens, NGram, spec

RowTokens = tuple[list[int], list[float]]  # new ids of a row in one pass, and their log-probabilities
Pass = list[list[Token]]  # new tokens of each row in one pass, none for ended rows


@spec
class Draft:
    """Draft tokens from a small model, which samples them with the same `Sampling`.

    Args:
        model: Draft model with the vocabulary of the target model; its context may be shorter.
        tokens: Maximum number of draft tokens per forward pass.
    """

    model: SpeculativeDecoder[Any]
    tokens: DraftTokens = 4


@spec
class Lookup:
    """Draft tokens from the row itself: the tokens that followed the last earlier occurrence of its final n-gram.

    Suitable for texts that repeat themselves or their prompt, such as summaries, corrections and code (Saxena 2023,
    "Prompt Lookup Decoding").
    """

    ngram: NGram = 3  # length of the n-gram in tokens
    tokens: DraftTokens = 10  # maximum number of draft tokens per forward pass


def speculate(
    model: SpeculativeDecoder[RewindingCacheType],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    speculation: Draft | Lookup,
    stop_ids: Set[int] = frozenset(),
    forbidden: Set[int] = frozenset(),
    seeds: Sequence[int] | None = None,
    finished_rows: Set[int] = frozenset(),
) -> Iterator[Pass]:
    """Continue each prompt; yield the new tokens of each row after each forward pass of the model.

    Args:
        speculation: Source of the draft tokens. The other arguments are those of `stream`.

    Raises:
        ValueError: If a prompt is empty, or the numbers of prompts and seeds differ.
        UserError: If the vocabulary sizes of the draft model and the model differ; while iterating, if a model's
            outputs are NaN.
    """
    seeds = check_seeds(prompts, sampling, seeds)
    if isinstance(speculation, Draft) and speculation.model.vocab_size != model.vocab_size:
        raise UserError(
            f"the vocabulary sizes differ: draft {speculation.model.vocab_size}, model {model.vocab_size}; "
            "use a draft that was trained with the model's tokenizer"
        )
    rows = [Row(n, prompt, seed, sampling) for n, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))]
    models = [model, *([speculation.model] if isinstance(speculation, Draft) else [])]

    def passes() -> Iterator[Pass]:
        with _rounds_of(model, rows, sampling, speculation, stop_ids, forbidden) as rounds:
            yield from _passes(rounds, rows, models, speculation, stop_ids, finished_rows)

    return passes()


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Draft tokens of a row, and the distributions `q` from which they were drawn; None if they were looked up."""

    ids: list[int]
    q: Float[Tensor, "K V"] | None = None


def accept(proposal: Proposal, p: Float[Tensor, "P V"], generator: torch.Generator) -> list[int]:
    """Return the accepted draft tokens and one more token.

    That token replaces the first rejected draft token, or follows all K draft tokens if none is rejected.

    Args:
        proposal: K draft tokens, which may be 0.
        p: Probabilities of the model at the position of each draft token and after the last one, P = K + 1.
        generator: Generator of the row.
    """
    accepted: list[int] = []
    for index, draft_token in enumerate(proposal.ids):
        if proposal.q is None:
            token = _draw(p[index], generator)
        elif _draw_uniform(generator) * proposal.q[index, draft_token] < p[index, draft_token]:
            token = draft_token
        else:
            token = _draw(residual(p[index], proposal.q[index]), generator)
        accepted.append(token)
        if token != draft_token:
            return accepted
    return [*accepted, _draw(p[-1], generator)]


def residual(p: Float[Tensor, " V"], q: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """Return max(0, p - q), or p if that is zero everywhere.

    The sum, by which `draw` normalizes it, is the probability of a rejection.
    """
    surplus = (p - q).clamp(min=0)
    return p if surplus.sum() == 0 else surplus  # a sum of 0: p and q differ only by rounding


class _Distributions:
    """A function from logits, and the tokens before them, to the probabilities that `sampling` makes of them.

    The probabilities are in float64 on the CPU, which makes all draws.
    """

    def __init__(self, sampling: Sampling, forbidden: Sequence[int]) -> None:
        self.sampling, self.forbidden = sampling, torch.tensor(forbidden, dtype=torch.long)

    def __call__(self, logits: Float[Tensor, "N V"], texts: Iterable[Sequence[int]]) -> Float[Tensor, "N V"]:
        seen_mask = mark_seen(texts, logits) if self.sampling.repetition_penalty != 1 else None
        if len(self.forbidden):
            logits = logits.index_fill(-1, self.forbidden.to(logits.device), -math.inf)
        return distribution(logits, self.sampling, seen_mask).to("cpu", torch.float64)


class _ReadState(Generic[RewindingCacheType]):
    """A model with its cache, which contains the tokens of each row from `starts` to `ends`, including draft tokens."""

    def __init__(self, model: SpeculativeDecoder[RewindingCacheType]) -> None:
        self.model, self.device = model, device_of(model)
        self.cache: RewindingCacheType | None = None
        self.starts: list[int] = []
        self.ends: list[int] = []

    def read(self, rows: Sequence[Row], proposals: Sequence[Sequence[int]]) -> list[Float[Tensor, "K V"]]:
        """Read the new tokens and the draft tokens of each row; return the logits after each of them.

        In the first call, and if the window of a row has moved, all rows are prefilled first, in a separate forward
        pass. The logits after the last token of each row then come first.
        """
        starts = [window_start(len(row.ids), self.model.max_len) for row in rows]
        logits: list[Tensor] = []
        if self.cache is None or starts != self.starts:
            visible = [row.ids[start:] for row, start in zip(rows, starts, strict=True)]
            longest = max(len(ids) + row.left for ids, row in zip(visible, rows, strict=True))
            capacity = min(self.model.max_len, longest)
            last, self.cache = prefill(self.model, visible, capacity=capacity, device=self.device)  # (B, V)
            logits.append(last[:, None])
            self.starts, self.ends = starts, [len(row.ids) for row in rows]
        new = [
            [*row.ids[end:], *proposal[max(0, end - len(row.ids)) :]]
            for row, proposal, end in zip(rows, proposals, self.ends, strict=True)
        ]
        if any(new):
            tokens, real = pad_rows(new, self.device)
            logits.append(self.model.read_ahead(tokens, self.cache))
            self.cache.advance(real.sum(1))
            self.ends = [end + len(ids) for end, ids in zip(self.ends, new, strict=True)]
        n_first = len(logits) - any(new)  # 1 after a prefill, whose logits are the first column
        all_logits = torch.cat(logits, dim=1)  # (B, T, V)
        return [scores[: n_first + len(ids)] for scores, ids in zip(all_logits, new, strict=True)]

    def forget(self, rows: Sequence[Row]) -> None:
        """Remove rejected draft tokens from the cache.

        The last token of each row is also removed, since it is read again for its logits.
        """
        if self.cache is not None:
            ends = [min(end, len(row.ids) - 1) for row, end in zip(rows, self.ends, strict=True)]
            if ends != self.ends:
                steps_back = [new - old for new, old in zip(ends, self.ends, strict=True)]
                self.cache.advance(torch.tensor(steps_back, device=self.device))
            self.ends = ends

    def keep(self, slots: Sequence[int]) -> None:
        """Keep only these rows of the cache, given by their positions; the others have ended."""
        if self.cache is not None:
            self.cache.reorder(torch.tensor(slots, device=self.device))
            self.starts, self.ends = [self.starts[slot] for slot in slots], [self.ends[slot] for slot in slots]


class _DraftProposer:
    """Draft tokens from a model, sampled for all rows together, one token per step."""

    def __init__(self, draft: Draft, distributions: _Distributions, stop_ids: Set[int]) -> None:
        self.distributions, self.stop_ids = distributions, stop_ids
        self.states = [_ReadState(draft.model)]

    def propose(self, rows: Sequence[Row], max_draft_tokens: Sequence[int]) -> list[Proposal]:
        ids: list[list[int]] = [[] for _ in rows]
        q: list[list[Tensor]] = [[] for _ in rows]
        drafting = [slot for slot, n in enumerate(max_draft_tokens) if n > 0]
        while drafting:
            logits = self.states[0].read(rows, ids)
            next_logits = torch.stack([logits[slot][-1] for slot in drafting])  # (G, V)
            probabilities = self.distributions(next_logits, ([*rows[slot].ids, *ids[slot]] for slot in drafting))
            tokens = draw(probabilities, [rows[slot].generator for slot in drafting])
            for slot, token, row_probabilities in zip(drafting, tokens.tolist(), probabilities, strict=True):
                ids[slot].append(token)
                q[slot].append(row_probabilities)
            drafting = [
                slot
                for slot in drafting
                if len(ids[slot]) < max_draft_tokens[slot] and ids[slot][-1] not in self.stop_ids
            ]
        return [
            Proposal(ids=row_ids, q=torch.stack(row_q) if row_ids else None)
            for row_ids, row_q in zip(ids, q, strict=True)
        ]


class _LookupProposer:
    """Draft tokens that followed the last earlier occurrence of a row's final n-gram.

    Attributes:
        ends: For each row number, the position after the last occurrence of each n-gram.
        n_indexed: For each row number, the number of tokens of the row when its n-grams were last added to `ends`.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.ngram = lookup.ngram
        self.states: list[_ReadState[Any]] = []
        self.ends: dict[int, dict[tuple[int, ...], int]] = {}
        self.n_indexed: dict[int, int] = {}

    def propose(self, rows: Sequence[Row], max_draft_tokens: Sequence[int]) -> list[Proposal]:
        return [Proposal(ids=ids) for ids in self.follow(rows, max_draft_tokens)]

    def follow(self, rows: Sequence[Row], max_draft_tokens: Sequence[int]) -> list[list[int]]:
        """Return the draft tokens of each row."""
        return [self._follow(row, n) if n > 0 else [] for row, n in zip(rows, max_draft_tokens, strict=True)]

    def _follow(self, row: Row, max_draft_tokens: int) -> list[int]:
        ids, ends = row.ids, self.ends.setdefault(row.number, {})
        for end in range(max(self.n_indexed.get(row.number, 0), self.ngram), len(ids)):
            ends[tuple(ids[end - self.ngram : end])] = end
        self.n_indexed[row.number] = len(ids)
        begin = ends.get(tuple(ids[-self.ngram :]))
        if begin is None:
            return []
        text = list(ids[begin:])
        while len(text) < len(ids) - begin + max_draft_tokens:  # repeat the text if there are too few tokens
            text.append(text[len(text) - (len(ids) - begin)])
        return text[:max_draft_tokens]


class _StepRounds:
    """Rounds of speculative decoding with any decoders; draft tokens are drawn and verified on the host."""

    def __init__(
        self,
        model: SpeculativeDecoder[Any],
        proposer: "_DraftProposer | _LookupProposer",
        distributions: _Distributions,
    ) -> None:
        self._proposer, self._distributions, self._target = proposer, distributions, _ReadState(model)
        self._numbers: list[int] = []  # of the rows of the last pass

    def run(self, rows: Sequence[Row], limits: Sequence[int]) -> list[RowTokens]:
        numbers, target = [row.number for row in rows], self._target
        for state in (target, *self._proposer.states) if self._numbers else ():
            if len(numbers) < len(self._numbers):
                state.keep([self._numbers.index(number) for number in numbers])
            state.forget(rows)
        self._numbers = numbers
        proposals = self._proposer.propose(rows, limits)
        logits = target.read(rows, [proposal.ids for proposal in proposals])
        pairs = zip(rows, proposals, strict=True)
        texts = ([*row.ids, *proposal.ids[:n]] for row, proposal in pairs for n in range(len(proposal.ids) + 1))
        p = self._distributions(torch.cat(logits), texts).split([len(scores) for scores in logits])
        accepted = [
            accept(proposal, p_row, row.generator) for row, proposal, p_row in zip(rows, proposals, p, strict=True)
        ]
        ids = torch.tensor([token for tokens in accepted for token in tokens], device=target.device)
        scores = torch.cat([scores[: len(tokens)] for scores, tokens in zip(logits, accepted, strict=True)])
        logprobs = token_logprobs(scores, ids).cpu().split([len(tokens) for tokens in accepted])
        return [(tokens, proposal.tolist()) for tokens, proposal in zip(accepted, logprobs, strict=True)]


@contextmanager
def _rounds_of(
    model: SpeculativeDecoder[Any],
    rows: Sequence[Row],
    sampling: Sampling,
    speculation: Draft | Lookup,
    stop_ids: Set[int],
    forbidden: Set[int],
) -> Generator[_StepRounds | GraphRounds]:
    """Provide rounds with CUDA graphs if all models can be captured on the same GPU, else without graphs."""
    draft = speculation.model if isinstance(speculation, Draft) else None
    models = [model] if draft is None else [model, draft]
    if len({device_of(member) for member in models}) == 1 and all(
        can_capture(member, device_of(member)) for member in models
    ):
        look_up = None if isinstance(speculation, Draft) else _LookupProposer(speculation).follow
        rounds = Rounds(
            model=cast("GraphModel", model), draft=cast("GraphModel | None", draft), sampling=sampling,
            stop_ids=stop_ids, forbidden=forbidden, draft_tokens=speculation.tokens, look_up=look_up,
        )  # fmt: skip
        longest = max((len(row.ids) + row.left for row in rows), default=1)
        with graph_rounds(rounds, rows=len(rows), capacity=longest) as graph_decoding:
            yield graph_decoding
    else:
        distributions = _Distributions(sampling, sorted(forbidden))
        proposer = (
            _DraftProposer(speculation, distributions, stop_ids)
            if isinstance(speculation, Draft)
            else _LookupProposer(speculation)
        )
        yield _StepRounds(model, proposer, distributions)


def _passes(
    rounds: _StepRounds | GraphRounds,
    rows: Sequence[Row],
    models: Sequence[SpeculativeDecoder[Any]],
    speculation: Draft | Lookup,
    stop_ids: Set[int],
    finished_rows: Set[int],
) -> Iterator[Pass]:
    parts: list[nn.Module] = [part for model in models for part in parts_of(model)]
    live = [row for row in rows if row.left]
    while live:
        new_tokens: Pass = [[] for _ in rows]
        with inference_mode(parts):
            results = rounds.run(live, [row.max_draft_tokens(speculation.tokens, models) for row in live])
        for row, (ids, logprobs) in zip(live, results, strict=True):
            new_tokens[row.number] = row.take(ids, logprobs, stop_ids)
        yield new_tokens
        live = [row for row in live if row.left and row.number not in finished_rows]


def _draw(probabilities: Float[Tensor, " V"], generator: torch.Generator) -> int:
    return int(draw(probabilities[None], [generator]))


def _draw_uniform(generator: torch.Generator) -> float:
    return torch.rand((), dtype=torch.float64, generator=generator).item()

"""Decode steps of a translator match the full pass, also after its rows are expanded, reordered, dropped or grown."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from grid import GRID
from hypothesis import given, settings
from small import MAX_LEN, POSITIONS, V, model, padded, translator
from torch import Tensor

from tercet.models import AnyModel, EncoderDecoder
from tercet.nn import StackCache

CLOSE = {"atol": 2e-5, "rtol": 1e-5}
LENGTHS = torch.tensor([3, 1, 5])
S = 11


def sources(side: str = "scattered") -> tuple[Tensor, Tensor]:
    return padded([torch.randint(V, (length,)) for length in (8, S, 2)], side, S)


@pytest.mark.slow
@pytest.mark.parametrize("point", GRID)
@torch.no_grad()
def test_start_and_steps_match_the_full_pass(point) -> None:
    """Prefixes of 3, 1 and 5 tokens in one batch; each row is decoded up to the last column."""
    translator_, target = translator(**point), torch.randint(V, (3, MAX_LEN))
    source, token_mask = sources()
    full, rows = translator_(source, target, source_token_mask=token_mask), torch.arange(3)
    beginnings = torch.where(torch.arange(5) < LENGTHS[:, None], target[:, :5], torch.randint(V, (3, 5)))
    logits, cache = translator_.start(
        beginnings, LENGTHS, source=source, source_token_mask=token_mask, capacity=MAX_LEN
    )
    torch.testing.assert_close(logits, full[rows, LENGTHS - 1], **CLOSE)
    for t in range(MAX_LEN - 5):
        logits = translator_.step(target[rows, LENGTHS + t], cache)
        torch.testing.assert_close(logits, full[rows, LENGTHS + t], **CLOSE)
    assert cache.lengths.tolist() == [11, 9, MAX_LEN]


class Walk:
    """The expected state of decoding: sources and tokens of each row as lists, scored by full passes."""

    def __init__(self, model_: AnyModel, *, capacity: int = 6) -> None:
        self.model, self.source, self.token_mask = model_, *sources()
        tokens = torch.randint(V, (3, 5))
        self.tokens = [row[:length].tolist() for row, length in zip(tokens, LENGTHS, strict=True)]
        self.owner, self.n = [0, 1, 2], 1  # n rows share a source
        source_inputs: dict[str, Any] = {"source": self.source, "source_token_mask": self.token_mask}
        start_options = source_inputs if isinstance(model_, EncoderDecoder) else {}
        logits, self.cache = model_.start(tokens, LENGTHS, capacity=capacity, **start_options)
        self.check(logits)

    def check(self, logits: Tensor) -> None:
        target = torch.zeros(len(self.tokens), max(map(len, self.tokens)), dtype=torch.long)
        for row, tokens in enumerate(self.tokens):
            target[row, : len(tokens)] = torch.tensor(tokens)
        if isinstance(self.model, EncoderDecoder):
            full = self.model(self.source[self.owner], target, source_token_mask=self.token_mask[self.owner])
        else:
            full = self.model(target)
        last = torch.tensor([len(tokens) - 1 for tokens in self.tokens])
        torch.testing.assert_close(logits, full[torch.arange(len(last)), last], **CLOSE)
        assert self.cache.lengths.tolist() == (last + 1).tolist()

    def step(self) -> None:
        if max(map(len, self.tokens)) == MAX_LEN:
            return
        if max(map(len, self.tokens)) == self.cache.capacity:
            self.grow()
        new = torch.randint(V, (len(self.tokens),))
        self.tokens = [[*tokens, token] for tokens, token in zip(self.tokens, new.tolist(), strict=True)]
        self.check(self.model.step(new, self.cache))

    def grow(self) -> None:
        self.cache.grow(min(self.cache.capacity + 2, MAX_LEN))

    def expand_beams(self) -> None:
        if len(self.tokens) * 3 <= 18:
            self.keep([row for row in range(len(self.tokens)) for _ in range(3)])
            self.cache.expand_beams(3)
            self.n *= 3

    def shuffle(self) -> None:
        """Reorder rows within each group; some rows are used twice and others are dropped."""
        rows = [
            start + int(torch.randint(self.n, ()))
            for start in range(0, len(self.tokens), self.n)
            for _ in range(self.n)
        ]
        self.reorder(rows)

    def drop(self) -> None:
        """Drop a whole group; the remaining groups may change places."""
        groups = torch.randperm(len(self.tokens) // self.n)[:-1].tolist()
        if groups:
            self.reorder([group * self.n + row for group in groups for row in torch.randperm(self.n).tolist()])

    def reorder(self, rows: list[int]) -> None:
        self.keep(rows)
        self.cache.reorder(torch.tensor(rows))

    def keep(self, rows: list[int]) -> None:
        self.tokens, self.owner = [self.tokens[row] for row in rows], [self.owner[row] for row in rows]


FAMILIES = {"translator": translator, "decoder-only": model}
BEAMS = ["step", "expand_beams", "step", "shuffle", "step", "grow", "drop", "shuffle", "step", "drop", "step", "step"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
@torch.no_grad()
def test_beams_match_separate_rows(position, family: str) -> None:
    walk = Walk(FAMILIES[family](position=position, n_kv_heads=2))
    for act in BEAMS:
        getattr(walk, act)()
    assert (len(walk.tokens), walk.n) == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_beams_of_random_searches_match_separate_rows(family: str) -> None:
    network = FAMILIES[family](position=POSITIONS[0])

    @settings(max_examples=10, deadline=None)
    @given(
        st.lists(st.sampled_from(["step", "expand_beams", "shuffle", "drop", "grow"]), max_size=9), st.integers(0, 99)
    )
    @torch.no_grad()
    def search(acts: list[str], seed: int) -> None:
        torch.manual_seed(seed)
        walk = Walk(network)
        for act in [*acts, "step"]:
            getattr(walk, act)()

    search()


@torch.no_grad()
def test_rows_without_a_source_are_dropped_separately() -> None:
    """Samples of one prompt are not a group in a language model: any may finish first."""
    walk = Walk(model())
    walk.expand_beams()
    walk.reorder([8, 0, 4, 3, 3])
    walk.step()


@pytest.mark.slow
@torch.no_grad()
def test_source_is_stored_once_for_all_its_rows() -> None:
    walk = Walk(translator(n_kv_heads=2))
    pairs = [layer.cross_kv.pair for layer in walk.cache.layers]
    walk.expand_beams()
    walk.shuffle()
    walk.step()
    for layer, before in zip(walk.cache.layers, pairs, strict=True):
        assert layer.cross_kv.pair is before  # not even copied
        assert before is not None
        assert before[0].shape == (3, 2, S, 6)
        assert layer.self_kv.keys.shape[0] == 9


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0, 1], [2]], ids=["permuted", "repeated", "dropped"])
@torch.no_grad()
def test_reorder_also_moves_the_sources(rows: list[int]) -> None:
    walk = Walk(translator())
    walk.reorder(rows)
    walk.step()
    walk.expand_beams()
    walk.step()


@torch.no_grad()
def test_source_is_read_once_and_state_is_not_stored_in_the_model() -> None:
    network = translator()
    walk = Walk(network)
    calls = []
    network.encoder.register_forward_hook(lambda *_: calls.append(1))
    for block in network.decoder.blocks:
        block.cross_attention.key.register_forward_hook(lambda *_: calls.append(1))
    network.step(torch.randint(V, (3,)), walk.cache)
    assert not calls
    assert not any(isinstance(value, StackCache) for module in network.modules() for value in vars(module).values())


@pytest.mark.slow
@torch.no_grad()
def test_greedy_decoding_is_the_same_without_a_cache() -> None:
    network, (source, token_mask) = translator(), sources("right")
    target = torch.randint(V, (3, 1))
    logits, cache = network.start(
        target, torch.ones(3, dtype=torch.long), source=source, source_token_mask=token_mask, capacity=2
    )
    for _ in range(MAX_LEN - 1):
        next_ids = network(source, target, source_token_mask=token_mask)[:, -1].argmax(-1)
        assert torch.equal(logits.argmax(-1), next_ids)
        cache.grow(min(cache.capacity + 1, MAX_LEN))
        logits = network.step(next_ids, cache)
        target = torch.cat((target, next_ids[:, None]), dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_steps_match_the_full_pass_in_half_precision(dtype: torch.dtype) -> None:
    network, (source, token_mask) = translator(position=POSITIONS[2]).to(dtype), sources("left")
    target = torch.randint(V, (3, MAX_LEN))
    full = network(source, target, source_token_mask=token_mask)
    assert full.dtype == torch.float32
    _, cache = network.start(
        target[:, :5], torch.full((3,), 5), source=source, source_token_mask=token_mask, capacity=MAX_LEN
    )
    assert cache.layers[0].self_kv.keys.dtype == dtype
    for t in range(5, MAX_LEN):
        logits = network.step(target[:, t], cache)
        assert (torch.cosine_similarity(logits, full[:, t], dim=-1) > 0.999).all()


@torch.no_grad()
def test_wrong_use_is_reported() -> None:
    network, (source, token_mask), target = translator(), sources(), torch.randint(V, (3, 5))
    start = {"source": source, "source_token_mask": token_mask, "capacity": 6}
    with pytest.raises(ValueError, match=r"capacity=4 must be at least the 5 target tokens and at most max_len=13"):
        network.start(target, LENGTHS, **start | {"capacity": 4})
    with pytest.raises(ValueError, match=r"capacity=14 .* at most max_len=13"):
        network.start(target, LENGTHS, **start | {"capacity": 14})
    with pytest.raises(ValueError, match=r"cross-attention requires `memory`"):
        network.hidden(target, None)
    _, cache = network.start(target, LENGTHS, **start)
    cache.expand_beams(2)
    with pytest.raises(ValueError, match=r"must be a multiple of 2, the rows per source: 5"):
        cache.reorder(torch.arange(5))
    with pytest.raises(ValueError, match=r"capacity=5 must be at least the current capacity of 6"):
        cache.grow(5)


@torch.no_grad()
def test_number_of_sources_must_match_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # annotations are not checked outside of tests
    network = translator()
    with pytest.raises(ValueError, match=r"2 sources for 4 prefixes.*call cache.expand_beams"):
        network.start(torch.randint(V, (4, 1)), torch.ones(4).long(), source=torch.randint(V, (2, S)), capacity=6)

"""Decoding with a cache gives the logits of a full forward pass at every position, in every variant."""

import pytest
import torch
from grid import GRID
from small import MAX_LEN, POSITIONS, V, generate_greedily, model

from tercet.models import DecoderOnly
from tercet.nn import StackCache

pytestmark = pytest.mark.threads

CLOSE = {"atol": 2e-5, "rtol": 1e-5}


def empty_cache(decoder: DecoderOnly, *, batch: int, capacity: int) -> StackCache:
    stack = decoder.spec.stack
    return StackCache(
        n_layers=stack.n_layers, n_kv_heads=stack.kv_heads, d_head=stack.head_width, batch=batch, capacity=capacity
    )


@pytest.mark.parametrize("point", GRID)
@torch.no_grad()
def test_start_and_steps_match_the_full_pass(point) -> None:
    """Prompts of 3, 1 and 7 tokens in one batch; each row is decoded up to the last column."""
    decoder, tokens = model(**point), torch.randint(V, (3, MAX_LEN))
    full, lengths, rows = decoder(tokens), torch.tensor([3, 1, 7]), torch.arange(3)
    prompts = torch.where(torch.arange(7) < lengths[:, None], tokens[:, :7], torch.randint(V, (3, 7)))
    logits, cache = decoder.start(prompts, lengths, capacity=MAX_LEN)
    torch.testing.assert_close(logits, full[rows, lengths - 1], **CLOSE)
    for t in range(MAX_LEN - 7):
        columns = lengths + t
        logits = decoder.step(tokens[rows, columns], cache)
        torch.testing.assert_close(logits, full[rows, columns], **CLOSE)
    assert cache.lengths.tolist() == [9, 7, MAX_LEN]


@pytest.mark.parametrize("point", GRID)
@torch.no_grad()
def test_chunked_prefill_matches_a_single_prefill(point) -> None:
    decoder, tokens = model(**point), torch.randint(V, (2, MAX_LEN))
    cache, parts = empty_cache(decoder, batch=2, capacity=MAX_LEN), []
    for chunk in tokens.split((1, 7, MAX_LEN - 8), dim=1):
        parts.append(decoder.hidden(chunk, cache=cache))
        cache.advance(chunk.shape[1])
    torch.testing.assert_close(torch.cat(parts, dim=1), decoder.hidden(tokens), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
@torch.no_grad()
def test_full_row_does_not_affect_the_others(position) -> None:
    """A full row may still be stepped: its logits are undefined, but those of other rows are not."""
    decoder, tokens = model(position=position), torch.randint(V, (2, MAX_LEN))
    logits, cache = decoder.start(tokens, torch.tensor([MAX_LEN, 4]), capacity=MAX_LEN)
    full = decoder(tokens)
    torch.testing.assert_close(logits, full[[0, 1], [MAX_LEN - 1, 3]], **CLOSE)
    for t in range(4, MAX_LEN):
        logits = decoder.step(tokens[:, t], cache)
        torch.testing.assert_close(logits[1], full[1, t], **CLOSE)
        assert logits.isfinite().all()


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0, 1], [2]], ids=["permuted", "repeated", "dropped"])
@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
@torch.no_grad()
def test_reorder_equals_starting_with_these_rows(position, rows: list[int]) -> None:
    decoder, tokens = model(position=position), torch.randint(V, (3, MAX_LEN))
    lengths, full = torch.tensor([3, 1, 5]), decoder(tokens)
    _, cache = decoder.start(tokens[:, :5], lengths, capacity=MAX_LEN)
    decoder.step(tokens[torch.arange(3), lengths], cache)
    cache.reorder(torch.tensor(rows))
    for t in (1, 2):
        columns = lengths[rows] + t
        torch.testing.assert_close(decoder.step(tokens[rows, columns], cache), full[rows, columns], **CLOSE)


@torch.no_grad()
def test_repeated_rows_are_independent() -> None:
    decoder, tokens = model(), torch.randint(V, (1, 5))
    _, cache = decoder.start(tokens, torch.tensor([5]), capacity=MAX_LEN)
    cache.reorder(torch.tensor([0, 0]))
    branches = torch.tensor([[2, 3], [7, 11]])
    for t in range(2):
        logits = decoder.step(branches[:, t], cache)
    torch.testing.assert_close(logits, decoder(torch.cat((tokens.expand(2, -1), branches), 1))[:, -1], **CLOSE)


@torch.no_grad()
def test_decoding_state_is_not_stored_in_the_model() -> None:
    decoder, tokens = model(), torch.randint(V, (2, 5))
    before = decoder(tokens)
    _, cache = decoder.start(tokens, torch.tensor([5, 5]), capacity=7)
    decoder.step(tokens[:, 0], cache)
    assert torch.equal(decoder(tokens), before)
    assert decoder.start(tokens, torch.tensor([5, 5]), capacity=7)[1] is not cache


def test_invalid_capacities_are_rejected() -> None:
    decoder, tokens = model(), torch.randint(V, (2, 5))
    lengths = torch.tensor([5, 5])
    with pytest.raises(ValueError, match=r"capacity=4 must be at least the 5 prompt tokens and at most max_len=13"):
        decoder.start(tokens, lengths, capacity=4)
    with pytest.raises(ValueError, match=r"capacity=14 .* at most max_len=13"):
        decoder.start(tokens, lengths, capacity=14)
    with pytest.raises(ValueError, match=r"text too long: 14 tokens do not fit into the context of max_len=13"):
        decoder(torch.randint(V, (1, 14)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_steps_match_the_full_pass_in_half_precision(dtype: torch.dtype) -> None:
    decoder, tokens = model(position=POSITIONS[2]).to(dtype), torch.randint(V, (2, MAX_LEN))
    full = decoder(tokens)
    assert full.dtype == torch.float32
    logits, cache = decoder.start(tokens[:, :5], torch.tensor([5, 5]), capacity=MAX_LEN)
    assert cache.layers[0].self_kv.keys.dtype == dtype
    for t in range(5, MAX_LEN):
        logits = decoder.step(tokens[:, t], cache)
        similarity = torch.cosine_similarity(logits, full[:, t], dim=-1)
        assert (similarity > 0.999).all(), similarity


@pytest.mark.slow
@torch.no_grad()
def test_greedy_decoding_is_the_same_without_a_cache() -> None:
    decoder, prompt = model(), torch.randint(V, (2, 3))
    tokens = prompt
    for _ in range(10):
        tokens = torch.cat((tokens, decoder(tokens)[:, -1].argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(generate_greedily(decoder, prompt, 10), tokens[:, 3:])

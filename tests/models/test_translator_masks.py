"""Masks of a translator: target tokens see no future token, see the whole source, and never see padding."""

import pytest
import torch
from small import GROUPS, MAX_LEN, PLACEMENTS, POSITIONS, V, padded, translator
from torch import Tensor

from pairwise import parametrize_pairs
from tercet.models import EncoderDecoder
from tercet.nn.specs import Placement

S, T = 11, 7
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SIDES = ("left", "right", "scattered")
OTHER_PARTS = [
    {"norm": "rms", "norm_bias": False, "gated": True, "activation": "silu", "bias": False},
    {"qk_norm": True, "activation": "relu_squared"},
    {"d_head": 10},
]
OTHER_SPEC = {
    "embedding_norm": True,
    "scale_embedding": True,
    "logit_softcap": 15.0,
    "tie_embeddings": False,
    "share_embeddings": False,
    "source_vocab_size": V,
}


def with_other_token(tokens: Tensor, column: int) -> Tensor:
    """Return the tokens with another token in one column."""
    changed_tokens = tokens.clone()
    changed_tokens[:, column] = (changed_tokens[:, column] + 1) % V
    return changed_tokens


@torch.no_grad()
def check_sight(model: EncoderDecoder) -> None:
    source, target = torch.randint(V, (2, S)), torch.randint(V, (2, T))
    memory = model.encode(source)
    for token_mask in (torch.ones(2, T, dtype=torch.bool), None):
        before = model.hidden(target, memory, token_mask=token_mask)
        for column in (1, T - 1):
            after = model.hidden(with_other_token(target, column), memory, token_mask=token_mask)
            assert torch.equal(after[:, :column], before[:, :column])
            assert (after[:, column:] != before[:, column:]).any(-1).all()
    for column in (0, S - 1):  # each source token is seen by all the others, and by each target token
        changed_memory = model.encode(with_other_token(source, column))
        assert (changed_memory != memory).any(-1).all()
        assert (model.hidden(target, changed_memory) != before).any(-1).all()
        mixed_memory = memory.clone()
        mixed_memory[:, column] = changed_memory[:, column]
        assert (model.hidden(target, mixed_memory) != before).any(-1).all()


@torch.no_grad()
def test_mask_of_ones_equals_no_mask() -> None:
    model = translator()
    source, target = torch.randint(V, (2, S)), torch.randint(V, (2, T))
    real = torch.ones(2, S, dtype=torch.bool), torch.ones(2, T, dtype=torch.bool)
    logits = model(source, target, source_token_mask=real[0], target_token_mask=real[1])
    torch.testing.assert_close(logits, model(source, target), **CLOSE)


@torch.no_grad()
def check_padded_rows(model: EncoderDecoder) -> None:
    """Check that pairs have the same logits in padded batches of other lengths, with random ids as padding."""
    sources = [torch.randint(V, (length,)) for length in (S, 1, 5)]
    targets = [torch.randint(V, (length,)) for length in (2, T, 1)]
    separate = [model(source[None], target[None])[0] for source, target in zip(sources, targets, strict=True)]
    for side in SIDES:
        source, source_token_mask = padded(sources, side, MAX_LEN)
        target, target_token_mask = padded(targets, side, T + 2)
        logits = model(source, target, source_token_mask=source_token_mask, target_token_mask=target_token_mask)
        assert logits.isfinite().all()
        for row, expected in enumerate(separate):
            torch.testing.assert_close(logits[row, target_token_mask[row]], expected, **CLOSE)


@torch.no_grad()
def check_an_empty_source(model: EncoderDecoder) -> None:
    source, target = torch.randint(V, (3, S)), torch.randint(V, (3, T))
    token_mask = torch.ones_like(source, dtype=torch.bool)
    token_mask[1] = False
    logits = model(source, target, source_token_mask=token_mask)
    assert logits.isfinite().all()
    for row in (0, 2):
        torch.testing.assert_close(logits[row], model(source[row : row + 1], target[row : row + 1])[0], **CLOSE)
    other_source = source.clone()
    other_source[1] = torch.randint(V, (S,))
    torch.testing.assert_close(model(other_source, target, source_token_mask=token_mask), logits, **CLOSE)
    first, cache = model.start(
        target[:, :3], torch.full((3,), 3), source=source, source_token_mask=token_mask, capacity=MAX_LEN
    )
    torch.testing.assert_close(first, logits[:, 2], **CLOSE)
    torch.testing.assert_close(model.step(target[:, 3], cache), logits[:, 3], **CLOSE)


@pytest.mark.slow
@parametrize_pairs(
    check=(check_sight, check_padded_rows, check_an_empty_source),
    position=POSITIONS,
    n_kv_heads=tuple(GROUPS.values()),
    placement=PLACEMENTS,
)
def test_whole_source_is_seen_but_no_future_and_no_padding(
    check, position, n_kv_heads: int, placement: Placement
) -> None:
    check(translator(position=position, n_kv_heads=n_kv_heads, placement=placement))


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_sight, check_padded_rows])
@pytest.mark.parametrize("part", OTHER_PARTS, ids=str)
def test_other_parts_keep_the_masks(check, part) -> None:
    check(translator(spec=OTHER_SPEC, **part))


@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
def test_padding_has_finite_gradients(position) -> None:
    """Some sources and targets consist only of padding."""
    model = translator(position=position)
    source, source_token_mask = padded([torch.randint(V, (length,)) for length in (0, 1, 5, S)], "left", S)
    target, target_token_mask = padded([torch.randint(V, (length,)) for length in (4, T, 0, 1)], "scattered", T)
    logits = model(source, target, source_token_mask=source_token_mask, target_token_mask=target_token_mask)
    logits[target_token_mask].logsumexp(-1).sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_overlong_sides_are_rejected() -> None:
    model, short, too_long = translator(), torch.randint(V, (2, 5)), torch.randint(V, (2, MAX_LEN + 1))
    with pytest.raises(ValueError, match=r"source too long: 14 tokens do not fit into the context of max_len=13"):
        model(too_long, short)
    with pytest.raises(ValueError, match=r"target too long: 14 tokens do not fit into the context of max_len=13"):
        model(short, too_long)

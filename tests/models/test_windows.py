"""Sliding windows hide distant tokens, in training, with padding and documents, and in cached decoding."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.models import (
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.models.fused import fused_layers
from tercet.nn import ALiBi, Learned, Rotary
from tercet.nn.specs import Window

V, LENGTH, SIZE = 17, 13, 4
STACK = StackSpec(
    d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=19, position=Rotary(base=37.0), window=Window(size=SIZE)
)
DEEP = replace(STACK, n_layers=3, window=Window(size=SIZE, global_layers=(1,)))
VARIANTS = [
    DEEP,
    replace(DEEP, position=Rotary(base=37.0, local_base=5.0)),
    replace(DEEP, position=Rotary(base=37.0, skip_layers=(0, 1))),
    replace(DEEP, position=ALiBi()),
    replace(DEEP, position=Learned(), window=Window(size=1)),
]


def writer(stack: StackSpec = STACK, **changes: Any) -> DecoderOnly:
    return DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=LENGTH, stack=stack, **changes), seed=3).eval()


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


def readers(model: Callable[[Tensor], Tensor], changed: int) -> list[int]:
    """Return the positions of one text whose output depends on the token `changed`."""
    text = tokens(1, LENGTH)
    other = text.clone()
    other[0, changed] = (other[0, changed] + 1) % V
    return [int(t) for t in (model(text) - model(other))[0].abs().amax(-1).nonzero()]


@torch.no_grad()
def test_token_is_read_within_the_window_only() -> None:
    assert readers(writer(), 3) == [3, 4, 5, 6]
    assert readers(writer(replace(STACK, n_layers=2)), 3) == [*range(3, 10)]  # two layers reach twice as far
    assert readers(writer(DEEP), 3) == [*range(3, LENGTH)]  # a global layer
    assert readers(writer(replace(STACK, window=None)), 3) == [*range(3, LENGTH)]


@torch.no_grad()
@pytest.mark.parametrize("size", [4, 5])
def test_window_of_an_encoder_has_two_sides(size: int) -> None:
    spec = EncoderOnlySpec(vocab_size=V, max_len=LENGTH, stack=replace(STACK, window=Window(size=size)))
    assert readers(EncoderOnly(spec, seed=3).eval().hidden, 6) == [4, 5, 6, 7, 8]


@torch.no_grad()
@pytest.mark.parametrize("stack", VARIANTS, ids=lambda stack: f"{stack.position.kind}-{stack.window.size}")
def test_cached_steps_equal_the_full_pass(stack: StackSpec) -> None:
    model, text, lengths = writer(stack), tokens(3, LENGTH), torch.tensor([2, 5, 4])
    expected = model(text)
    logits, cache = model.start(text[:, :5], lengths, capacity=LENGTH)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(logits[row], expected[row, length - 1], atol=1e-5, rtol=0)
    for step in range(8):
        logits = model.step(text[torch.arange(3), lengths + step], cache)
        torch.testing.assert_close(logits, expected[torch.arange(3), lengths + step], atol=1e-5, rtol=0)
    _, cache = model.start(text[:, :3], torch.full((3,), 3), capacity=LENGTH)
    torch.testing.assert_close(model.read_ahead(text[:, 3:], cache), expected[:, 3:], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("stack", VARIANTS, ids=lambda stack: f"{stack.position.kind}-{stack.window.size}")
def test_padding_and_other_documents_change_nothing(stack: StackSpec) -> None:
    model, text = writer(stack), tokens(1, 9)
    expected = model(text)
    mask = torch.ones(1, LENGTH, dtype=torch.bool)
    mask[0, [0, 4, 5, 12]] = False
    padded = tokens(1, LENGTH, seed=1)
    padded[mask] = text[0]
    torch.testing.assert_close(model(padded, token_mask=mask)[mask], expected[0], atol=1e-5, rtol=0)
    packed, numbers = torch.cat((tokens(1, 4, seed=2), text), dim=1), torch.tensor([[0] * 4 + [1] * 9])
    torch.testing.assert_close(model(packed, documents=numbers)[:, 4:], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_window_as_long_as_the_context_changes_nothing() -> None:
    text = tokens(2, LENGTH)
    whole = writer(replace(DEEP, window=None))(text)
    assert torch.equal(writer(replace(DEEP, window=Window(size=LENGTH)))(text), whole)
    assert not torch.allclose(writer(replace(DEEP, window=Window(size=LENGTH - 1)))(text), whole)


@torch.no_grad()
def test_layers_rotate_by_their_own_base() -> None:
    text = tokens(2, LENGTH)
    one = replace(DEEP, window=Window(size=LENGTH), position=Rotary(base=5.0))
    mixed = replace(one, position=Rotary(base=37.0, local_base=5.0))
    assert torch.equal(writer(mixed)(text), writer(one)(text))
    everywhere = replace(mixed, window=Window(size=LENGTH, global_layers=(0, 1, 2)))
    assert torch.equal(writer(everywhere)(text), writer(replace(one, position=Rotary(base=37.0)))(text))
    assert not torch.allclose(
        writer(replace(mixed, window=Window(size=LENGTH, global_layers=(0,))))(text), writer(one)(text)
    )


def test_fused_layers_are_used_only_within_the_window() -> None:
    model = writer(replace(STACK, d_model=32, d_ff=32))
    hidden = torch.zeros(1, 1, 32)
    with torch.inference_mode():
        if fused_layers(model.stack, hidden, model.new_cache(1, capacity=SIZE)) is None:
            pytest.skip("no kernel for this machine")
        assert fused_layers(model.stack, hidden, model.new_cache(1, capacity=SIZE + 1)) is None
        other = writer(replace(STACK, d_model=32, d_ff=32, position=Rotary(local_base=5.0)))
        assert fused_layers(other.stack, hidden, other.new_cache(1, capacity=SIZE)) is None


@torch.no_grad()
def test_beams_of_a_translator_have_the_window() -> None:
    """A beam of width 1 follows the scores of full passes."""
    decoder = replace(STACK, n_layers=2)
    spec = EncoderDecoderSpec(vocab_size=V, max_len=LENGTH, encoder=replace(DEEP, n_layers=2), decoder=decoder)
    model, source, target = EncoderDecoder(spec, seed=3).eval(), tokens(2, 5), tokens(2, LENGTH)
    expected = model(source, target)
    logits, cache = model.start(target[:, :1], torch.ones(2, dtype=torch.long), source=source, capacity=LENGTH)
    cache.expand_beams(2)
    rows = torch.tensor([1, 0, 3, 2])
    for step in range(LENGTH):
        torch.testing.assert_close(logits, expected[:, step], atol=1e-5, rtol=0)
        if step == LENGTH - 1:
            break
        cache.reorder(rows)
        logits = model.step(target[:, step + 1].repeat_interleave(2), cache)[::2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": Window(size=4, global_layers=(3,))}, r"window\.global_layers has 3, but the last layer is 0"),
        ({"position": Rotary(skip_layers=(0, 1))}, r"position\.skip_layers has 1, but the last layer is 0"),
        ({"position": Rotary(local_base=5.0), "window": None}, "local_base is the base in layers with a window; set"),
    ],
)
def test_layers_that_do_not_exist_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(STACK, **change)

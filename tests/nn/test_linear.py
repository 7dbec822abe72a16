"""Quantized linear layers give nearly the same results, and otherwise behave as before."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tercet.kernel.inference_linear import MAX_GEMV_ROWS
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn import Linear, quantize

SPEC = DecoderOnlySpec(
    vocab_size=53, max_len=23, tie_embeddings=True, stack=StackSpec(n_layers=2, d_model=24, n_heads=2)
)


@pytest.mark.slow
@given(n=st.integers(1, 19), k=st.integers(1, 31), seed=st.integers(0, 2**32), scale=st.floats(1e-6, 1e6))
def test_int8_error_is_at_most_half_a_step(n: int, k: int, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    layer = Linear(k, n, bias=False)
    with torch.no_grad():
        layer.weight.mul_(scale)
    before = layer.weight.detach().clone()
    layer.quantize("int8")
    assert layer.weight.dtype == torch.int8
    step = before.abs().amax(1, keepdim=True) / 127
    assert ((layer.dequantize(torch.float32) - before).abs() <= 0.5001 * step).all()


def test_row_of_zeros_stays_zero() -> None:
    layer = Linear(5, 3)
    torch.nn.init.zeros_(layer.weight)
    layer.quantize("int8")
    x = torch.randn(2, 5)
    assert torch.equal(layer(x), layer.bias.expand(2, 3))


@pytest.mark.parametrize("narrow", ["bf16", "int8"])
@pytest.mark.parametrize("rows", [1, 3, 50])
def test_product_matches_that_of_the_dequantized_weight(narrow: str, rows: int) -> None:
    layer, x = Linear(512, 700), torch.randn(rows, 512)
    layer.quantize(narrow)
    expected = torch.nn.functional.linear(x.double(), layer.dequantize(torch.float64), layer.bias.double())
    with torch.no_grad():
        atol = (
            1e-4 if narrow == "int8" and rows <= MAX_GEMV_ROWS else 1e-5
        )  # with few rows, the kernel rounds x to 16 bits
        torch.testing.assert_close(layer(x).double(), expected, atol=atol, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("narrow", ["bf16", "int8"])
def test_quantized_model_has_nearly_the_same_outputs(narrow: str) -> None:
    model = DecoderOnly(SPEC, seed=1).eval()
    tokens = torch.randint(0, 53, (2, 17))
    before = model(tokens).log_softmax(-1)
    size = sum(p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()])
    quantize(model, narrow)
    after = model(tokens).log_softmax(-1)
    assert 0 < float((before - after).abs().max()) < 0.05
    assert sum(p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()]) < 0.75 * size
    assert model.embedding.weight.dtype == torch.float32  # the embedding still reads the tied matrix
    prompt_logits, cache = model.start(tokens[:, :9], torch.tensor([9, 7]), capacity=20)
    assert prompt_logits.shape == (2, 53)
    assert cache.layers[0].self_kv.keys.dtype == torch.float32
    logits = model.step(tokens[:, 9], cache)
    torch.testing.assert_close(logits[0], model(tokens[:1, :10])[0, -1], atol=1e-5, rtol=1e-5)


def test_quantized_model_can_be_copied_but_not_quantized_again() -> None:
    model = DecoderOnly(SPEC, seed=1).eval()
    quantize(model, "int8")
    tokens = torch.randint(0, 53, (1, 11))
    assert torch.equal(copy.deepcopy(model)(tokens), model(tokens))
    with pytest.raises(ValueError, match="already quantized"):
        quantize(model, "bf16")


def test_state_of_an_unquantized_model_has_no_scales() -> None:
    assert not [name for name in DecoderOnly(SPEC, seed=1).state_dict() if "scale" in name]

"""Fused layers detect every change of their weights and settings, and models can still be copied and pickled."""

import copy
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_fused import N, V, decoder_logits, gpt, plain, translator
from torch import Tensor, nn

from tercet.kernel.build import library
from tercet.models import DecoderOnly, stack
from tercet.models import fused as fused_module
from tercet.models.fused import FusedLayers, fused_layers
from tercet.nn import ALiBi, Attention, RelativeBias, Rotary, quantize
from tercet.nn.norm import RMSNorm

needs_kernel = pytest.mark.skipif(library() is None, reason="no C++ compiler")


def square(**options: Any) -> DecoderOnly:
    """Return a model whose matrices are all square, so that transposed ones have the same shape."""
    return gpt(**{"d_model": 64, "d_head": 16, "d_ff": 64} | options)


@torch.inference_mode()
def logits_after_change(model: DecoderOnly, change: Callable[[DecoderOnly, Any], None]) -> list[Tensor]:
    """Return the logits of one step before and two steps after the change."""
    torch.manual_seed(5)
    tokens = torch.randint(V, (3, 12))
    _, cache = model.start(tokens[:, :4], torch.tensor([4, 2, 3]), capacity=N)
    before = model.step(tokens[:, 5], cache)
    change(model, cache)
    return [before, model.step(tokens[:, 6], cache), model.step(tokens[:, 7], cache)]


def blocks_cut(model: DecoderOnly, cache: Any) -> None:
    del model.stack.blocks[1:]


def final_norm_replaced(model: DecoderOnly, cache: Any) -> None:
    model.stack.final_norm = nn.LayerNorm(64, eps=0.5)


def blocks_replaced(model: DecoderOnly, cache: Any) -> None:
    model.stack.blocks = nn.ModuleList(square().stack.blocks)
    with torch.no_grad():
        for parameter in model.stack.blocks.parameters():
            parameter.mul_(0.7)


def norm_replaced(model: DecoderOnly, cache: Any) -> None:
    model.stack.blocks[0].self_residual.before = RMSNorm(64)


def forward_patched(model: DecoderOnly, cache: Any) -> None:
    model.stack.blocks[0].feedforward.forward = torch.zeros_like


def projection_patched(model: DecoderOnly, cache: Any) -> None:
    query = model.stack.blocks[1].self_attention.query
    query.forward = lambda x: 2 * x


def forward_of_the_class_patched(model: DecoderOnly, cache: Any) -> None:
    model.stack.blocks[1].self_attention.__class__ = type("Mine", (Attention,), {"forward": lambda *a, **_: 0.1 * a[1]})


def transposed(model: DecoderOnly, cache: Any) -> None:
    up = model.stack.blocks[0].feedforward.up
    up.weight.data = up.weight.data.T


def weights_moved(model: DecoderOnly, cache: Any) -> None:
    up = model.stack.blocks[0].feedforward.up
    up.weight.data = -up.weight.data  # the same parameter in other memory


def eps_changed(model: DecoderOnly, cache: Any) -> None:
    model.stack.blocks[0].self_residual.before.eps = 3.0


def heads_changed(model: DecoderOnly, cache: Any) -> None:
    attention = model.stack.blocks[0].self_attention
    attention.n_heads, attention.n_kv_heads, attention.d_head = 4, 4, 16  # as before
    attention.value.bias = None


def position_replaced(model: DecoderOnly, cache: Any) -> None:
    model.stack.position = Rotary().build(d_model=64, d_head=16, n_heads=4, max_len=N)


def bias_of_scores_added(model: DecoderOnly, cache: Any) -> None:
    scheme = RelativeBias(n_buckets=8, max_distance=9)
    model.stack.position = scheme.build(n_heads=4, n_layers=2, causal=True, d_model=64, d_head=16, max_len=N)
    model.stack.position.tables[0].weight.copy_(torch.arange(32).view(8, 4))


def activation_replaced(model: DecoderOnly, cache: Any) -> None:
    model.stack.blocks[1].feedforward.activation = torch.sin


def weights_in_fewer_bits(model: DecoderOnly, cache: Any) -> None:
    quantize(model, "int8")


def cache_of_other_memory(model: DecoderOnly, cache: Any) -> None:
    for layer in cache.layers:
        layer.self_kv.keys = layer.self_kv.keys.transpose(1, 2).contiguous().transpose(1, 2)
        layer.self_kv.values = layer.self_kv.values.mT.contiguous().mT  # the last axis is not contiguous


def bias_dropped(model: DecoderOnly, cache: Any) -> None:
    model.stack.blocks[0].feedforward.down.bias = None


CHANGES = [
    blocks_cut, final_norm_replaced, blocks_replaced, norm_replaced, forward_patched, projection_patched,
    forward_of_the_class_patched, transposed, weights_moved, eps_changed, heads_changed, position_replaced,
    bias_of_scores_added, activation_replaced, weights_in_fewer_bits, cache_of_other_memory, bias_dropped,
]  # fmt: skip


@needs_kernel
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_between_two_steps_is_detected(change: Callable[[DecoderOnly, Any], None]) -> None:
    model = square(n_kv_heads=None)
    fused_logits = logits_after_change(copy.deepcopy(model), change)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "fused_layers", plain)
        separate_logits = logits_after_change(copy.deepcopy(model), change)
        unchanged_logits = logits_after_change(copy.deepcopy(model), lambda model, cache: None)
    for found, expected in zip(fused_logits, separate_logits, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    if change is not cache_of_other_memory:
        assert not torch.allclose(separate_logits[1], unchanged_logits[1], atol=1e-2)


@needs_kernel
def test_change_that_disables_fusing_is_logged_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_module.log, "disabled", False)  # other tests in this process may have configured logging
    with caplog.at_level(logging.WARNING, "tercet"):
        logits_after_change(square(n_kv_heads=None), activation_replaced)
        logits_after_change(square(n_kv_heads=None), weights_in_fewer_bits)
        assert len(caplog.records) == 1
        assert "layer by layer" in caplog.text
        assert "\n" not in caplog.records[0].getMessage()
        logits_after_change(square(n_kv_heads=None), cache_of_other_memory)
    assert len(caplog.records) == 2
    assert "cache" in caplog.records[1].getMessage()


@needs_kernel
@torch.inference_mode()
def test_cache_of_other_layers_is_not_read() -> None:
    model, x = square(), torch.zeros(3, 1, 64)
    cache = model.stack.new_cache(3, capacity=5)
    assert fused_layers(model.stack, x, cache) is not None
    assert fused_layers(model.stack, x, model.stack.new_cache(2, capacity=5)) is None
    assert fused_layers(model.stack, x, square(n_layers=1).stack.new_cache(3, capacity=5)) is None
    assert fused_layers(model.stack, x, square(n_kv_heads=1).stack.new_cache(3, capacity=5)) is None
    assert fused_layers(model.stack, torch.zeros(3, 1, 40), cache) is None
    assert fused_layers(model.stack, x.double(), cache) is None
    cache.capacity = 9  # more than is allocated
    assert fused_layers(model.stack, x, cache) is None


@needs_kernel
@torch.inference_mode()
def test_invalid_column_is_rejected_before_any_write() -> None:
    model = square()
    cache = model.stack.new_cache(2, capacity=5)
    cache.lengths = torch.tensor([1, -3])
    layers = fused_layers(model.stack, torch.zeros(2, 1, 64), cache)
    assert layers is not None
    with pytest.raises(IndexError, match="column -3 does not exist in a cache of 5"):
        layers(torch.zeros(2, 1, 64), None, cache, None)
    assert not any(layer.self_kv.keys.any() for layer in cache.layers)


@needs_kernel
@torch.inference_mode()
def test_masks_and_rotations_of_other_sizes_are_rejected() -> None:
    model = square(position=Rotary())
    cache = model.stack.new_cache(2, capacity=5)
    layers = fused_layers(model.stack, torch.zeros(2, 1, 64), cache)
    assert layers is not None
    for rotation in ((torch.zeros(2, 1, 16),) * 2, (torch.zeros(3, 1, 8),) * 2):
        with pytest.raises((ValueError, RuntimeError)):
            layers(torch.zeros(2, 1, 64), rotation, cache, None)
    model = square(position=ALiBi())
    layers = fused_layers(model.stack, torch.zeros(2, 1, 64), cache)
    assert layers is not None
    with pytest.raises(ValueError, match="a bias for 8 distances does not suffice for 9 columns"):
        layers(torch.zeros(2, 1, 64), None, model.stack.new_cache(2, capacity=9), None)
    network = translator()
    source, target = torch.randint(V, (2, 9)), torch.randint(V, (2, 3))
    _, cache = network.start(
        target, torch.tensor([3, 3]), source=source, source_token_mask=torch.ones(2, 9) > 0, capacity=N
    )
    with pytest.raises(ValueError, match="mask"):
        network.decoder(torch.zeros(2, 1, 40), memory_token_mask=torch.ones(2, 4) > 0, cache=cache)


@needs_kernel
@torch.inference_mode()
def test_memory_is_kept_alive_while_its_address_is_stored() -> None:
    model = square()
    program = fused_layers(model.stack, torch.zeros(1, 1, 64), model.stack.new_cache(1, capacity=3))
    assert isinstance(program, FusedLayers)
    weight = model.stack.blocks[0].feedforward.up.weight
    address = weight.data_ptr()
    weight.data = torch.zeros(64, 64)
    assert any(x.data_ptr() == address for x in program._memory)
    assert program.is_outdated()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "relu_squared"])
def test_models_can_be_pickled_saved_and_copied(activation: str) -> None:
    tokens = torch.randint(V, (3, 12))
    for model in (gpt(activation=activation), gpt(activation=activation, gated=True)):
        expected = decoder_logits(model, tokens)  # fuses the layers, which stores memory addresses
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model), torch.load(buffer, weights_only=False)]
        for model_copy in copies:
            assert torch.equal(decoder_logits(model_copy, tokens), expected)
            copied_activation, original_activation = (
                network.stack.blocks[0].feedforward.activation for network in (model_copy, model)
            )
            assert copied_activation is original_activation  # otherwise no step would recognize the activation


def test_translator_can_be_pickled() -> None:
    model = translator(activation="silu")
    model_copy = pickle.loads(pickle.dumps(model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), model_copy.parameters(), strict=True))

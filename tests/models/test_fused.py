"""Fused layers compute the same as separate layers, and are not used when each layer must be observed."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pairwise import pairwise
from tercet.kernel.build import library
from tercet.models import (
    Biases,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    StackSpec,
    fused,
    record,
    stack,
)
from tercet.models.fused import FusedLayers, fused_layers
from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal, quantize
from tercet.nn.positions import PositionScheme

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
V, N = 29, 20  # vocabulary size, context length


def plain(*_: Any) -> None:
    return None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call of the fused layers appends its number of rows."""
    rows: list[int] = []
    run = FusedLayers.__call__

    def call(self: FusedLayers, x: Tensor, *args: Any) -> Tensor:
        rows.append(len(x))
        return run(self, x, *args)

    monkeypatch.setattr(FusedLayers, "__call__", call)
    return rows


BIASED = (
    ALiBi(),
    RelativeBias(n_buckets=8, max_distance=9),
    RelativeBias(n_buckets=8, max_distance=9, per_layer=True),
)
CASES = pairwise(
    n_kv_heads=(None, 1, 2),
    norm=("layer", "rms", "layer_std"),
    final_norm=(None, False, True),
    parallel=(False, True, "separate_norms"),
    placement=("pre", "post", "sandwich", "branch"),
    activation=("relu", "gelu", "gelu_tanh", "silu", "relu_squared"),
    gated=(False, True),
    bias=(False, True, Biases(qkv=False, out=True, feedforward=False)),
    qk_norm=(False, True, "all_heads"),
    position=(Learned(), Sinusoidal(), Rotary(), Rotary(share=0.5), NoPosition(), *BIASED),
    narrow=(None, "bf16", "int8"),
    times=(1, 4, 8),  # 12 rows are few; 24 use the library's matrix product
)


def shape(**options: Any) -> StackSpec:
    sizes = {"d_model": 40, "n_layers": 2, "n_heads": 4, "d_head": 16, "d_ff": 51}
    return StackSpec(**sizes | {"norm_bias": options.get("norm", "layer") != "rms"} | options)


def shaken(model: nn.Module) -> Any:
    """Perturb all parameters, so that norms and biases are not ones and zeros."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def gpt(**options: Any) -> DecoderOnly:
    return shaken(DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=N, stack=shape(**options)), seed=1))


def translator(**options: Any) -> EncoderDecoder:
    stack_spec = shape(**options)
    return shaken(
        EncoderDecoder(EncoderDecoderSpec(vocab_size=V, max_len=N, encoder=stack_spec, decoder=stack_spec), seed=1)
    )


@torch.inference_mode()
def decoder_logits(model: DecoderOnly, tokens: Tensor) -> Tensor:
    """Return logits of prompts of different lengths, steps, a partly undone lookahead, and reordered rows."""
    times = len(tokens) // 3
    first, cache = model.start(tokens[:, :9], torch.tensor([5, 2, 9]).repeat(times), capacity=N)
    logits = [first, *(model.step(tokens[:, 9 + t], cache) for t in range(3))]
    logits += model.read_ahead(tokens[:, :5], cache).unbind(1)
    cache.advance(torch.tensor([3, 0, 5]).repeat(times))
    cache.reorder(torch.tensor([2, 0, 0]).repeat(times))
    logits += [model.step(tokens[:, t], cache) for t in range(3)]
    return torch.stack(logits)


@torch.inference_mode()
def translator_logits(model: EncoderDecoder, tokens: Tensor) -> Tensor:
    """Return logits of beams that share padded sources and change places."""
    token_mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    first, cache = model.start(
        tokens[:2, :2], torch.tensor([2, 1]), source=tokens[:2, 2:11], source_token_mask=token_mask, capacity=N
    )
    logits = [first, model.step(tokens[:2, 3], cache)]
    cache.expand_beams(3)
    logits.append(model.step(tokens[:2].flatten()[:6], cache)[:2])
    cache.reorder(torch.tensor([2, 2, 0, 4, 3, 5]))
    logits.append(model.step(tokens[:2].flatten()[6:12], cache)[3:5])
    cache.reorder(torch.tensor([3, 4, 5]))
    logits.append(model.step(tokens[:3, 0], cache)[1:])
    return torch.stack(logits)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_fused_layers_match_layers_one_by_one(number: int) -> None:
    shape: dict[str, Any] = dict(CASES[number])
    narrow, times = shape.pop("narrow"), shape.pop("times")
    make, compute = [(gpt, decoder_logits), (translator, translator_logits)][number % 2]
    model, tokens = make(**shape), torch.randint(V, (3 * times, 12))
    if narrow is not None:
        quantize(model, narrow)
    fused_logits = compute(model, tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "fused_layers", plain)
        separate_logits = compute(model, tokens)
    size = max(1.0, float(separate_logits.abs().max()))
    rounding = 2e-4 if narrow == "int8" else 3e-5  # separate small layers do not round their inputs to 16 bits
    torch.testing.assert_close(fused_logits, separate_logits, atol=rounding * size, rtol=1e-4)


def test_steps_and_lookahead_use_fused_layers(calls: list[int]) -> None:
    decoder_logits(gpt(), torch.randint(V, (3, 12)))
    assert calls == [3] * 7  # but not the prefill of prompts with nine tokens
    calls.clear()
    translator_logits(translator(), torch.randint(V, (3, 12)))
    assert calls == [2, 6, 6, 3]  # nor the first pass, which has to project the sources


@pytest.mark.parametrize("position", BIASED)
def test_biases_are_read_at_each_step_and_for_any_capacity(position: Any, calls: list[int]) -> None:
    model, tokens = gpt(position=position), torch.randint(V, (3, N))

    def check(capacity: int) -> Tensor:
        with torch.inference_mode():
            _, cache = model.start(tokens[:, :1], torch.ones(3, dtype=torch.long), capacity=capacity)
            steps = torch.stack([model.step(tokens[:, t], cache) for t in range(1, capacity)], 1)
            assert len(calls) == capacity  # the prompt of one token is also a step
            torch.testing.assert_close(steps, model(tokens[:, :capacity])[:, 1:], atol=3e-5, rtol=1e-4)
        calls.clear()
        return steps

    before = check(12)
    with torch.no_grad():
        for parameter in model.stack.position.parameters():
            parameter.mul_(-2)  # as an optimizer does: same memory, and no other version
    assert torch.equal(check(12), before) == (position == ALiBi())
    check(5)
    check(N)


@pytest.mark.parametrize(("parallel", "is_fused"), [(False, True), (True, False), ("separate_norms", False)])
def test_first_block_without_a_norm(parallel: Any, is_fused: bool, calls: list[int]) -> None:
    model, tokens = gpt(first_norm=False, parallel=parallel), torch.randint(V, (3, 12))
    logits = decoder_logits(model, tokens)
    assert bool(calls) == is_fused
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "fused_layers", plain)
        torch.testing.assert_close(logits, decoder_logits(model, tokens), atol=3e-5, rtol=1e-4)


def test_row_does_not_depend_on_other_rows_or_threads() -> None:
    model, tokens, threads = gpt(d_model=128, d_ff=512), torch.randint(V, (5, 9)), torch.get_num_threads()

    @torch.inference_mode()
    def last(rows: Tensor) -> Tensor:
        cache, hidden = model.stack.new_cache(len(rows), capacity=N), torch.empty(0)
        for t in range(9):
            hidden = model.hidden(rows[:, t : t + 1], cache=cache)
            cache.advance(1)
        return hidden

    try:
        logits = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            logits.append(last(tokens))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    for row in range(5):
        assert torch.equal(last(tokens[row : row + 1]), logits[0][row : row + 1])


def test_full_row_does_not_affect_the_others() -> None:
    model, tokens = gpt(), torch.randint(V, (2, 12))
    with torch.inference_mode():
        _, cache = model.start(tokens[:, :4], torch.tensor([4, 2]), capacity=6)
        full = [model.step(tokens[:, t], cache) for t in range(4, 8)]
        separate = model(tokens[1:, [0, 1, 4, 5, 6, 7]])
    torch.testing.assert_close(full[-1][1], separate[0, -1], atol=1e-4, rtol=1e-4)
    assert all(bool(logits.isfinite().all()) for logits in full)


@pytest.mark.slow
def test_unsupported_models_use_separate_layers(calls: list[int]) -> None:
    decoder_logits(gpt(d_head=12), torch.randint(V, (3, 12)))
    decoder_logits(gpt(attention_softcap=5.0), torch.randint(V, (3, 12)))
    model = gpt()
    model.stack.blocks[1].feedforward.activation = torch.sin
    decoder_logits(model, torch.randint(V, (3, 12)))
    model = gpt()
    model.stack.blocks[1].feedforward = gpt(d_ff=80).stack.blocks[1].feedforward  # wider than in the spec
    decoder_logits(model, torch.randint(V, (3, 12)))
    model = gpt()
    model.stack.blocks[0].self_residual.before = nn.LayerNorm(1)
    with pytest.raises(RuntimeError, match="shape"):  # PyTorch's error, not wrong results
        decoder_logits(model, torch.randint(V, (3, 12)))
    model = gpt()
    model.stack.blocks[0].feedforward = nn.Sequential(nn.Linear(40, 40))
    decoder_logits(model, torch.randint(V, (3, 12)))
    assert calls == []


def test_activation_without_a_kernel_uses_separate_layers(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation function that was added in Python only can still generate."""
    monkeypatch.setitem(fused.ACTIVATION_NAMES, torch.sin, "sine")
    model = gpt()
    for block in model.stack.blocks:
        block.feedforward.activation = torch.sin
    decoder_logits(model, torch.randint(V, (3, 12)))
    assert calls == []


class Fast(PositionScheme):
    """A user-defined scheme that rotates three times as fast."""

    def rotation(self, positions: Tensor) -> Any:
        return Rotary().build(d_model=40, d_head=16, n_heads=4, max_len=N).rotation(3 * positions)


class Near(PositionScheme):
    """A user-defined scheme that adds a bias to the scores."""

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        distances = (queries[..., None] - keys[..., None, :]).abs().float()  # (B, T, S)
        return -distances[:, None].expand(-1, 4, -1, -1)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Fast(), Near()], ids=["rotation", "bias"])
def test_custom_position_scheme_is_used(scheme: PositionScheme) -> None:
    model, tokens = gpt(position=NoPosition()), torch.randint(V, (3, 12))
    without = decoder_logits(model, tokens)
    model.stack.position = scheme
    model = copy.deepcopy(model)  # a changed scheme requires a new model
    fused_logits = decoder_logits(model, tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "fused_layers", plain)
        torch.testing.assert_close(fused_logits, decoder_logits(model, tokens), atol=3e-5, rtol=1e-4)
    assert not torch.allclose(fused_logits, without, atol=1e-2)


def test_many_rows_match_few_rows(calls: list[int]) -> None:
    model, tokens = gpt(), torch.randint(V, (18, 12))
    decoder_logits(model, tokens)
    quantize(model, "int8")
    decoder_logits(model, tokens)
    assert calls == [18] * 14


@pytest.mark.slow
def test_fused_layers_are_not_used_with_gradients_training_or_listeners(calls: list[int]) -> None:
    model, length = gpt(), torch.ones(1, dtype=torch.long)

    def step(rows: int = 1) -> Tensor:
        _, cache = model.start(torch.zeros(rows, 1, dtype=torch.long), length.expand(rows), capacity=4)
        return model.step(torch.zeros(rows, dtype=torch.long), cache)

    assert step().requires_grad
    assert calls == []
    with torch.no_grad():
        with record(model) as tensors:
            step()
        assert "stack.blocks.1.self_attention.weights" in tensors
        outputs = list[Tensor]()
        hook = model.stack.blocks[1].feedforward.register_forward_hook(lambda part, inputs, y: outputs.append(y))
        step()
        hook.remove()
        assert len(outputs) == 2
        model.train()
        step()
        model.eval()
        with torch.autocast("cpu", torch.bfloat16):
            step()
        assert calls == []
        step(16)
    assert calls == [16, 16]  # the one-token prompt is also a step


@pytest.mark.slow
def test_changed_weights_and_parts_are_detected() -> None:
    model, tokens = gpt(), torch.randint(V, (3, 12))
    before = decoder_logits(model, tokens)
    other_model = gpt(n_kv_heads=None)
    assert not torch.equal(decoder_logits(other_model, tokens), before)
    model_copy = copy.deepcopy(model)
    assert torch.equal(decoder_logits(model_copy, tokens), before)

    def check() -> None:
        logits = decoder_logits(model, tokens)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stack, "fused_layers", plain)
            torch.testing.assert_close(logits, decoder_logits(model, tokens), atol=1e-4, rtol=1e-4)
        assert not torch.allclose(logits, before, atol=1e-3)

    with torch.no_grad():
        model.stack.blocks[0].feedforward.up.weight.mul_(-1)  # in place
    check()
    model.load_state_dict(other_model.state_dict(), assign=True)
    check()
    model.stack.blocks[1] = gpt().stack.blocks[0]
    check()
    model.stack.blocks[1].feedforward.activation = torch.nn.functional.relu
    check()
    del model.stack.blocks[0]
    model.stack.blocks.append(gpt().stack.blocks[1])
    check()
    quantize(model, "int8")
    check()


@pytest.mark.slow
def test_program_is_freed_with_its_model() -> None:
    model = gpt()
    decoder_logits(model, torch.randint(V, (3, 12)))
    with torch.inference_mode():
        assert fused_layers(model.stack, torch.zeros(1, 1, 40), model.stack.new_cache(1, capacity=3)) is not None
    stack_ref = weakref.ref(model.stack)
    del model
    gc.collect()
    assert stack_ref() is None

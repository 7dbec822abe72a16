"""The compiled activations match their formulas, forward and backward; bfloat16 differs by at most the last bit."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tercet.kernel import activations
from tercet.kernel.activations import activate, supports_activation
from tercet.kernel.build import library
from tercet.nn.feedforward import ACTIVATIONS

pytestmark = [pytest.mark.threads, pytest.mark.skipif(library() is None, reason="no C++ compiler")]
SMOOTH = ["gelu", "gelu_tanh", "silu"]
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@both_dtypes
@pytest.mark.parametrize("name", SMOOTH)
@given(count=st.integers(1, 70), size=st.sampled_from([0.01, 1.0, 10.0]), seed=st.integers(0, 2**32))
def test_activation_matches_the_formula_forward_and_backward(
    name: str, count: int, size: float, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    rtol = 2**-8 if dtype == torch.bfloat16 else 2e-6
    x = (torch.randn(count) * size).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    expected = ACTIVATIONS[name](exact)  # pyright: ignore[reportArgumentType]
    y = activate(x, name)
    torch.testing.assert_close(y.double(), expected, rtol=rtol, atol=2e-6)
    grad_output = torch.randn(count).to(dtype)
    (found,) = torch.autograd.grad(y, x, grad_output)
    (gradient,) = torch.autograd.grad(expected, exact, grad_output.double())
    torch.testing.assert_close(found.double(), gradient, rtol=rtol, atol=2e-6)
    assert (y.dtype, found.dtype) == (dtype, dtype)


@pytest.mark.parametrize("name", SMOOTH)
def test_activation_is_right_at_extremes_and_zero(name: str) -> None:
    x = torch.tensor([0.0, -math.inf, math.inf, math.nan, 1e30, -1e30, -0.0] * 5).bfloat16()
    y = activate(x, name)
    assert y[0] == 0
    assert y[[3]].isnan()
    assert y[2] == math.inf
    torch.testing.assert_close(y[4], x[4])
    assert float(y[5].abs()) < 1e-5
    assert torch.equal(y[:7].isnan(), y[7:14].isnan())


@pytest.mark.parametrize("name", SMOOTH)
def test_feed_forward_network_uses_it_where_supported(
    name: str, use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "MIN_WORK", 64)
    use_from(activate=128)
    activation = ACTIVATIONS[name]  # pyright: ignore[reportArgumentType]
    x = torch.randn(8, 16).bfloat16().requires_grad_()
    assert "activate" in type(activation(x).grad_fn).__name__
    assert supports_activation(x.float())
    for unsupported in (x.float()[:4], x.mT, x[:2], x.double()):
        assert not supports_activation(unsupported)
        torch.testing.assert_close(
            activation(unsupported).double(), activation(unsupported.double()), rtol=2**-7, atol=1e-3
        )


@pytest.mark.slow
def test_compiled_module_has_it_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "MIN_WORK", 64)
    graphs = list[torch.fx.GraphModule]()

    def record_graph(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    x = torch.randn(8, 16).bfloat16().requires_grad_()
    torch.compiler.reset()
    output = torch.compile(ACTIVATIONS["gelu"], fullgraph=True, backend=record_graph)(x)
    assert graphs[0].print_readable(print_output=False).count("tercet.activate.default") == 1
    assert torch.equal(output, ACTIVATIONS["gelu"](x))


def test_none_activation_copies_the_input() -> None:
    """In the fused step, "none" copies the numbers instead of leaving memory uninitialized."""
    x, grad_output = torch.randn(2, 70).bfloat16()
    assert torch.equal(torch.ops.tercet.activate(x, "none"), x)
    assert torch.equal(torch.ops.tercet.activate_backward(grad_output, x, "none"), grad_output)

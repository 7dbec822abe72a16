"""The feed-forward network matches its formulas, and each activation matches its definition."""

import math

import pytest
import torch

from tercet.nn import ACTIVATIONS, FeedForward

DEFINITIONS = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu_squared": lambda x: torch.where(x > 0, x * x, 0.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_matches_its_definition(name) -> None:
    x = torch.linspace(-6, 6, 241)
    torch.testing.assert_close(ACTIVATIONS[name](x), DEFINITIONS[name](x), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_plain_and_gated_networks_match_their_formulas(name, bias: bool) -> None:
    x = torch.randn(2, 5, 24)
    act = DEFINITIONS[name]
    plain = FeedForward(24, 31, activation=name, bias=bias)
    torch.testing.assert_close(plain(x), plain.down(act(plain.up(x))), atol=1e-6, rtol=1e-5)
    gated = FeedForward(24, 31, activation=name, gated=True, bias=bias)
    assert gated.gate is not None
    torch.testing.assert_close(gated(x), gated.down(act(gated.gate(x)) * gated.up(x)), atol=1e-6, rtol=1e-5)
    assert (plain.up.bias is not None) is (gated.gate.bias is not None) is bias

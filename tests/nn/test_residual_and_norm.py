"""Residual placements and norms match their formulas."""

import pytest
import torch
from torch import nn

from tercet.nn import NORMS, PLACEMENTS, Residual

FORMULAS = {
    "pre": lambda x, f, n: x + f(n(x)),
    "post": lambda x, f, n: n(x + f(x)),
    "sandwich": lambda x, f, n: x + n(f(n(x))),
    "branch": lambda x, f, n: x + n(f(x)),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_each_placement_matches_its_formula(placement) -> None:
    sublayer, x = nn.Linear(24, 24), 3 * torch.randn(2, 5, 24)
    residual = Residual(lambda: nn.LayerNorm(24), placement=placement)
    torch.testing.assert_close(residual(x, sublayer), FORMULAS[placement](x, sublayer, nn.LayerNorm(24)))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_norms_are_separate_parts(placement) -> None:
    residual = Residual(lambda: nn.LayerNorm(24), placement=placement)
    parameters = list(residual.parameters())
    assert len(parameters) == 2 * sum(PLACEMENTS[placement])
    assert len({p.data_ptr() for p in parameters}) == len(parameters)


def test_dropout_applies_only_to_the_branch() -> None:
    residual, x = Residual(lambda: nn.LayerNorm(24), dropout=0.5), torch.randn(2, 5, 24)
    branch = residual(x, torch.ones_like) - x
    assert set(branch.detach().round().unique().tolist()) == {0.0, 2.0}
    residual.eval()
    torch.testing.assert_close(residual(x, torch.ones_like), x + 1)


def test_layer_norm_matches_its_formula() -> None:
    norm, x = NORMS["layer"](24, eps=1e-3), 3 + 2 * torch.randn(2, 5, 24)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    scaled = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(norm(x), scaled * norm.weight + norm.bias)
    assert NORMS["layer"](24, bias=False).bias is None


def test_rms_norm_matches_its_formula() -> None:
    norm, x = NORMS["rms"](24, eps=1e-3), 3 + 2 * torch.randn(2, 5, 24)
    nn.init.normal_(norm.weight)
    scaled = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(norm(x), scaled * norm.weight)
    with pytest.raises(ValueError, match="an RMS norm has no bias; set norm_bias to false"):
        NORMS["rms"](24, bias=True)

"""`tercet doctor --check-part` finds the fault of each of these parts of a user."""

from collections.abc import Iterator

import pytest

from tercet.custom_code import ALLOWED
from tercet.diagnosis import check_part

PARTS = """
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tercet.nn import Attention, CustomActivation, CustomAttention, CustomFeedForward, CustomNorm, FeedForward
from tercet.nn.positions import rotate
from tercet.spec import spec


@spec
class OverflowingExponential(CustomActivation):
    def build(self):
        return lambda x: (1 + x.exp()).log()


@spec
class RootWithoutEps(CustomActivation):
    def build(self):
        return lambda x: x.abs().sqrt()


@spec
class NumbersOfFloat32(CustomActivation):
    def build(self):
        return lambda x: x * torch.sigmoid(x * torch.full((1,), 1.7))


class Norm(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.register_buffer("mean", torch.zeros(d_model))


def norm(forward):
    module = type("Module", (Norm,), {"forward": forward})

    class Spec(CustomNorm):
        def build(self, *, d_model, **settings):
            return module(d_model)

    return Spec


def running(self, x):
    self.mean = self.mean * 0.9 + x.detach().mean((0, 1)) * 0.1
    return F.layer_norm(x - self.mean, x.shape[-1:]) * self.weight


@spec
class MeanOverLength(norm(lambda self, x: (x - x.mean(-2, keepdim=True)) * self.weight)):
    pass


@spec
class MeanOverRows(norm(lambda self, x: (x - x.mean(0, keepdim=True)) * self.weight)):
    pass


@spec
class RunningMean(norm(running)):
    pass


@spec
class DivisionWithoutEps(norm(lambda self, x: x / x.norm(dim=-1, keepdim=True) * self.weight)):
    pass


def network(forward, create=lambda self: None):
    class Module(FeedForward):
        def __init__(self, **settings):
            super().__init__(**settings)
            create(self)

    Module.forward = forward

    class Spec(CustomFeedForward):
        def build(self, **settings):
            return Module(**settings)

    return Spec


def branches(self, x):
    return FeedForward.forward(self, x if x.mean().item() > -9 else -x)


def create_table(self):
    self.register_buffer("table", torch.linspace(0, 1, 24), persistent=False)


def create_unused(self):
    self.unused = nn.Parameter(torch.ones(3))


@spec
class NextToken(network(lambda self, x: FeedForward.forward(self, x + x.roll(-1, -2)))):
    pass


@spec
class DropoutInEvaluation(network(lambda self, x: FeedForward.forward(self, F.dropout(x, 0.2)))):
    pass


@spec
class BranchOnANumber(network(branches)):
    pass


@spec
class TableInABuffer(network(lambda self, x: FeedForward.forward(self, x + self.table.to(x.dtype)), create_table)):
    pass


@spec
class UnusedParameter(network(FeedForward.forward, create_unused)):
    pass


@spec
class DetachedParameter(network(lambda self, x: FeedForward.forward(self, x) * self.unused.detach()[0], create_unused)):
    pass


def attention(**methods):
    module = type("Module", (Attention,), methods)

    class Spec(CustomAttention):
        def build(self, **settings):
            return module(**settings)

    return Spec


def ignores_mask(self, q, k, v, *, mask=None, causal=False, **options):
    return Attention.attend(self, q, k, v, causal=q.shape[2] == k.shape[2], **options)


def ignores_bias(self, q, k, v, *, bias=None, **options):
    return Attention.attend(self, q, k, v, **options)


def always_causal(self, q, k, v, *, mask=None, causal=False, **options):
    return Attention.attend(self, q, k, v, mask=mask, causal=mask is None and q.shape[2] == k.shape[2], **options)


def ignores_source(self, x, source=None, **options):
    return Attention.forward(self, x, x, **options)


def ignores_cache(self, x, source=None, *, cache=None, mask=None, **options):
    if cache is None or source is not None:
        return Attention.forward(self, x, source, cache=cache, mask=mask, **options)
    cache.keys_values(lambda: self.keys_values(x))
    return Attention.forward(self, x, **options)


def unrotated_cache(self, x, source=None, *, cache=None, rotation=None, **options):
    if cache is None:
        return Attention.forward(self, x, source, rotation=rotation, **options)
    return Attention.forward(self, x, source, cache=cache, **options)


def ignores_beams(self, x, source=None, *, mask=None, bias=None, causal=False, rotation=None, cache=None):
    q = self.query(x).unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)
    q = q if rotation is None else rotate(q, rotation)
    project = lambda: self.keys_values(x if source is None else source, rotation)
    k, v = project() if cache is None else cache.keys_values(project)
    n = len(q) // len(k)
    heads = self.attend(q, k.repeat(n, 1, 1, 1), v.repeat(n, 1, 1, 1), mask=mask, bias=bias, causal=causal)
    return self.out(heads.transpose(1, 2).flatten(-2))


@spec
class MaskIgnored(attention(attend=ignores_mask)):
    pass


@spec
class BiasIgnored(attention(attend=ignores_bias)):
    pass


@spec
class AlwaysCausal(attention(attend=always_causal)):
    pass


@spec
class SourceIgnored(attention(forward=ignores_source)):
    pass


@spec
class CacheIgnored(attention(forward=ignores_cache)):
    pass


@spec
class UnrotatedCache(attention(forward=unrotated_cache)):
    pass


@spec
class BeamsInAnotherOrder(attention(forward=ignores_beams)):
    pass
"""
FAULTS = {
    "OverflowingExponential": "results are finite for inputs of 0 and 100",
    "RootWithoutEps": "results are finite for inputs of 0 and 100",
    "NumbersOfFloat32": "bfloat16 and float64 work",
    "MeanOverLength": "later tokens change no earlier logits",
    "MeanOverRows": "rows are independent",
    "RunningMean": "two passes are equal",
    "DivisionWithoutEps": "results are finite for inputs of 0 and 100",
    "NextToken": "later tokens change no earlier logits",
    "DropoutInEvaluation": "two passes are equal",
    "BranchOnANumber": "torch.compile needs one graph",
    "TableInABuffer": "a saved model opens with equal logits",
    "UnusedParameter": "gradients are finite and not zero",
    "DetachedParameter": "gradients are finite and not zero",
    "MaskIgnored": "padding changes no logits",
    "BiasIgnored": "the order of tokens matters",
    "AlwaysCausal": "an encoder attends to later tokens",
    "SourceIgnored": "cross-attention reads the source without padding",
    "CacheIgnored": "cached decoding equals the full pass",
    "UnrotatedCache": "cached decoding equals the full pass",
    "BeamsInAnotherOrder": "beams share the keys of a source",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the parts as a module, and allow it."""
    site = tmp_path_factory.mktemp("site")
    (site / "faulty_parts.py").write_text(PARTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv(ALLOWED, "faulty_parts")
        yield


@pytest.mark.parametrize("name", FAULTS)
def test_check_part_finds_the_fault(name: str) -> None:
    checks = check_part(f"faulty_parts:{name}").checks
    failed = {check.name: check.problem for check in checks if not check.passed}
    assert failed.get(FAULTS[name]), failed
    assert len(failed) < max(2, len(checks) / 2), failed  # not all checks fail

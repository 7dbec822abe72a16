"""Kernels work with fake tensors, tracers, `torch.func`, forward-mode and second derivatives."""

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from sampled_cases import sampled
from tercet.kernel import activations, flash_attention, masked_softmax, training_linear
from tercet.kernel.build import library, multiplies_bfloat16
from tercet.nn import Linear
from tercet.nn.attention import attend, attend_by_hand
from tercet.nn.feedforward import ACTIVATIONS
from tercet.objectives.likelihood import negative_log_likelihood

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no C++ compiler"),
    # PyTorch's forward mode uses TorchScript, whose deprecation is a FutureWarning since 2.14.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
]
needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU does not multiply bfloat16")


@pytest.fixture(autouse=True)
def _small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (activations, training_linear, flash_attention, masked_softmax):
        monkeypatch.setattr(module, "MIN_WORK", 1)


def frozen_linear() -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    layer = Linear(512, 1024).requires_grad_(False)
    return layer, lambda x: F.linear(x, layer.weight, layer.bias), torch.randn(4, 512)


def decoding() -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    k, v = torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    return lambda q: attend(q, k, v), lambda q: attend_by_hand(q, k, v), torch.randn(2, 4, 1, 16)


def short() -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    k, v = torch.randn(2, 2, 12, 16), torch.randn(2, 2, 12, 16)
    return (
        lambda q: attend(q, k, v, causal=True),
        lambda q: attend_by_hand(q, k, v, causal=True),
        torch.randn(2, 4, 12, 16),
    )


def curved() -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    return ACTIVATIONS["gelu"], F.gelu, torch.randn(4, 64).bfloat16()


KINDS = {make.__name__: make for make in (frozen_linear, decoding, short, curved)}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    return KINDS[request.param]()


def assert_same(found: Tensor, expected: Tensor) -> None:
    atol = 0.02 if expected.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-2 if atol > 1e-3 else 1e-5)


def test_fake_tensors_have_shapes_and_no_memory(kind: Any) -> None:
    ours, plain, x = kind
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        output = ours(mode.from_tensor(x))
    assert isinstance(output, FakeTensor)
    assert output.shape == plain(x).shape


def test_model_of_fake_tensors_returns_fake_tensors() -> None:
    with FakeTensorMode(), torch.no_grad():
        assert isinstance(Linear(512, 1024)(torch.randn(4, 512)), FakeTensor)


@pytest.mark.parametrize("tracing", sampled(["real", "fake", "symbolic"], keep=(0, 1)))
def test_make_fx_traces_the_computation(kind: Any, tracing: str) -> None:
    ours, plain, x = kind
    graph = make_fx(ours, tracing_mode=tracing, _allow_non_fake_inputs=True)(x)
    other_x = torch.randn(x.shape).to(x.dtype)
    assert_same(graph(other_x), plain(other_x))


def test_traced_function_works_for_other_inputs(kind: Any) -> None:
    ours, plain, x = kind
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns about every read of a shape
        traced = torch.jit.trace(ours, x, check_trace=False)
    other_x = torch.randn(x.shape).to(x.dtype)
    assert_same(traced(other_x), plain(other_x))


def test_vmap_matches_pytorch(kind: Any) -> None:
    ours, plain, x = kind
    xs = torch.stack([x, 2 * x, -x])
    assert_same(torch.vmap(ours)(xs), torch.stack([plain(x_) for x_ in xs]))
    assert_same(torch.vmap(torch.vmap(ours))(xs[None])[0], torch.stack([plain(x_) for x_ in xs]))


def test_jvp_and_forward_mode_match_pytorch(kind: Any) -> None:
    ours, plain, x = kind
    tangent = torch.randn_like(x)
    expected = torch.func.jvp(plain, (x,), (tangent,))
    for found, reference in zip(torch.func.jvp(ours, (x,), (tangent,)), expected, strict=True):
        assert_same(found, reference)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(ours(forward_ad.make_dual(x, tangent)))
        assert_same(found.primal, expected[0])
        assert found.tangent is not None
        assert_same(found.tangent, expected[1])


def test_grad_and_jacobians_match_pytorch(kind: Any) -> None:
    ours, plain, x = kind
    found, expected = (torch.func.grad(lambda x, f=f: f(x).float().square().sum())(x) for f in (ours, plain))
    assert_same(found, expected)
    found, expected = (torch.func.jacrev(lambda x, f=f: f(x).float().sum(-1))(x) for f in (ours, plain))
    assert_same(found, expected)


def test_escaped_wrapper_is_not_read() -> None:
    layer, wrappers = Linear(512, 1024).requires_grad_(False), list[Tensor]()
    torch.vmap(lambda x: wrappers.append(x) or x)(torch.randn(3, 4, 512))
    with pytest.raises(Exception, match=r".+"):  # PyTorch's own error, whatever its message
        layer(wrappers[0]).sum().item()


def test_dispatch_mode_sees_pytorchs_operations(kind: Any) -> None:
    ours, plain, x = kind
    names: list[str] = []

    class Logging(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Logging():
        assert_same(ours(x), plain(x))
    assert names
    assert not any("tercet" in name for name in names)


def test_copy_on_the_meta_device_has_shapes() -> None:
    layer = copy.deepcopy(Linear(512, 1024)).to("meta")
    assert layer(torch.zeros(4, 512, device="meta")).shape == (4, 1024)


@needs_bfloat16
@pytest.mark.parametrize("operator", ["linear", "attention", "activation", "softmax"])
def test_second_derivative_is_rejected_by_name(operator: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, 64, requires_grad=True)
    layer = Linear(64, 64)

    def ours() -> Tensor:
        if operator == "linear":
            return layer(x)
        if operator == "activation":
            return ACTIVATIONS["gelu"](x.bfloat16())
        q = x.view(2, 16, 4, 16).transpose(1, 2)
        if operator == "softmax":
            return masked_softmax.masked_softmax(q @ q.mT, mask=None, causal=True)
        return attend(q, q, q)

    with torch.autocast("cpu", torch.bfloat16, enabled=operator != "softmax"):
        y = ours()
    assert "tercet" in type(y.grad_fn).__name__ or operator != "softmax"
    # Next to a term that has a second derivative, so that a missing part would not be noticed.
    loss = y.float().square().sum() + x.pow(3).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"tercet::\w+ has no second derivative .*TERCET_KERNEL=off"):
        torch.autograd.grad(gradient.sum(), x)


@needs_bfloat16
def test_first_derivative_with_create_graph_is_the_same() -> None:
    layer, x = Linear(64, 64), torch.randn(40, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x).float().square().sum()
    gradients = [
        torch.autograd.grad(y, (x, *layer.parameters()), retain_graph=True, create_graph=c) for c in (False, True)
    ]
    assert all(torch.equal(gradient, reference) for gradient, reference in zip(*gradients, strict=True))
    assert all(gradient.requires_grad for gradient in gradients[1])


def test_second_derivative_of_the_likelihood_is_rejected_by_name() -> None:
    hidden = torch.randn(5, 8, requires_grad=True)
    unembedding: Any = SimpleNamespace(weight=nn.Parameter(torch.randn(9, 8)), bias=None, vocab_size=9, softcap=None)
    loss = negative_log_likelihood(hidden, unembedding, torch.tensor([0, 1, 2, 3, -100])).total
    (gradient,) = torch.autograd.grad(loss + hidden.pow(3).sum(), hidden, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(gradient.sum(), hidden)


def test_operator_without_a_gradient_raises() -> None:
    x, weight = torch.randn(4, 64, requires_grad=True), torch.randn(32, 64)
    with pytest.raises(NotImplementedError, match="tercet::inference_linear has no gradient"):
        torch.ops.tercet.inference_linear(x, weight, None, None)
    with torch.no_grad():
        torch.ops.tercet.inference_linear(x, weight, None, None)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda x: torch.ops.tercet.inference_linear(x, weight, None, None), (x.detach(),), (x.detach(),))


def test_raw_operator_under_vmap_runs_one_by_one() -> None:
    x, weight = torch.randn(3, 4, 64), torch.randn(32, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the slow fallback
        output = torch.vmap(lambda x: torch.ops.tercet.inference_linear(x, weight, None, None))(x)
    assert_same(output, x @ weight.T)

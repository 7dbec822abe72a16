"""No invalid tensor reaches C++: PyTorch handles or rejects it, or the kernel rejects its shapes."""

from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.kernel import adam_, api, gradient_norm
from tercet.kernel import masked_softmax as softmax_module
from tercet.kernel.activations import activate
from tercet.kernel.beam import top_tokens
from tercet.kernel.build import library, multiplies_bfloat16
from tercet.kernel.cross_entropy import cross_entropy_, supports_logits
from tercet.kernel.decode_attention import decode_attention
from tercet.kernel.flash_attention import flash_attention
from tercet.kernel.inference_linear import inference_linear
from tercet.kernel.masked_softmax import masked_softmax
from tercet.kernel.training_linear import linear_backward, linear_forward, training_linear
from tercet.nn import Linear
from tercet.nn.attention import attend, attend_by_hand

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU does not multiply bfloat16")


@pytest.fixture(autouse=True)
def _without_annotations() -> Iterator[None]:
    """Disable the shape annotations, which only tests check, to test the kernels' own checks."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def heads(batch: int, n: int, tokens: int, width: int = 64) -> Tensor:
    return torch.randn(batch, n, tokens, width)


def trues(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def randn(*shape: int) -> Tensor:
    """Return numbers followed by more memory, so that reading too far does not crash."""
    return torch.randn(2 * torch.Size(shape).numel())[: torch.Size(shape).numel()].view(shape)


TAKES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "decode_attention": (
        decode_attention,
        {"q": heads(2, 4, 1), "k": heads(2, 2, 9), "v": heads(2, 2, 9), "mask": trues(2, 1, 1, 9)},
    ),
    "inference_linear": (
        inference_linear,
        {"x": randn(4, 64), "weight": randn(32, 64), "scale": randn(32), "bias": randn(32)},
    ),
    "masked_softmax": (masked_softmax, {"scores": heads(2, 4, 8, 8), "mask": trues(2, 1, 8, 8), "causal": False}),
    "top_tokens": (
        top_tokens,
        {
            "scores": randn(6, 20), "totals": randn(2, 3), "count": 4, "forbidden": torch.tensor([5]), "eos_id": 1,
            "is_early": trues(2),
        },
    ),
    "cross_entropy": (
        cross_entropy_,
        {
            "scores": randn(6, 20), "targets": torch.tensor([0, 19, -100, 3, 4, 5]), "smoothing": 0.1, "softcap": None,
            "needs_grad": True,
        },
    ),
    "activate": (activate, {"x": torch.randn(6, 20).bfloat16(), "name": "gelu"}),
    "linear": (
        linear_forward,
        {"x": torch.randn(20, 32), "weight": randn(48, 32), "bias": randn(48)},
    ),
    "linear_backward": (
        linear_backward,
        {
            "grad_output": torch.randn(20, 48), "x": torch.randn(20, 32),
            "weight": randn(48, 32), "needs_grad": (True, True, True),
        },
    ),
    "flash_attention": (
        flash_attention,
        {
            "q": heads(2, 4, 9), "k": heads(2, 2, 9), "v": heads(2, 2, 9),
            "mask": trues(2, 1, 9, 9), "causal": False,
        },
    ),
    "gradient_norm": (gradient_norm, {"tensors": [randn(9), randn(3, 4)]}),
    "adam": (
        adam_,
        {
            **{name: [randn(9), randn(3, 4)] for name in ("parameters", "gradients", "means", "squares")},
            "steps": [torch.zeros(()), torch.zeros(())], "settings": [(0.1, 0.9, 0.99, 1e-8, 0.1)] * 2,
        },
    ),
}  # fmt: skip


def copy_tensors(arguments: dict[str, Any]) -> dict[str, Any]:
    def copy(x: Any) -> Any:
        return x.clone() if isinstance(x, Tensor) else [copy(y) for y in x] if isinstance(x, list) else x

    return {name: copy(x) for name, x in arguments.items()}


def call_kernel(kernel: str, **invalid: Any) -> Any:
    function, arguments = TAKES[kernel]
    arguments = copy_tensors(arguments) | invalid
    return function(*[arguments.pop(name) for name in list(arguments) if name in ("tensors", "scores")], **arguments)


def kernel_cases(*cases: tuple[str, dict[str, Any]]) -> list[Any]:
    return [pytest.param(kernel, invalid, id=f"{kernel}-{i}") for i, (kernel, invalid) in enumerate(cases)]


@pytest.mark.parametrize(("kernel", "invalid"), kernel_cases(*[(name, {}) for name in TAKES]))
def test_valid_arguments_are_accepted(kernel: str, invalid: dict[str, Any]) -> None:
    call_kernel(kernel, **invalid)


INVALID = kernel_cases(
    ("decode_attention", {"k": heads(2, 3, 9), "v": heads(2, 3, 9)}),  # 4 heads are not a multiple of 3
    ("decode_attention", {"k": heads(2, 0, 9), "v": heads(2, 0, 9)}),
    ("decode_attention", {"v": heads(2, 2, 5)}),  # fewer values than keys
    ("decode_attention", {"v": heads(2, 2, 9, 32)}),
    ("decode_attention", {"k": heads(1, 2, 9), "v": heads(1, 2, 9)}),
    ("decode_attention", {"mask": trues(2, 1, 1, 4)}),
    ("decode_attention", {"mask": trues(2, 4, 1, 9)}),
    ("decode_attention", {"mask": torch.ones(2, 1, 1, 9)}),
    ("decode_attention", {"q": heads(2, 4, 1).double()}),
    ("decode_attention", {"q": heads(2, 4, 1, 12), "k": heads(2, 2, 9, 12), "v": heads(2, 2, 9, 12)}),
    ("inference_linear", {"x": randn(4, 32)}),
    ("inference_linear", {"x": randn(4, 128)}),
    ("inference_linear", {"x": randn(4, 64).double()}),
    ("inference_linear", {"bias": randn(31)}),
    ("inference_linear", {"bias": randn(32).bfloat16()}),
    ("inference_linear", {"scale": randn(1)}),
    ("inference_linear", {"weight": randn(64, 32).T}),
    ("inference_linear", {"weight": randn(32, 64).half()}),
    ("inference_linear", {"x": randn(4, 0), "weight": randn(32, 0)}),
    ("inference_linear", {"x": torch.tensor(1.0)}),
    ("top_tokens", {"totals": randn(2, 2)}),
    ("top_tokens", {"totals": randn(6)}),
    ("top_tokens", {"totals": randn(2, 3).double()}),
    ("top_tokens", {"is_early": trues(1)}),
    ("top_tokens", {"forbidden": torch.tensor([5], dtype=torch.int32)}),
    ("top_tokens", {"scores": randn(6, 40)[:, ::2]}),
    ("top_tokens", {"count": 0}),
    ("cross_entropy", {"targets": torch.zeros(5, dtype=torch.long)}),
    ("cross_entropy", {"targets": torch.zeros(6, dtype=torch.int32)}),
    ("cross_entropy", {"targets": torch.zeros(6, 1, dtype=torch.long)}),
    ("cross_entropy", {"scores": randn(6, 20).half()}),
    ("cross_entropy", {"scores": randn(20, 6).T}),
    ("cross_entropy", {"scores": randn(1, 20).expand(6, 20)}),  # the gradients of the rows would overlap
    ("cross_entropy", {"smoothing": 1.5}),
    ("cross_entropy", {"softcap": -1.0}),
    ("activate", {"x": torch.randn(6, 20).half()}),
    ("activate", {"x": torch.randn(6, 20).bfloat16().T}),
    ("activate", {"name": "sine"}),
    ("linear", {"x": torch.randn(20, 16)}),
    ("linear", {"x": torch.randn(20, 32).half()}),
    ("linear", {"x": torch.randn(20, 24), "weight": randn(48, 24)}),
    ("linear", {"weight": randn(47, 32), "bias": randn(47)}),
    ("linear", {"bias": randn(16)}),
    ("linear_backward", {"grad_output": torch.randn(20, 32)}),
    ("linear_backward", {"grad_output": torch.randn(19, 48)}),
    ("linear_backward", {"grad_output": torch.randn(20, 48).bfloat16()}),
    ("linear_backward", {"needs_grad": (True,)}),
    ("linear_backward", {"weight": randn(47, 32)}),  # the gradient of its bias would have another size
    ("flash_attention", {"k": heads(2, 3, 9), "v": heads(2, 3, 9)}),
    ("flash_attention", {"v": heads(2, 2, 5)}),
    ("flash_attention", {"q": heads(2, 4, 9).half(), "k": heads(2, 2, 9).half(), "v": heads(2, 2, 9).half()}),
    ("flash_attention", {"mask": trues(2, 1, 9, 4)}),
    ("flash_attention", {"mask": trues(2, 4, 9, 9)}),
    ("flash_attention", {"mask": None, "causal": True, "k": heads(2, 2, 4), "v": heads(2, 2, 4)}),
    ("flash_attention", {"causal": True}),
    ("flash_attention", {"q": heads(2, 4, 9, 24), "k": heads(2, 2, 9, 24), "v": heads(2, 2, 9, 24)}),
    ("gradient_norm", {"tensors": [randn(9).double()]}),
    ("gradient_norm", {"tensors": [randn(3, 4).T]}),
    ("gradient_norm", {"tensors": [torch.zeros(3, device="meta")]}),
    ("adam", {"gradients": [randn(9), randn(3, 3)]}),
    ("adam", {"gradients": [randn(9)]}),
    ("adam", {"means": [randn(9), randn(3, 4).bfloat16()]}),
    ("adam", {"squares": [randn(9), randn(4, 3).T]}),
    ("adam", {"steps": [torch.zeros(()), torch.zeros((), dtype=torch.long)]}),
    ("adam", {"steps": [torch.zeros(()), torch.zeros(2)]}),
    ("adam", {"settings": [(0.1, 0.9, 0.99, 1e-8, 0.1)]}),
)  # fmt: skip


@pytest.mark.parametrize(("kernel", "invalid"), INVALID)
def test_kernel_rejects_invalid_arguments_and_reports_them(kernel: str, invalid: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=kernel if "name" not in invalid else "sine"):
        call_kernel(kernel, **invalid)


def test_message_names_expected_and_actual_arguments() -> None:
    with pytest.raises(ValueError, match=r"x float32\[\* K\].*x float32\[4, 128\] on cpu.*bias None"):
        inference_linear(randn(4, 128), randn(32, 64), None, None)


@pytest.mark.parametrize("target", [20, -1, -101, 2**62, -(2**62)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_invalid_target_is_rejected_before_any_write(target: int, dtype: torch.dtype) -> None:
    scores, targets = torch.randn(6, 20).to(dtype), torch.tensor([0, 19, -100, target, 4, 5])
    before = scores.clone()
    with pytest.raises(IndexError, match=f"target {target} of row 3 is not in a vocabulary of 20"):
        cross_entropy_(scores, targets, smoothing=0.0, softcap=None, needs_grad=True)
    assert torch.equal(scores, before)


def test_adam_rejects_tensors_that_share_memory() -> None:
    memory = torch.zeros(12)
    for name, overlapping in (("parameters", [memory[:9], memory[6:9]]), ("means", [memory[:9], memory[8:11]])):
        shapes = [torch.zeros(x.shape) for x in overlapping]
        arguments = {key: [x.clone() for x in shapes] for key in ("parameters", "gradients", "means", "squares")}
        arguments[name] = overlapping
        with pytest.raises(ValueError, match="overlap"):
            call_kernel("adam", **arguments)
    gradient = torch.ones(9)  # gradients are only read, so they may share memory
    shapes = [torch.zeros(9), torch.zeros(9)]
    arguments = {key: [x.clone() for x in shapes] for key in ("parameters", "means", "squares")}
    call_kernel("adam", **arguments, gradients=[gradient, gradient])
    with pytest.raises(ValueError, match="overlap"):
        call_kernel("adam", **arguments, gradients=arguments["parameters"])


def plain(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return PyTorch's result or its exception."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def layer(width: int, out: int, **changes: Any) -> Linear:
    linear = Linear(width, out)
    with torch.no_grad():
        for name, change in changes.items():
            parameter = getattr(linear, name)
            parameter.data = change(parameter.data)
    return linear


@pytest.mark.parametrize(
    ("linear", "x"),
    [
        (layer(512, 1024), randn(4, 256)),
        (layer(512, 1024), randn(4, 1024)),
        (layer(512, 1024), randn(40, 256)),
        (layer(512, 1024, bias=Tensor.bfloat16), randn(4, 512)),
        (layer(512, 1024, bias=lambda bias: bias[:1000].clone()), randn(4, 512)),
        (layer(512, 1024, bias=lambda bias: bias[:1].clone()), randn(4, 512)),
        (layer(512, 1024, weight=lambda weight: weight.flatten()), randn(4, 512)),
        (layer(512, 1024), torch.tensor(1.0)),
        (layer(512, 1024, weight=lambda weight: weight[:, :0]), torch.zeros(4, 0)),
        (layer(512, 1024), torch.zeros(0, 512)),
        (layer(512, 1024), torch.imag(torch.randn(4, 512, dtype=torch.cfloat).conj())),
        (layer(512, 1024), torch._efficientzerotensor(4, 512)),
        (layer(512, 1024), torch.zeros(4, 512, device="meta")),
        (layer(512, 1024), torch.zeros(4, 512).to_sparse()),
    ],
)
@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=needs_bfloat16)])
def test_linear_layer_returns_or_raises_as_pytorch_does(linear: Linear, x: Tensor, autocast: bool) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected = plain(F.linear, x, linear.weight, linear.bias)
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)):
                linear(x)
        else:
            found = linear(x)
            assert (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device)
            if expected.device.type == "cpu":
                torch.testing.assert_close(found, expected, atol=1e-2 if autocast else 1e-5, rtol=1e-2)


@needs_bfloat16
@pytest.mark.parametrize("learns", [False, True])
def test_widths_are_compared_in_mixed_precision(learns: bool) -> None:
    linear, x = Linear(256, 256), torch.randn(4, 512, 128, requires_grad=learns)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x)


def test_only_a_bias_is_trained() -> None:
    linear, x = layer(512, 1024), torch.randn(4, 512)
    linear.weight.requires_grad_(False)
    linear(x).sum().backward()
    assert linear.bias.grad is not None
    assert torch.equal(linear.bias.grad, torch.full((1024,), 4.0))


ATTENTIONS = [
    ((1, 4, 1, 64), (1, 3, 9, 64), (1, 3, 9, 64), None),
    ((1, 4, 1, 64), (1, 8, 9, 64), (1, 8, 9, 64), None),
    ((1, 4, 1, 64), (1, 4, 64, 64), (1, 4, 16, 64), None),
    ((1, 4, 1, 64), (1, 4, 64, 64), (1, 4, 64, 64), (1, 1, 1, 16)),
    ((1, 4, 1, 64), (1, 4, 64, 64), (1, 4, 64, 64), (1, 1, 3, 64)),
    ((2, 4, 1, 64), (1, 4, 9, 64), (1, 4, 9, 64), None),
    ((3, 4, 1, 64), (2, 4, 9, 64), (2, 4, 9, 64), None),
    ((1, 4, 1, 64), (1, 4, 9, 32), (1, 4, 9, 32), None),
    ((1, 4, 1, 64), (1, 4, 9, 64), (1, 4, 9, 32), None),
    ((1, 4, 1, 64), (1, 4, 9, 64), (1, 2, 9, 64), None),
    ((2, 4, 3, 64), (2, 4, 9, 64), (2, 4, 9, 64), (2, 4, 3, 9)),  # valid: one mask per head
    ((2, 4, 3, 64), (2, 4, 9, 64), (2, 4, 9, 64), (3, 9)),
    ((4, 8, 256, 64), (4, 8, 256, 64), (4, 8, 256, 64), (1, 1, 1, 16)),
    ((4, 8, 256, 64), (4, 8, 256, 64), (4, 8, 256, 64), (4, 8, 256, 256)),
    ((4, 8, 256, 64), (4, 3, 256, 64), (4, 3, 256, 64), None),
    ((4, 8, 256, 64), (4, 8, 256, 64), (4, 8, 128, 64), None),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("q", "k", "v", "mask"), ATTENTIONS)
def test_attention_returns_or_raises_as_the_formula_does(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], mask: tuple[int, ...] | None, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(softmax_module, "MIN_WORK", 1)
    tensors = [torch.randn(shape).to(dtype) for shape in (q, k, v)]
    visible = None if mask is None else torch.rand(mask) < 0.7

    def by_hand() -> Tensor:
        return attend_by_hand(*(x.double() for x in tensors), mask=visible)

    expected = plain(by_hand)
    found = plain(lambda: attend(*tensors, mask=visible))
    if isinstance(expected, Exception):
        assert isinstance(found, RuntimeError | ValueError)
    elif not isinstance(found, Exception):  # PyTorch's kernel may reject what the formula broadcasts
        torch.testing.assert_close(found.double(), expected, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0.02)


def test_softmax_with_a_mismatched_mask_uses_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_module, "MIN_WORK", 1)
    scores = torch.randn(2, 4, 8, 8)
    with pytest.raises(RuntimeError, match="must match the size"):
        masked_softmax(scores, mask=trues(1, 1, 1, 3), causal=False)
    visible = torch.rand(2, 4, 8, 8) < 0.8
    found = masked_softmax(scores, mask=visible, causal=False)
    expected = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~visible, 0.0)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="T <= S"):
        torch.ops.tercet.masked_softmax(torch.randn(1, 1, 9, 4), None, True)
    with pytest.raises(ValueError, match="T <= S"):
        torch.ops.tercet.masked_softmax_backward(torch.randn(1, 1, 9, 4), torch.randn(1, 1, 9, 4), True)


def test_scores_with_overlapping_rows_use_pytorch() -> None:
    assert supports_logits(torch.zeros(64, 1024))
    assert not supports_logits(torch.zeros(1, 1024).expand(64, 1024))


@needs_bfloat16
def test_empty_inputs_have_zero_gradients() -> None:
    empty, weight = torch.zeros(0, 32).bfloat16(), torch.randn(48, 32, requires_grad=True)
    bias = torch.zeros(48, requires_grad=True)
    torch.full((1 << 20,), 7.0)  # leaves nonzero numbers in the memory that is allocated next
    training_linear(empty, weight, bias).sum().backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert not weight.grad.any()
    assert not bias.grad.any()


def test_attention_with_other_ranks_does_not_use_kernels() -> None:
    q = torch.randn(4, 9, 64)
    assert api.attention(q, q, q) is None


def test_tensor_subclass_uses_pytorchs_operations() -> None:
    functions: list[Any] = []

    class LoggingTensor(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            functions.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    linear = layer(512, 1024)
    with torch.no_grad():
        output = linear(torch.randn(4, 512).as_subclass(LoggingTensor))
    assert type(output) is LoggingTensor
    assert F.linear in functions or torch._C._nn.linear in functions
    assert isinstance(linear(nn.Parameter(torch.randn(4, 512))), Tensor)

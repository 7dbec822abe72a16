"""Every registered operator passes `opcheck`, and returns PyTorch's result or raises for any argument."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sampled_cases import sampled
from tercet.kernel import api
from tercet.kernel.build import library, multiplies_bfloat16

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
EXAMPLES = int(os.environ.get("TERCET_HOSTILE") or 1) * 50  # of each property; more in nightly runs
ops = torch.ops.tercet
bf16 = torch.bfloat16


def heads(n: int, tokens: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, n, tokens, 16).to(dtype)


def a_mask(*shape: int) -> Tensor:
    return torch.rand(shape) < 0.7


PRODUCTS = bf16 if multiplies_bfloat16() else torch.float32  # dtype of the products
OPERATORS: dict[str, tuple[Any, ...]] = {
    "inference_linear": (torch.randn(2, 5, 24), torch.randn(7, 24), torch.rand(7), torch.randn(7)),
    "decode_attention": (heads(3, 4).contiguous(), heads(2, 9), heads(2, 9), a_mask(2, 1, 3, 9)),
    "top_tokens": (torch.randn(6, 20), torch.randn(2, 3), 4, torch.tensor([5]), 1, torch.tensor([True, False])),
    "cross_entropy_": (torch.randn(4, 20), torch.tensor([0, 19, -100, 3]), 0.1, 15.0, True),
    "masked_softmax": (heads(4, 16), a_mask(2, 1, 16, 16), False),
    "masked_softmax_backward": (heads(4, 16), heads(4, 16), True),
    "activate": (torch.randn(3, 5, 7).to(bf16), "gelu"),
    "activate_backward": (torch.randn(3, 5, 7).to(bf16), torch.randn(3, 5, 7).to(bf16), "silu"),
    "linear": (torch.randn(40, 32).to(PRODUCTS), torch.randn(48, 32), torch.randn(48)),
    "linear_backward": (
        torch.randn(40, 48).to(PRODUCTS), torch.randn(40, 32).to(PRODUCTS), torch.randn(48, 32), (True, False, True),
    ),
    "flash_attention": (heads(4, 9, PRODUCTS), heads(2, 9, PRODUCTS), heads(2, 9, PRODUCTS), a_mask(2, 1, 9, 9), False),
    "flash_attention_backward": (
        heads(4, 9, PRODUCTS), heads(4, 9, PRODUCTS), heads(2, 9, PRODUCTS), heads(2, 9, PRODUCTS),
        heads(4, 9, PRODUCTS), torch.randn(2, 4, 9), None, True,
    ),
}  # fmt: skip


def test_all_operators_are_tested() -> None:
    registered_operators = {
        name.removeprefix("tercet::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("tercet::")
    }
    assert registered_operators == OPERATORS.keys()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_pass_opcheck(name: str) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(ops, name).default, OPERATORS[name], test_utils=checks)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(OPERATORS, keep=(list(OPERATORS).index("linear"),)))
def test_operators_are_compiled_for_variable_sizes(name: str) -> None:
    torch.library.opcheck(getattr(ops, name).default, OPERATORS[name], test_utils="test_aot_dispatch_dynamic")


SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 17, 32, 64])
DTYPES = st.sampled_from([torch.float32, torch.float32, torch.float32, bf16, torch.float64, torch.int8, torch.bool])
FORMS = st.sampled_from(
    ["plain", "plain", "plain", "transposed", "gaps", "expanded", "meta", "class", "negative", "learns"]
)


class CustomTensor(Tensor):
    """A third-party subclass of Tensor."""


@st.composite
def tensors(draw: Any, shape: tuple[int, ...], *, dtype: torch.dtype | None = None) -> Tensor:
    """Draw a tensor of about this shape, with any layout, kind and device."""
    if draw(st.integers(0, 4)) == 0:  # change an axis, or add or remove one
        axis = draw(st.integers(0, max(0, len(shape) - 1)))
        axes = draw(st.sampled_from([(), (draw(SIZES),), (1, draw(SIZES))]))
        shape = (*shape[:axis], *axes, *shape[axis + 1 :])
    dtype = draw(DTYPES) if dtype is None or draw(st.integers(0, 9)) == 0 else dtype
    x = torch.randn(shape).to(dtype)
    form = draw(FORMS)
    if form == "transposed" and x.ndim > 1:
        return x.mT.contiguous().mT
    if form == "gaps" and x.ndim:
        return x.repeat_interleave(2, -1)[..., ::2]
    if form == "expanded" and x.ndim and x.shape[0]:
        return x[:1].expand(x.shape)
    if form == "meta":
        return x.to("meta")
    if form == "class":
        return x.as_subclass(CustomTensor)
    if form == "negative" and dtype == torch.float32:
        return torch._neg_view(x)
    return x.requires_grad_() if form == "learns" and x.is_floating_point() else x


def outcome(work: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return work()
        except (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError) as error:
            return error


def agree(found: Any, expected: Any, *, atol: float) -> None:
    """Check that the result is PyTorch's, or an exception; if PyTorch raises, an exception is required."""
    if isinstance(found, Exception) or found.device.type != "cpu":  # tensors without memory are not compared
        return
    if isinstance(expected, Exception) and not found.numel():  # PyTorch's kernel ignores their mask
        return
    assert not isinstance(expected, Exception), f"returned {found.shape}, but PyTorch raised: {expected}"
    assert found.shape == expected.shape
    torch.testing.assert_close(
        found.detach().as_subclass(Tensor).double(), expected.detach().as_subclass(Tensor).double(),
        atol=atol, rtol=0.02, equal_nan=True,
    )  # fmt: skip


fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@fuzz
@given(data=st.data(), rows=SIZES, k=SIZES, n=SIZES, autocast=st.booleans(), raw=st.booleans())
def test_any_linear_layer_matches_pytorch_or_raises(
    data: Any, rows: int, k: int, n: int, autocast: bool, raw: bool
) -> None:
    f32 = torch.float32
    x, weight = data.draw(tensors((2, rows, k), dtype=f32)), data.draw(tensors((n, k), dtype=f32))
    bias = data.draw(st.none() | tensors((n,), dtype=f32))
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", bf16, enabled=autocast and not raw):
        for module in (
            "inference_linear.MIN_GEMV_WEIGHTS",
            "inference_linear.MIN_GEMM_WORK",
            "training_linear.MIN_WORK",
        ):
            patch.setattr(f"tercet.kernel.{module}", 1)
        float_weight = weight.float() if weight.dtype in (bf16, torch.int8) else weight  # done by the kernel
        expected = outcome(lambda: F.linear(x, float_weight, bias))
        if raw:
            found = outcome(lambda: ops.inference_linear(x, weight, None, bias))
        else:
            found = outcome(lambda: api.linear(x, weight, None, bias))
        if found is not None:
            agree(found, expected, atol=0.5 if autocast else 1e-3)


@pytest.mark.slow
@fuzz
@given(
    data=st.data(), b=st.integers(1, 2), h=st.sampled_from([1, 2, 4]), g=st.sampled_from([1, 2, 3, 4]),
    t=st.sampled_from([1, 3, 17]), s=st.sampled_from([1, 4, 17, 33]), k=st.sampled_from([8, 12, 16, 32]),
    mask=st.sampled_from([None, "b1ts", "11ts", "b11s", "bhts", "wrong"]), causal=st.booleans(),
    dtype=st.sampled_from([torch.float32, bf16]),
)  # fmt: skip
def test_any_attention_matches_the_formula_or_raises(
    data: Any, b: int, h: int, g: int, t: int, s: int, k: int, mask: str | None, causal: bool, dtype: torch.dtype
) -> None:
    q = data.draw(tensors((b, h, t, k), dtype=dtype))
    keys, values = data.draw(tensors((b, g, s, k), dtype=dtype)), data.draw(tensors((b, g, s, k), dtype=dtype))
    shapes = {
        "b1ts": (b, 1, t, s),
        "11ts": (1, 1, t, s),
        "b11s": (b, 1, 1, s),
        "bhts": (b, h, t, s),
        "wrong": (b, 1, 2, 5),
    }
    drawn_mask = None if mask is None else data.draw(tensors(shapes[mask], dtype=torch.bool))
    causal = causal and drawn_mask is None and t == s

    def formula() -> Tensor:
        n = q.shape[1]
        groups = [
            x.double() if x.shape[1] == n else x.double().repeat_interleave(n // x.shape[1], dim=1)
            for x in (keys, values)
        ]
        scores = q.double() @ groups[0].mT / q.shape[-1] ** 0.5
        visible = torch.ones(t, s, dtype=torch.bool).tril() if causal else drawn_mask
        if visible is None:
            return scores.softmax(-1) @ groups[1]
        weights = scores.masked_fill(~visible, -1e300).softmax(-1).masked_fill(~visible, 0.0)
        return weights @ groups[1]

    with pytest.MonkeyPatch.context() as patch:
        for module in ("flash_attention.MIN_WORK", "masked_softmax.MIN_WORK"):
            patch.setattr(f"tercet.kernel.{module}", 1)
        result = outcome(lambda: api.attention(q, keys, values, mask=drawn_mask, causal=causal))
        if (
            result is not None and q.dtype == keys.dtype == values.dtype
        ):  # for mixed dtypes the fallback returns that of the values
            agree(result, outcome(formula), atol=0.1 if dtype == bf16 else 1e-3)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.sampled_from([0.1, -1.0, 2.0, float("nan")]),
    st.sampled_from(["gelu", "sine"]),
)  # fmt: skip


@fuzz
@given(data=st.data(), name=st.sampled_from(sorted(OPERATORS)))
def test_any_operator_with_other_arguments_returns_or_raises(data: Any, name: str) -> None:
    """The process does not crash, and results have the shapes of the operator's fake implementation."""
    arguments: list[Any] = [x.clone() if isinstance(x, Tensor) else x for x in OPERATORS[name]]
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(0, len(arguments) - 1))
        old = OPERATORS[name][place]
        new = tensors(tuple(old.shape), dtype=old.dtype) if isinstance(old, Tensor) else VALUES
        arguments[place] = data.draw(new | VALUES if data.draw(st.integers(0, 9)) == 0 else new)
    result = outcome(lambda: getattr(ops, name)(*arguments))
    if not isinstance(result, Exception):
        for x in result if isinstance(result, tuple) else (result,):
            if x.device.type == "cpu":
                assert x.numel() == x.contiguous().detach().flatten().shape[0]


@fuzz
@given(data=st.data(), n=st.integers(1, 5), v=st.sampled_from([1, 2, 7, 16, 33]))
def test_any_target_gives_a_loss_or_an_index_error(data: Any, n: int, v: int) -> None:
    targets = torch.tensor(
        data.draw(st.lists(st.integers(-103, v + 3) | st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n))
    )
    scores = torch.randn(n, v)
    expected = outcome(lambda: F.cross_entropy(scores.double(), targets, reduction="none"))
    found = outcome(lambda: ops.cross_entropy_(scores.clone(), targets, 0.0, None, True)[0])
    assert isinstance(found, Exception) == isinstance(expected, Exception)
    agree(found, expected, atol=1e-4)

"""A trained linear layer matches the formula in float32 and bfloat16, without rounding the weights' gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.kernel.build import library, multiplies_bfloat16
from tercet.kernel.training_linear import linear_backward, linear_forward, supports_training_linear, training_linear
from tercet.nn import Linear

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels")
needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU does not multiply bfloat16")
in_both = pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)], ids=["float32", "bfloat16"]
)
ERROR = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
sixteens = st.integers(1, 14).map(lambda n: 16 * n)


def apart(found: Tensor, exact: Tensor) -> float:
    exact = exact.detach()
    return float((found.detach().double() - exact).norm() / exact.norm().clamp(min=1e-6))


def some(
    rows: int, wide: int, long: int, bias: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return numbers and weights that the dtype represents exactly, and a bias that bfloat16 does not."""
    x, weight = torch.randn(rows, wide), torch.randn(long, wide)
    given = [x.to(dtype), weight.to(dtype).float(), torch.randn(long) if bias else None]
    x, weight, b = (None if one is None else one.requires_grad_() for one in given)
    assert x is not None
    assert weight is not None
    return x, weight, b


def doubles(tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [None if one is None else one.detach().double().requires_grad_() for one in tensors]


@pytest.mark.slow
@in_both
@settings(max_examples=40)
@given(
    rows=st.one_of(st.integers(1, 130), st.sampled_from([1024, 1025, 2100])),
    wide=sixteens,
    long=sixteens,
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_linear_matches_the_formula_forward_and_backward(
    rows: int, wide: int, long: int, bias: bool, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    ours = some(rows, wide, long, bias, dtype)
    x, weight, b = doubles(ours)
    assert x is not None
    assert weight is not None
    expected, found = F.linear(x, weight, b), training_linear(*ours)
    assert (found.dtype, found.shape) == (dtype, (rows, long))
    assert apart(found, expected) < ERROR[dtype]
    slopes = torch.randn(rows, long).to(dtype)
    exact = torch.autograd.grad(expected, [one for one in (x, weight, b) if one is not None], slopes.double())
    given = torch.autograd.grad(found, [one for one in ours if one is not None], slopes)
    assert [one.dtype for one in given] == [dtype, torch.float32, torch.float32][: len(given)]
    assert [one.shape for one in given] == [one.shape for one in exact]
    assert apart(given[0], exact[0]) < ERROR[dtype]
    for one, other in zip(given[1:], exact[1:], strict=True):  # gradients are as exact as float32 sums
        assert apart(one, other) < 1e-5


@given(wanted=st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_frozen_tensors_have_no_gradient_and_others_do(wanted: tuple[bool, bool, bool]) -> None:
    torch.manual_seed(0)
    every = some(40, 32, 48, bias=True)
    slopes = torch.randn(40, 48)
    all_slopes = torch.autograd.grad(training_linear(*every), [one for one in every if one is not None], slopes)
    few = [
        one.detach().requires_grad_(expected) for one, expected in zip(every, wanted, strict=True) if one is not None
    ]
    y = training_linear(few[0], few[1], few[2])
    assert y.requires_grad == any(wanted)
    if y.requires_grad:
        y.backward(slopes)
    for one, expected, exact in zip(few, wanted, all_slopes, strict=True):
        assert (one.grad is not None) == expected
        assert one.grad is None or torch.equal(one.grad, exact)


@pytest.mark.parametrize("learns", [True, False])
def test_frozen_weight_does_not_save_its_input(learns: bool) -> None:
    """PyTorch's layer does not either. Otherwise adapters would need as much memory as full training."""
    x, weight, _ = some(64, 32, 48, bias=False)
    weight.requires_grad_(learns)
    kept = list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        training_linear(x, weight, None)
    assert any(one.shape == x.shape for one in kept) == learns


@in_both
@settings(max_examples=20)
@given(rows=st.integers(1, 130), wide=sixteens, long=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_weights_with_any_number_of_rows_are_zero_padded(
    rows: int, wide: int, long: int, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    x, weight, _ = some(rows, wide, long, bias=False, dtype=dtype)
    x, weight, whole = x.detach(), weight.detach(), F.pad(weight.detach(), (0, 0, 0, -long % 16))
    found = linear_forward(x, weight, None)
    assert torch.equal(found, training_linear(x, whole, None))
    slopes = F.pad(torch.randn(rows, long), (0, -long % 16)).to(dtype)
    d_x, d_weight, _ = linear_backward(slopes, x, weight, (True, True, False))
    expected = linear_backward(slopes, x, whole, (True, True, False))
    assert torch.equal(d_x, expected[0])
    assert torch.equal(d_weight, expected[1][:long])
    assert not supports_training_linear(x, weight) or long % 16 == 0


@in_both
def test_threads_do_not_change_results(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours = some(1500, 96, 208, bias=True, dtype=dtype)
    found: list[tuple[Tensor, ...]] = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = training_linear(*ours)
        found.append((y, *torch.autograd.grad(y, [one for one in ours if one is not None], torch.ones_like(y))))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_leading_axes_and_gaps_between_rows_do_not_change_results() -> None:
    torch.manual_seed(0)
    x, weight, bias = some(48, 32, 64, bias=True)
    flat = training_linear(x, weight, bias)
    deep = training_linear(x.view(4, 3, 4, 32), weight, bias)
    across = training_linear(x.mT.contiguous().mT, weight, bias)
    assert torch.equal(deep.flatten(0, 2), flat)
    assert torch.equal(across, flat)
    slopes = torch.randn(48, 64)
    exact = torch.autograd.grad(flat, weight, slopes)[0]
    assert torch.equal(torch.autograd.grad(deep, weight, slopes.view_as(deep))[0], exact)
    assert torch.equal(torch.autograd.grad(across, weight, slopes.mT.contiguous().mT)[0], exact)


@needs_bfloat16
@pytest.mark.parametrize("bias", [True, False])
def test_layer_uses_it_in_mixed_precision(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("tercet.kernel.training_linear.MIN_WORK", 1)
    layer, x = Linear(32, 48, bias=bias), torch.randn(2, 20, 32)
    exact = layer.double()(x.double())
    layer.float()
    assert "tercet" not in type(layer(x).grad_fn).__name__
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
        assert "tercet" in type(found.grad_fn).__name__
        assert apart(found, exact) < 0.01
        for other in (x[:, :4, :16], x[:1, :15]):  # unsupported widths, and too few rows
            narrow = Linear(other.shape[-1], 48 if other.shape[-1] == 32 else 40)
            assert "tercet" not in type(narrow(other).grad_fn).__name__
        assert layer.double()(x.double()).dtype == torch.float64  # unchanged in mixed precision
        assert not supports_training_linear(x, layer.float().weight.bfloat16())
        assert not supports_training_linear(x, layer.weight.mT.contiguous().mT)
        monkeypatch.setattr("tercet.kernel.training_linear.MIN_WORK", 40 * 32 * 48 + 1)
        assert not supports_training_linear(x, layer.weight)
    with torch.autocast("cpu", torch.float16):
        assert not supports_training_linear(x, layer.weight)


def test_layer_uses_it_in_float32_for_enough_work(
    use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("tercet.kernel.training_linear.MIN_WORK", 1)
    layer, x = Linear(32, 48), torch.randn(2, 20, 32)
    for least, takes in ((40 * 32 * 48, True), (40 * 32 * 48 + 1, False)):
        use_from(linear=least)
        found = layer(x)
        assert ("tercet" in type(found.grad_fn).__name__) == takes
        assert apart(found, F.linear(x.double(), layer.weight.double(), layer.bias.double())) < 1e-6
    use_from(linear=0)
    assert not supports_training_linear(x[:1, :15], layer.weight)  # too few rows
    assert not supports_training_linear(x.double(), layer.weight)
    use_from()
    assert not supports_training_linear(x, layer.weight)


@pytest.mark.parametrize(
    ("learns", "dynamic"), [((True, True, True), True), ((False, True, False), False), ((True, False, True), False)]
)
def test_compiled_module_has_it_in_one_graph_with_the_same_result(
    learns: tuple[bool, bool, bool], dynamic: bool
) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    x, weight, bias = (
        one.detach().requires_grad_(learn)
        for one, learn in zip(some(40, 32, 48, bias=True), learns, strict=True)
        if one is not None
    )
    ours = x, weight, bias
    met: list[str] = []

    def look(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        met.append(graph.print_readable(print_output=False))
        return graph

    found = torch.compile(training_linear, fullgraph=True, dynamic=dynamic, backend=look)(*ours)
    expected = training_linear(*ours)
    assert torch.equal(found, expected)
    slopes = torch.randn(found.shape)
    given = [one for one in ours if one.requires_grad]
    gradients = (torch.autograd.grad(y, given, slopes) for y in (found, expected))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert met[0].count("tercet.linear.default") == 1


def test_gradient_operator_passes_opcheck_with_frozen_inputs() -> None:
    x, weight, _ = some(40, 32, 48, bias=True)
    for expected in ((True, True, True), (False, True, False), (True, False, False)):
        arguments = torch.randn(40, 48), x.detach(), weight.detach(), expected
        torch.library.opcheck(linear_backward, arguments, test_utils=("test_schema", "test_faketensor"))

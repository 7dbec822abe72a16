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
both_dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)], ids=["float32", "bfloat16"]
)
ERROR = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
sixteens = st.integers(1, 14).map(lambda n: 16 * n)


def relative_error(actual: Tensor, exact: Tensor) -> float:
    exact = exact.detach()
    return float((actual.detach().double() - exact).norm() / exact.norm().clamp(min=1e-6))


def linear_tensors(
    rows: int, in_width: int, out_width: int, bias: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return numbers and weights that the dtype represents exactly, and a bias that bfloat16 does not."""
    x, weight = torch.randn(rows, in_width), torch.randn(out_width, in_width)
    tensors = [x.to(dtype), weight.to(dtype).float(), torch.randn(out_width) if bias else None]
    x, weight, b = (None if tensor is None else tensor.requires_grad_() for tensor in tensors)
    assert x is not None
    assert weight is not None
    return x, weight, b


def doubles(tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [None if tensor is None else tensor.detach().double().requires_grad_() for tensor in tensors]


@pytest.mark.slow
@both_dtypes
@settings(max_examples=40)
@given(
    rows=st.one_of(st.integers(1, 130), st.sampled_from([1024, 1025, 2100])),
    in_width=sixteens,
    out_width=sixteens,
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_linear_matches_the_formula_forward_and_backward(
    rows: int, in_width: int, out_width: int, bias: bool, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    ours = linear_tensors(rows, in_width, out_width, bias, dtype)
    x, weight, b = doubles(ours)
    assert x is not None
    assert weight is not None
    expected, found = F.linear(x, weight, b), training_linear(*ours)
    assert (found.dtype, found.shape) == (dtype, (rows, out_width))
    assert relative_error(found, expected) < ERROR[dtype]
    grad_output = torch.randn(rows, out_width).to(dtype)
    exact = torch.autograd.grad(
        expected, [tensor for tensor in (x, weight, b) if tensor is not None], grad_output.double()
    )
    gradients = torch.autograd.grad(found, [tensor for tensor in ours if tensor is not None], grad_output)
    assert [tensor.dtype for tensor in gradients] == [dtype, torch.float32, torch.float32][: len(gradients)]
    assert [tensor.shape for tensor in gradients] == [tensor.shape for tensor in exact]
    assert relative_error(gradients[0], exact[0]) < ERROR[dtype]
    for tensor, reference in zip(gradients[1:], exact[1:], strict=True):  # gradients are as exact as float32 sums
        assert relative_error(tensor, reference) < 1e-5


@given(learns=st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_frozen_tensors_have_no_gradient_and_others_do(learns: tuple[bool, bool, bool]) -> None:
    torch.manual_seed(0)
    tensors = linear_tensors(40, 32, 48, bias=True)
    grad_output = torch.randn(40, 48)
    all_gradients = torch.autograd.grad(
        training_linear(*tensors), [tensor for tensor in tensors if tensor is not None], grad_output
    )
    inputs = [
        tensor.detach().requires_grad_(expected)
        for tensor, expected in zip(tensors, learns, strict=True)
        if tensor is not None
    ]
    y = training_linear(inputs[0], inputs[1], inputs[2])
    assert y.requires_grad == any(learns)
    if y.requires_grad:
        y.backward(grad_output)
    for tensor, expected, exact in zip(inputs, learns, all_gradients, strict=True):
        assert (tensor.grad is not None) == expected
        assert tensor.grad is None or torch.equal(tensor.grad, exact)


@pytest.mark.parametrize("learns", [True, False])
def test_frozen_weight_does_not_save_its_input(learns: bool) -> None:
    """PyTorch's layer does not either. Otherwise adapters would need as much memory as full training."""
    x, weight, _ = linear_tensors(64, 32, 48, bias=False)
    weight.requires_grad_(learns)
    saved_tensors = list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved_tensors.append(tensor) or tensor, lambda tensor: tensor
    ):
        training_linear(x, weight, None)
    assert any(tensor.shape == x.shape for tensor in saved_tensors) == learns


@both_dtypes
@settings(max_examples=20)
@given(rows=st.integers(1, 130), in_width=sixteens, out_width=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_weights_with_any_number_of_rows_are_zero_padded(
    rows: int, in_width: int, out_width: int, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    x, weight, _ = linear_tensors(rows, in_width, out_width, bias=False, dtype=dtype)
    x, weight, padded_weight = x.detach(), weight.detach(), F.pad(weight.detach(), (0, 0, 0, -out_width % 16))
    found = linear_forward(x, weight, None)
    assert torch.equal(found, training_linear(x, padded_weight, None))
    grad_output = F.pad(torch.randn(rows, out_width), (0, -out_width % 16)).to(dtype)
    d_x, d_weight, _ = linear_backward(grad_output, x, weight, (True, True, False))
    expected = linear_backward(grad_output, x, padded_weight, (True, True, False))
    assert torch.equal(d_x, expected[0])
    assert torch.equal(d_weight, expected[1][:out_width])
    assert not supports_training_linear(x, weight) or out_width % 16 == 0


@both_dtypes
def test_threads_do_not_change_results(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours = linear_tensors(1500, 96, 208, bias=True, dtype=dtype)
    results: list[tuple[Tensor, ...]] = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = training_linear(*ours)
        results.append(
            (y, *torch.autograd.grad(y, [tensor for tensor in ours if tensor is not None], torch.ones_like(y)))
        )
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(results[0], result, strict=True))


def test_leading_axes_and_gaps_between_rows_do_not_change_results() -> None:
    torch.manual_seed(0)
    x, weight, bias = linear_tensors(48, 32, 64, bias=True)
    flat = training_linear(x, weight, bias)
    deep = training_linear(x.view(4, 3, 4, 32), weight, bias)
    y = training_linear(x.mT.contiguous().mT, weight, bias)
    assert torch.equal(deep.flatten(0, 2), flat)
    assert torch.equal(y, flat)
    grad_output = torch.randn(48, 64)
    exact = torch.autograd.grad(flat, weight, grad_output)[0]
    assert torch.equal(torch.autograd.grad(deep, weight, grad_output.view_as(deep))[0], exact)
    assert torch.equal(torch.autograd.grad(y, weight, grad_output.mT.contiguous().mT)[0], exact)


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
        y = layer(x)
        assert "tercet" in type(y.grad_fn).__name__
        assert relative_error(y, exact) < 0.01
        for unsupported in (x[:, :4, :16], x[:1, :15]):  # unsupported widths, and too few rows
            narrow = Linear(unsupported.shape[-1], 48 if unsupported.shape[-1] == 32 else 40)
            assert "tercet" not in type(narrow(unsupported).grad_fn).__name__
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
    for min_work, uses_kernel in ((40 * 32 * 48, True), (40 * 32 * 48 + 1, False)):
        use_from(linear=min_work)
        y = layer(x)
        assert ("tercet" in type(y.grad_fn).__name__) == uses_kernel
        assert relative_error(y, F.linear(x.double(), layer.weight.double(), layer.bias.double())) < 1e-6
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
        tensor.detach().requires_grad_(learn)
        for tensor, learn in zip(linear_tensors(40, 32, 48, bias=True), learns, strict=True)
        if tensor is not None
    )
    ours = x, weight, bias
    graphs: list[str] = []

    def record_graph(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph.print_readable(print_output=False))
        return graph

    found = torch.compile(training_linear, fullgraph=True, dynamic=dynamic, backend=record_graph)(*ours)
    expected = training_linear(*ours)
    assert torch.equal(found, expected)
    grad_output = torch.randn(found.shape)
    leaves = [tensor for tensor in ours if tensor.requires_grad]
    gradients = (torch.autograd.grad(y, leaves, grad_output) for y in (found, expected))
    assert all(torch.equal(tensor, reference) for tensor, reference in zip(*gradients, strict=True))
    assert graphs[0].count("tercet.linear.default") == 1


def test_gradient_operator_passes_opcheck_with_frozen_inputs() -> None:
    x, weight, _ = linear_tensors(40, 32, 48, bias=True)
    for expected in ((True, True, True), (False, True, False), (True, False, False)):
        arguments = torch.randn(40, 48), x.detach(), weight.detach(), expected
        torch.library.opcheck(linear_backward, arguments, test_utils=("test_schema", "test_faketensor"))

"""Tensors packed as JSON are restored to within half a step."""

import json

import numpy as np
import pytest
import torch
from explored import numbers
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tercet.config import UserError
from tercet.explorer.packing import pack, packed_size, unpack

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
FLOATS = arrays.arrays(np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(FLOATS)
def test_floats_are_restored_exactly(array: np.ndarray) -> None:
    packed = pack(torch.from_numpy(array))
    assert torch.equal(unpack(packed), torch.from_numpy(array))
    assert np.array_equal(numbers(json.loads(json.dumps(packed, allow_nan=False))), array)


@given(FLOATS, st.sampled_from(["uint16", "uint8"]))
@example(np.array([2, 0, 1], np.float32), "uint16")
def test_quantized_values_are_within_half_a_step(array: np.ndarray, kind: str) -> None:
    packed = json.loads(json.dumps(pack(torch.from_numpy(array), kind), allow_nan=False))  # type: ignore[arg-type]
    assert packed["shape"] == list(array.shape)
    float64s = array.astype(np.float64)  # a bound in float32 could be below half a step
    off = np.abs(numbers(packed) - float64s)
    assert (off <= packed["step"] / 2 * (1 + 1e-9) + 1e-15 * np.abs(float64s)).all()
    if array.size:
        assert numbers(packed).min() == array.min()  # a weight of zero stays zero


def test_steps_divide_the_range_of_the_numbers() -> None:
    packed = pack(torch.tensor([5.0, 6.0, 5.0 + 255 / 100]), "uint8")
    assert (packed["low"], packed["step"]) == (5.0, pytest.approx(0.01))
    assert numbers(packed) == pytest.approx([5.0, 6.0, 7.55])


@given(arrays.arrays(np.bool_, SHAPES))
def test_truth_values_are_packed_as_such(array: np.ndarray) -> None:
    packed = pack(torch.from_numpy(array), "uint16")
    assert packed["type"] == "bool"
    assert torch.equal(unpack(packed), torch.from_numpy(array))


def test_rows_come_in_order_whatever_the_strides() -> None:
    tensor = torch.arange(30.0).view(2, 3, 5).transpose(0, 2)
    assert np.array_equal(numbers(pack(tensor)), tensor.numpy())


def test_half_precision_is_packed_exactly() -> None:
    tensor = torch.randn(3, 5, dtype=torch.bfloat16)
    assert torch.equal(unpack(pack(tensor)), tensor.float())


@pytest.mark.parametrize("kind", ["float32", "uint16", "uint8"])
@pytest.mark.parametrize("invalid", [float("nan"), float("inf"), -float("inf")])
def test_values_without_json_form_are_rejected(kind: str, invalid: float) -> None:
    with pytest.raises(UserError, match=r"not finite \(NaN or infinity\): its training diverged, or an edit"):
        pack(torch.tensor([1.0, invalid]), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["float32", "uint16", "uint8", "bool"])
def test_the_size_is_known_beforehand(kind: str) -> None:
    for shape in ((), (0, 3), (1,), (2, 3, 5), (7, 11)):
        assert packed_size(torch.Size(shape), kind) == len(pack(torch.ones(shape), kind)["data"])  # type: ignore[arg-type]

"""Kernels read nothing after a tensor that ends at the end of its memory mapping; such a read would crash."""

import os
import subprocess
import sys

import pytest

from tercet.kernel.build import library
from tercet.kernel.levels import LEVELS, Level, cpu_instructions, levels_of, missing_instructions

RUNNABLE = [
    candidate for candidate in levels_of(os.uname().machine) if not missing_instructions(candidate, cpu_instructions())
]

# The shapes are chosen so that the last vectors of a row, the last rows of a tile and prefetched weights reach
# the end of the mapping.
CODE = """
import ctypes, itertools, mmap
import torch
import torch.nn.functional as F
from tercet.kernel import Program, Step, STREAM
from tercet.kernel.inference_linear import inference_linear
from tercet.kernel.training_linear import training_linear

PROT_NONE, PAGE = 0, mmap.PAGESIZE
kept = []


def at_the_end(x):
    size = -(-x.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    kept.append(memory)
    end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + size
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), PAGE, PROT_NONE) == 0
    there = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=size - x.nbytes).view(x.shape)
    return there.copy_(x)


torch.manual_seed(0)
for rows, n, k in itertools.product((1, 2, 3, 5, 8, 17), (1, 8, 9, 24, 33), (1, 8, 17, 100, 1030)):
    x, scale, bias = at_the_end(torch.randn(rows, k)), at_the_end(torch.rand(n)), at_the_end(torch.randn(n))
    whole = torch.randint(-127, 128, (n, k)).to(torch.int8)
    for weight in (torch.randn(n, k), torch.randn(n, k).bfloat16(), whole):
        found = inference_linear(x, at_the_end(weight), scale, bias)
        expected = F.linear(x.double(), weight.double()) * scale + bias
        assert float((found - expected).abs().max()) < 1e-3 * float(expected.abs().max() + 1)
    kept.clear()
with torch.inference_mode():
    for width in (8, 24, 768):
        weight, stream = at_the_end(torch.randn(width, width)), at_the_end(torch.randn(1, 1, width))
        expected = stream @ weight.T
        program = Program([Step.linear(STREAM, 0, weight, None, None), Step.add(0, STREAM, width)],
                          d_model=width, scratch=width)
        before = stream.clone()
        program.run(stream, torch.zeros(1, 1, dtype=torch.long), 1, None, [])
        torch.testing.assert_close(stream, before + expected, atol=1e-3, rtol=1e-3)
for rows, n, k in itertools.product((16, 17, 33), (16, 48), (16, 32, 112)):
    x, weight = at_the_end(torch.randn(rows, k)), at_the_end(torch.randn(n, k)).requires_grad_()
    bias = at_the_end(torch.randn(n))
    y = training_linear(x, weight, bias)
    torch.testing.assert_close(y, F.linear(x, weight, bias), atol=1e-4, rtol=1e-4)
    y.backward(at_the_end(torch.randn(rows, n)))
print("read to the end")
"""


@pytest.mark.skipif(library() is None, reason="no compiled kernels")
@pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=pytest.mark.slow if level in RUNNABLE[:1] else pytest.mark.exhaustive)
        for level in LEVELS
    ],
    ids=lambda level: level.name,
)
def test_nothing_is_read_after_the_end_of_a_mapping(level: Level) -> None:
    if level not in RUNNABLE:
        pytest.skip("this CPU does not support the level")
    process = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ | {"TERCET_KERNEL": level.name}, capture_output=True, text=True
    )
    assert (process.returncode, process.stdout) == (0, "read to the end\n"), process.stderr[-2000:]

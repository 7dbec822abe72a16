"""Compile the models in a separate process for test_same_models.py, since shape annotations cannot be traced."""

import sys

import torch
from tests.walkthroughs.test_same_models import ODD_SIZES, WRITTEN, batch, drawn, small
from torch._dynamo.testing import CompileCounter

torch.set_num_threads(1)
for recipe in sys.argv[1:] or WRITTEN:
    ours = drawn(small(recipe, ODD_SIZES[0])).eval()
    args, kwargs, _ = batch(ours)
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(ours, fullgraph=True, backend=counter)
    torch.testing.assert_close(compiled(*args, **kwargs), ours(*args, **kwargs))
    assert counter.frame_count == 1, f"{recipe}: {counter.frame_count} graphs"

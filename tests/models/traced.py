"""Run by test_tracing.py in a process of its own: the checks of shape annotations cannot be traced."""

import sys

import torch
from small import MAX_LEN, POSITIONS, V, model
from torch._dynamo.testing import CompileCounter

torch.set_num_threads(1)
position = next(spec for spec in POSITIONS if spec.kind == sys.argv[1])
decoder, tokens = model(position=position, n_kv_heads=2).train(), torch.randint(V, (3, 11))

training = CompileCounter()
compiled = torch.compile(decoder, fullgraph=True, backend=training)
for _ in range(3):
    compiled(torch.randint(V, (3, 11))).sum().backward()
assert training.frame_count == 1, f"{training.frame_count} graphs in training"

decoder.eval()
with torch.no_grad():
    stepping = CompileCounter()
    step = torch.compile(decoder.step, fullgraph=True, backend=stepping)
    _, cache = decoder.start(tokens[:, :5], torch.tensor([5, 3, 1]), capacity=MAX_LEN)
    for t in range(4):
        logits = step(tokens[:, t], cache)
    assert stepping.frame_count == 1, f"{stepping.frame_count} graphs for steps"
    cache.reorder(torch.tensor([2, 0]))  # fewer rows: one more graph, then none
    for t in range(3):
        step(tokens[:2, t], cache)
    assert stepping.frame_count == 2, f"{stepping.frame_count} graphs after reorder"

    _, eager = decoder.start(tokens[:, :5], torch.tensor([5, 3, 1]), capacity=MAX_LEN)
    for t in range(4):
        expected = decoder.step(tokens[:, t], eager)
    torch.testing.assert_close(logits, expected)

    reading = CompileCounter()
    start = torch.compile(decoder.start, fullgraph=True, backend=reading)
    for lengths in ([5, 3, 1], [1, 4, 2]):
        start(tokens[:, :5], torch.tensor(lengths), capacity=MAX_LEN)
    assert reading.frame_count == 1, f"{reading.frame_count} graphs for prompts"

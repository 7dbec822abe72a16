"""Run by test_tracing.py in a process of its own: the checks of shape annotations cannot be traced."""

import sys
from dataclasses import replace

import torch
from small import MAX_LEN, POSITIONS, STACK, V, padded, translator
from torch import Tensor
from torch._dynamo.testing import CompileCounter

torch.set_num_threads(1)
position = next(spec for spec in POSITIONS if spec.kind == sys.argv[1])
layer = replace(STACK, n_layers=1, position=position, n_kv_heads=2)  # more of them would trace alike, and longer
model = translator(spec={"encoder": layer, "decoder": layer}).train()


def sources() -> dict[str, Tensor]:
    source, token_mask = padded([torch.randint(V, (length,)) for length in (7, 2, 5)], "right", 7)
    return {"source": source, "source_token_mask": token_mask}


training = CompileCounter()
compiled = torch.compile(model, fullgraph=True, backend=training)
for _ in range(3):
    compiled(target=torch.randint(V, (3, 11)), **sources()).sum().backward()
assert training.frame_count == 1, f"{training.frame_count} graphs in training"

model.eval()
with torch.no_grad():
    given, tokens, lengths = sources(), torch.randint(V, (3, 11)), torch.tensor([5, 3, 1])
    stepping = CompileCounter()
    step = torch.compile(model.step, fullgraph=True, backend=stepping)
    _, cache = model.start(tokens[:, :5], lengths, **given, capacity=MAX_LEN)
    _, eager = model.start(tokens[:, :5], lengths, **given, capacity=MAX_LEN)

    def compare(times: int, rows: int) -> None:
        for _ in range(times):
            new = torch.randint(V, (rows,))
            torch.testing.assert_close(step(new, cache), model.step(new, eager))

    compare(3, rows=3)
    assert stepping.frame_count == 1, f"{stepping.frame_count} graphs for steps"
    for each in (cache, eager):
        each.expand_beams(2)
    compare(2, rows=6)
    assert stepping.frame_count == 2, f"{stepping.frame_count} graphs after spread"
    for each in (cache, eager):
        each.reorder(torch.tensor([1, 1, 2, 3, 5, 4]))
    compare(1, rows=6)
    assert stepping.frame_count == 2, f"{stepping.frame_count} graphs after reorder within groups"
    for each in (cache, eager):
        each.reorder(torch.tensor([4, 5, 1, 0]))  # fewer rows: one more graph at most, then none
    compare(2, rows=4)
    assert stepping.frame_count <= 3, f"{stepping.frame_count} graphs after a group has gone"

    reading = CompileCounter()
    start = torch.compile(model.start, fullgraph=True, backend=reading)
    for lengths in ([5, 3, 1], [1, 4, 2]):
        start(tokens[:, :5], torch.tensor(lengths), **sources(), capacity=MAX_LEN)
    assert reading.frame_count == 1, f"{reading.frame_count} graphs for sources and beginnings"

"""Check that a training step traces as one graph: python traced_training.py [masked | causal | break] ...

"break" plants a graph break, which must be counted.
test_masked.py runs this in a separate process, because the checks of shape annotations cannot be traced.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from tercet.models import DecoderOnly, EncoderOnly, model_spec
from tercet.objectives import CausalBatch, MaskedBatch, Masking, causal_loss, masked_loss
from tercet.objectives.masking import mask_rows

V, T, STEPS = 97, 13, 4
torch.set_num_threads(1)
passes = {"forward": 0, "backward": 0}


def count_graphs(name: str) -> Callable[..., Any]:
    def compiler(graph: Any, _: Any) -> Any:
        passes[name] += 1
        return graph.forward

    return compiler


def model(preset: str) -> Any:
    stack = {"d_model": 24, "n_heads": 2, "n_layers": 1}
    spec = model_spec({"preset": preset, "vocab_size": V, "max_len": T, "stack": stack})
    return (EncoderOnly if spec.family == "encoder-only" else DecoderOnly)(spec).train()  # pyright: ignore


def masked_batch(generator: np.random.Generator) -> MaskedBatch:
    tokens = generator.integers(5, V, (3, T))
    candidates = generator.random(tokens.shape) < generator.random()  # so that the number of masks varies
    rows = mask_rows(tokens, candidates, masking=Masking(), generator=generator, mask_id=4, random_ids=np.arange(5, V))
    documents = torch.from_numpy(generator.integers(0, 2, tokens.shape).cumsum(1))
    inputs, positions, targets = (torch.from_numpy(array) for array in (rows.inputs, rows.positions, rows.targets))
    return MaskedBatch(inputs, positions, targets, torch.from_numpy(candidates), documents)


def causal_batch(generator: np.random.Generator) -> CausalBatch:
    tokens = torch.from_numpy(generator.integers(0, V, (3, T + 1)))
    return CausalBatch(tokens[:, :-1], tokens[:, 1:])


def train(network: nn.Module, loss: Any, batch: Any, *, fullgraph: bool, steps: int) -> int:
    """Train for some steps and return the number of traced graphs."""
    torch.compiler.reset()
    counters.clear()
    passes.update(forward=0, backward=0)
    backend = aot_autograd(fw_compiler=count_graphs("forward"), bw_compiler=count_graphs("backward"))

    def mean(inputs: Any) -> Tensor:
        return loss(network, inputs).mean

    compiled = torch.compile(mean, fullgraph=fullgraph, backend=backend)
    optimizer, generator = torch.optim.AdamW(network.parameters(), lr=1e-3), np.random.default_rng(0)
    for _ in range(steps):
        compiled(batch(generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return int(counters["stats"]["unique_graphs"])


def graph_breaking_loss(network: Any, batch: Any) -> Any:
    result = loss(network, batch)
    if result.total > 0:  # a Python value is read from a tensor
        return result
    return result


def same_gradients(network: nn.Module, loss: Any, batch: Any) -> None:
    network.eval()
    inputs = batch(np.random.default_rng(1))
    gradients: list[list[Tensor]] = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        network.zero_grad()
        function(network, inputs).total.backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


LOSSES = {"masked": (masked_loss, masked_batch, "bert-tiny"), "causal": (causal_loss, causal_batch, "gpt2")}
for kind in sys.argv[1:]:
    loss, batch, preset = LOSSES["causal" if kind == "break" else kind]
    if kind == "break":
        graphs = train(model(preset), graph_breaking_loss, batch, fullgraph=False, steps=2)
        assert graphs > 1, "a planted break was not seen"
        assert counters["graph_break"], "a planted break was not counted"
        continue
    network = model(preset)
    graphs = train(network, loss, batch, fullgraph=True, steps=STEPS)
    assert graphs == 1, f"{kind}: {graphs} graphs in {STEPS} steps"
    assert passes == {"forward": 1, "backward": 1}, f"{kind}: compiled {passes}"
    assert not counters["graph_break"], (kind, counters["graph_break"])
    assert not counters["recompiles"], (kind, counters["recompiles"])
    if kind == "masked":  # test_likelihood.py compares those of the other loss
        same_gradients(network, loss, batch)

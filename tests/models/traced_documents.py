"""Check training on packed documents: python traced_documents.py [few | many | falling] ...

A step that is masked by FlexAttention's block mask, as on a GPU, is at most one graph, its loss and gradients are those
of the dense mask, and no tensor has an element for each pair of tokens of a row. test_tracing.py runs this in a
separate process, because the checks of shape annotations cannot be traced.
"""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from small import STACK, V, shaken
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.attention import flex_attention

from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec
from tercet.nn import Learned, Rotary, document_mask
from tercet.objectives import CausalBatch, MaskedBatch, causal_loss, masked_loss
from tercet.training.compute.compiling import compile_in_place, compile_loss

ROWS, LENGTH = 2, 300
largest = 0
compile_of_torch = torch.compile


def numbers(*starts: int) -> Tensor:
    counts = torch.zeros(LENGTH, dtype=torch.long)
    counts[list(starts)] = 1
    return counts.cumsum(0)


LAYOUTS = {
    "few": torch.stack([numbers(), numbers(128, 256)]),
    "many": torch.stack([numbers(*range(0, LENGTH, 7)), numbers(1, 2, 127, 129, 299)]),
    "falling": torch.stack([5 - numbers(40, 200), 1 - numbers(130) + 2 * numbers(260)]),
}


def watch(graph: Any, _: Any) -> Any:
    global largest
    for node in graph.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, list | tuple) else [values]:
            if isinstance(value, Tensor):
                largest = max(largest, value.numel())
    return make_boxed_func(graph.forward)


def compiled(function: Any = None, **_: Any) -> Any:
    return compile_of_torch(function, backend=aot_autograd(fw_compiler=watch, bw_compiler=watch), fullgraph=True)


def causal(documents: Tensor) -> tuple[Any, Any, Any]:
    stack = replace(STACK, d_model=64, n_layers=1, n_kv_heads=2, position=Rotary(), qk_norm=True)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=LENGTH, stack=stack))
    shape = ROWS, LENGTH
    return model, causal_loss, CausalBatch(torch.randint(V, shape), torch.randint(V, shape), None, documents)


def masked(documents: Tensor) -> tuple[Any, Any, Any]:
    stack = replace(STACK, d_model=64, n_layers=1, position=Learned())
    model = EncoderOnly(EncoderOnlySpec(vocab_size=V, max_len=LENGTH, stack=stack))
    real = torch.arange(LENGTH) < torch.tensor([LENGTH, 170])[:, None]
    positions = real.flatten().nonzero()[::5, 0]
    batch = MaskedBatch(torch.randint(V, (ROWS, LENGTH)), positions, torch.randint(V, positions.shape), real, documents)
    return model, masked_loss, batch


def learn(model: Any, loss: Any, batch: Any) -> list[Tensor]:
    model.zero_grad()
    result = loss(model, batch)
    result.total.backward()
    return [result.total.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def check(name: str, expected: list[Tensor], found: list[Tensor]) -> None:
    assert len(found) == len(expected) > 12
    for actual_tensor, expected_tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(
            actual_tensor, expected_tensor, rtol=1e-4, atol=1e-3, msg=lambda text: f"{name}: {text}"
        )


torch.set_num_threads(1)
torch.manual_seed(0)
torch.compile = compiled
flex_attention._validate_device = lambda *_: None  # its formula has gradients on a CPU, although PyTorch rejects them
dense = partial(document_mask.__setattr__, "DEVICES", ())
squares = partial(document_mask.__setattr__, "DEVICES", ("cpu",))
document_mask.DTYPES = (torch.float32,)
for layout in sys.argv[1:]:
    for case in (causal,) if layout == "few" else (causal, masked):
        model, loss, batch = case(LAYOUTS[layout])
        other_batch = batch._replace(documents=LAYOUTS[layout].flip(0))
        shaken(model).train()
        dense()
        expected, expected_other = learn(model, loss, batch), learn(model, loss, other_batch)
        squares()
        forms = {"one graph": compile_loss(loss), "not compiled": loss, "compiled in place": loss}
        for form, form_loss in forms.items() if layout == "many" and case is causal else [*forms.items()][:1]:
            torch.compiler.reset()
            document_mask._compiled_attention.cache_clear()
            if form == "compiled in place":
                compile_in_place(model)
            check(f"{case.__name__}, {layout}, {form}", expected, learn(model, form_loss, batch))
            graphs = counters["stats"]["unique_graphs"]
            check(f"{case.__name__}, {layout}, {form}, again", expected_other, learn(model, form_loss, other_batch))
            assert counters["stats"]["unique_graphs"] == graphs > 0, f"{form}: recompiled for other documents"
assert 0 < largest < LENGTH * LENGTH, f"a tensor of {largest} numbers"
if "many" in sys.argv:
    dense()
    torch.compiler.reset()
    learn(model, compile_loss(loss), batch)
    assert largest >= LENGTH * LENGTH, "no dense mask was created"

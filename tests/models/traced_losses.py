"""Check that losses trace as one graph: python traced_losses.py whole [rotary documents ...]

The embedding, blocks and loss of every variant are one graph, with the loss and gradients of the eager form.
test_tracing.py runs this in a separate process, because the checks of shape annotations cannot be traced.
"""

import sys
from functools import partial
from typing import Any

import torch
from small import MAX_LEN, POSITIONS, V, encoder, model, translator
from torch import Tensor
from torch._dynamo.utils import counters

from tercet.models import AnyModel, Classifier, Dropout, MaskedHead
from tercet.objectives import (
    IGNORE_INDEX,
    CausalBatch,
    LabeledBatch,
    MaskedBatch,
    PairBatch,
    causal_loss,
    classify_loss,
    likelihood,
    masked_loss,
    seq2seq_loss,
)
from tercet.objectives.likelihood import Form, use_form
from tercet.training.compute import compiling


def ids(*shape: int, ignored: bool = False) -> Tensor:
    token_ids = torch.randint(0, V, shape)
    return token_ids.masked_fill(torch.rand(shape) < 0.2, IGNORE_INDEX) if ignored else token_ids


def causal(*, documents: bool = False, padding: bool = False, rows: int = 3, length: int = 11) -> CausalBatch:
    mask = torch.arange(length) < torch.tensor([length, 7, 9, 8, 6])[:rows, None] if padding else None
    numbers = torch.randint(0, 2, (rows, length)).cumsum(1) if documents else None
    return CausalBatch(ids(rows, length), ids(rows, length, ignored=True), mask, numbers)


def masked() -> MaskedBatch:
    return MaskedBatch(ids(3, 11), torch.randint(0, 33, (7,)), ids(7, ignored=True), torch.ones(3, 11).bool())


def pairs(rows: int = 3, source_length: int = 9, target_length: int = 7) -> PairBatch:
    mask = torch.arange(source_length) < torch.tensor([source_length, 5, 4, 6, 7])[:rows, None]
    return PairBatch(ids(rows, source_length), mask, ids(rows, target_length), ids(rows, target_length, ignored=True))


def labels(targets: Tensor) -> LabeledBatch:
    return LabeledBatch(ids(3, 11), torch.arange(11) < torch.tensor([11, 5, 8])[:, None], targets)


CLASSIFIER = Classifier(labels=("a", "b", "c"), dropout=0.1)
DROPOUT = Dropout(embedding=0.1, attention=0.1, residual=0.1, activation=0.1)
CASES: dict[str, Any] = {
    **{position.kind: (causal_loss, partial(model, position=position), causal) for position in POSITIONS},
    "sandwich, gated, qk norm": (
        causal_loss,
        partial(
            model, placement="sandwich", norm="rms", norm_bias=False, gated=True, activation="silu", qk_norm=True
        ),
        causal,
    ),
    "post, std norm, multi-query": (
        causal_loss, partial(model, placement="post", norm="layer_std", n_kv_heads=1, activation="relu_squared"), causal
    ),
    "parallel, branch": (causal_loss, partial(model, placement="branch", parallel=True), causal),
    "dropout": (causal_loss, partial(model, dropout=DROPOUT), causal),
    "softcap, padded vocabulary, bias": (
        causal_loss,
        partial(model, spec={"logit_softcap": 1.5, "pad_vocab_to": 8, "logit_bias": True, "tie_embeddings": False}),
        causal,
    ),
    "documents": (causal_loss, model, partial(causal, documents=True)),
    "chat": (causal_loss, model, partial(causal, padding=True)),
    "masked": (masked_loss, partial(encoder, spec={"masked_head": MaskedHead()}), masked),
    "translation": (seq2seq_loss, translator, pairs),
    "classes": (classify_loss, partial(encoder, spec={"classifier": CLASSIFIER}), lambda: labels(ids(3) % 3)),
    "several labels": (
        classify_loss, partial(encoder, spec={"classifier": CLASSIFIER}), lambda: labels(torch.rand(3, 3).round())
    ),
}  # fmt: skip


def learn(network: AnyModel, loss: Any, batch: Any, smoothing: float) -> tuple[Tensor, ...]:
    network.zero_grad()
    torch.manual_seed(5)  # seed for dropout
    result = loss(network, batch, smoothing=smoothing)
    (0.37 * result.total).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in network.parameters()]
    return result.total.detach(), result.plain, result.count, *gradients


def check(name: str, compiled: Any, network: AnyModel, loss: Any, batch: Any) -> None:
    smoothing = 0.0 if batch.targets.is_floating_point() else 0.1
    expected = learn(network, loss, batch, smoothing)
    with use_form(FORM):
        found = learn(network, compiled, batch, smoothing)
    assert len(expected) > 12
    for actual_tensor, expected_tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(
            actual_tensor, expected_tensor, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}"
        )


def check_all_cases() -> None:
    likelihood.MIN_CHUNK_ROWS, likelihood.CHUNK_ELEMENTS["cpu"] = 1, 11 * V  # three chunks
    for name in sys.argv[2:] or CASES:
        loss, build, make_batch = CASES[name]
        torch.compiler.reset()
        check(name, compiling.compile_loss(loss), build(n_layers=1).train(), loss, make_batch())


def check_all_shapes(name: str) -> None:
    loss, build, _ = CASES[name]
    shapes = (
        (3, 9, 7),
        (4, 8, 6),
        (5, 11, 9),
        (2, 9, 10),
        (4, MAX_LEN, 5),
    )  # from 16 tokens on, PyTorch uses other kernels on a CPU
    network, compiled = build(n_layers=1).train(), compiling.compile_loss(loss, dynamic=True)
    torch.compiler.reset()
    counters.clear()
    for rows, length, target_length in shapes:
        padded = name == "chat"
        batch = (
            pairs(rows, length, target_length)
            if name == "translation"
            else causal(padding=padded, rows=rows, length=length)
        )
        check(name, compiled, network, loss, batch)
    assert counters["stats"]["unique_graphs"] == 1, f"{name}: {counters['stats']['unique_graphs']} graphs"


torch.set_num_threads(1)
torch.manual_seed(0)
torch.compile = partial(torch.compile, backend="aot_eager", fullgraph=True)  # no machine code
FORM: Form = "chunks" if sys.argv[1] == "chunks" else "whole"
if sys.argv[1] == "shapes":
    for case in ("chat", "translation", "dropout"):
        check_all_shapes(case)
else:
    check_all_cases()

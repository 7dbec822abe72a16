"""Activation checkpointing gives the same gradients and keeps fewer activations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jaxtyping
import pytest
import torch
from small import V, encoder, model, translator
from torch import Tensor

from tercet.models import AnyModel, Dropout, stacks_of
from tercet.nn import RelativeBias
from tercet.training.compute.compiling import compile_in_place

TOKENS = torch.randint(0, V, (2, 11), generator=torch.Generator().manual_seed(0))
Build = Callable[..., AnyModel]


def scores(of: Any) -> Tensor:
    return of(TOKENS, TOKENS[:, :7]) if hasattr(of, "decoder") else of(TOKENS)


def learn(build: Build, *, recompute: bool, dropout: float = 0.0) -> tuple[list[Tensor], int]:
    """Return the gradients, and the bytes of activations that were saved for them."""
    torch.manual_seed(3)
    network = build(dropout=Dropout(attention=dropout, activation=dropout)).train()
    for stack in stacks_of(network):
        stack.activation_checkpointing = recompute
    storage_sizes = dict[int, int]()

    def keep(x: Tensor) -> Tensor:
        storage_sizes[x.data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        torch.manual_seed(4)  # seed for dropout
        total = scores(network).square().mean()
    total.backward()
    return [p.grad for p in network.parameters() if p.grad is not None], sum(storage_sizes.values())


@pytest.mark.parametrize("build", [model, encoder, translator, partial(translator, position=RelativeBias())])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_bitwise_identical(build: Build, dropout: float) -> None:
    (plain, plain_bytes), (checkpointed, checkpointed_bytes) = (
        learn(build, recompute=x, dropout=dropout) for x in (False, True)
    )
    assert len(plain) == len(checkpointed) > 20
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))
    assert checkpointed_bytes < 0.5 * plain_bytes


def test_blocks_run_twice_only_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[bool]()
    network = model()
    network.stack.activation_checkpointing = True
    network.stack.blocks[0].register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    network.eval()
    scores(network).sum().backward()
    with torch.no_grad():
        scores(network.train())
    assert len(calls) == 2
    scores(network).sum().backward()
    assert len(calls) == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within PyTorch's compiler
def test_compiled_blocks_are_also_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # no machine code
    plain, _ = learn(model, recompute=False)
    torch.manual_seed(3)
    network = model(dropout=Dropout()).train()
    network.stack.activation_checkpointing = True
    compile_in_place(network)
    assert network._compiled_call_impl is network.stack._compiled_call_impl is None  # each block is compiled separately
    scores(network).square().mean().backward()
    for expected, p in zip(plain, network.parameters(), strict=True):
        torch.testing.assert_close(p.grad, expected, atol=1e-5, rtol=1e-4)

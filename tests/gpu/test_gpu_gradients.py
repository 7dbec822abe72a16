"""Gradients of the three model families on a GPU, compared with those of the formula in float64 on the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import MAX_LEN, POSITIONS, V, encoder, model, padded, translator
from torch import Tensor, nn

from tercet.objectives import (
    IGNORE_INDEX,
    CausalBatch,
    MaskedBatch,
    PairBatch,
    causal_loss,
    masked_loss,
    move_batch,
    seq2seq_loss,
)

LENGTHS = (MAX_LEN - 1, 1, 5, 8)
FP32, BF16 = 1e-4, 3e-2  # largest difference relative to the norm of all gradients
# A batch, the loss of a model and a batch, and the formula: logits and targets in float64.
Case = tuple[Any, Callable[[Any, Any], Any], Callable[[Any], tuple[Tensor, Tensor]]]


def causal() -> Case:
    tokens, token_mask = padded([torch.randint(V, (length,)) for length in LENGTHS], "right", MAX_LEN - 1)
    targets = torch.randint(V, tokens.shape).masked_fill(~token_mask, IGNORE_INDEX)
    return (
        CausalBatch(tokens, targets, token_mask),
        causal_loss,
        lambda made: (made(tokens, token_mask=token_mask), targets),
    )


def masked() -> Case:
    tokens, token_mask = padded([torch.randint(V, (length,)) for length in LENGTHS], "right", MAX_LEN - 1)
    positions = token_mask.flatten().nonzero()[::3, 0]
    targets = torch.randint(V, positions.shape)
    every = torch.full(tokens.shape, IGNORE_INDEX)
    every.view(-1)[positions] = targets
    return (
        MaskedBatch(tokens, positions, targets, token_mask),
        masked_loss,
        lambda made: (made(tokens, token_mask=token_mask), every),
    )


def pairs() -> Case:
    source, source_mask = padded([torch.randint(V, (length,)) for length in (8, 11, 2, 3)], "right", 11)
    inputs, target_mask = padded([torch.randint(V, (length,)) for length in LENGTHS], "right", MAX_LEN - 1)
    targets = torch.randint(V, inputs.shape).masked_fill(~target_mask, IGNORE_INDEX)
    return (
        PairBatch(source, source_mask, inputs, targets),
        seq2seq_loss,
        lambda made: (made(source, inputs, source_token_mask=source_mask), targets),
    )


FAMILIES = {"decoder": (model, causal), "encoder": (encoder, masked), "translator": (translator, pairs)}


def gradients(made: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.double().cpu() for name, p in made.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_float64(family: str, position: Any, precision: str, device: torch.device) -> None:
    build, case = FAMILIES[family]
    made = build(position=position)
    batch, loss_of, formula = case()
    exact = copy.deepcopy(made).double()
    logits, targets = formula(exact)
    exact_loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX)
    exact_loss.backward()
    made.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        loss = loss_of(made, move_batch(batch, made)).mean
    loss.backward()
    within = FP32 if precision == "fp32" else BF16
    assert loss.item() == pytest.approx(exact_loss.item(), rel=within)
    found, expected = gradients(made), gradients(exact)
    assert found.keys() == expected.keys()
    norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() < within * norm, name

"""The device and precision of loaded weights."""

from typing import Any

import pytest
import torch

from tercet.cli.device import place_model
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, StackSpec

STACK = StackSpec(d_model=8, n_layers=1, n_heads=2)


def model(family: str) -> Any:
    if family == "encoder-only":
        return EncoderOnly(EncoderOnlySpec(vocab_size=5, max_len=4, stack=STACK))
    return DecoderOnly(DecoderOnlySpec(vocab_size=5, max_len=4, stack=STACK))


def place_and_get_dtypes(
    monkeypatch: pytest.MonkeyPatch, device: str, narrow: str | None, *, family: str = "decoder-only"
) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes of the embedding and of a linear layer; a move to a GPU is ignored."""
    placed_model, to = model(family), torch.nn.Module.to
    monkeypatch.setattr(
        torch.nn.Module, "to", lambda part, to_what: part if to_what == torch.device("cuda") else to(part, to_what)
    )
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    place_model(placed_model, torch.device(device), narrow)
    return placed_model.embedding.weight.dtype, placed_model.stack.blocks[0].feedforward.up.weight.dtype


def test_a_cpu_keeps_the_weights_as_they_were_trained_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for narrow in (None, "none"):
        assert place_and_get_dtypes(monkeypatch, "cpu", narrow) == (torch.float32, torch.float32)
    assert place_and_get_dtypes(monkeypatch, "cpu", "bf16") == (torch.float32, torch.bfloat16)
    assert place_and_get_dtypes(monkeypatch, "cpu", "int8") == (torch.float32, torch.int8)


def test_a_gpu_writes_in_bfloat16_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for narrow in (None, "bf16"):
        assert place_and_get_dtypes(monkeypatch, "cuda", narrow) == (torch.bfloat16, torch.bfloat16)
    assert place_and_get_dtypes(monkeypatch, "cuda", "int8") == (torch.bfloat16, torch.int8)
    assert place_and_get_dtypes(monkeypatch, "cuda", "none") == (torch.float32, torch.float32)
    assert place_and_get_dtypes(monkeypatch, "cuda", None, family="encoder-only") == (torch.float32, torch.float32)
    assert place_and_get_dtypes(monkeypatch, "cuda", "bf16", family="encoder-only") == (torch.bfloat16, torch.bfloat16)

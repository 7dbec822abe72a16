"""What models compute on the device is never in float64, which Apple's GPUs (MPS) lack."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.config import UserError
from tercet.evaluate import masked
from tercet.generation.beam_decoding import best_allowed
from tercet.models import DecoderOnly, EncoderDecoder, EncoderOnly, model_spec
from tercet.objectives import IGNORE_INDEX, MaskedBatch
from tercet.training.distributed.devices import check_exact
from tercet.training.recipe.specs import TrainingSpec


class NoFloat64(TorchDispatchMode):
    """Reject each operation whose result is in float64."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float64:
                raise TypeError(f"{func} gives float64")
        return result


def test_float64_is_rejected() -> None:
    with NoFloat64(), pytest.raises(TypeError, match="gives float64"):
        torch.zeros(3).double()


@pytest.mark.parametrize("preset", ["gpt2", "modern", "bert-tiny", "modern-encoder", "modern-translator"])
def test_forward_and_backward(preset: str) -> None:
    stack = {"d_model": 24, "n_layers": 2, "n_heads": 2}
    sizes = {"encoder": stack, "decoder": stack} if "translator" in preset else {"stack": stack}
    spec = model_spec({"preset": preset, "vocab_size": 31, "max_len": 9, **sizes})
    tokens = torch.arange(14).view(2, 7)
    families: Any = {"decoder-only": DecoderOnly, "encoder-only": EncoderOnly, "encoder-decoder": EncoderDecoder}
    with NoFloat64():
        model = families[spec.family](spec, seed=1)
        hidden = model(tokens, tokens[:, :5]) if "translator" in preset else model(tokens)
        hidden.float().logsumexp(-1).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_beam_search() -> None:
    logits = torch.randn(4, 17)
    with NoFloat64():
        values, parents, tokens = best_allowed(
            logits, torch.zeros(2, 2), 40, forbidden=torch.tensor([0]), eos_id=2, is_early=torch.tensor([True, False])
        )
    assert values.shape == parents.shape == tokens.shape == (2, 40)
    assert (values[:, 34:] == -math.inf).all()  # more than all continuations
    assert values.dtype == torch.float32
    assert parents.dtype == tokens.dtype == torch.int64


def test_masked_predictions() -> None:
    stack = {"d_model": 24, "n_layers": 1, "n_heads": 2}
    model = EncoderOnly(model_spec({"preset": "bert-tiny", "vocab_size": 31, "max_len": 9, "stack": stack}), seed=1)  # pyright: ignore[reportArgumentType]
    batch = MaskedBatch(
        inputs=torch.arange(14).view(2, 7), token_mask=None, positions=torch.tensor([1, 8, 13]),
        targets=torch.tensor([4, IGNORE_INDEX, 6]), documents=None,
    )  # fmt: skip
    with NoFloat64():
        used, (logprobs, predicted) = masked._predict(model, batch)  # pyright: ignore[reportPrivateUsage]
    assert used.targets.tolist() == [4, 6]
    assert (logprobs < 0).all()
    assert set(predicted.tolist()) <= set(range(31))
    sums = masked._MaskedSums(np.ones(31))  # pyright: ignore[reportPrivateUsage]
    sums.add(used, logprobs, predicted == used.targets)
    assert sums.nats.dtype == torch.float64  # sums of many tokens are, on the CPU


def test_exact_training_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    check_exact(TrainingSpec(max_steps=1, accelerator="mps"))
    check_exact(TrainingSpec(max_steps=1, accelerator="cpu", exact=True))
    with pytest.raises(UserError, match="exact is not supported on mps"):
        check_exact(TrainingSpec(max_steps=1, accelerator="mps", exact=True))

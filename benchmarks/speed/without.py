"""Ours with a kernel off, one at a time, for what it is worth in a row: PyTorch does its work then, or the kernel that
comes after it."""

from contextlib import ExitStack
from unittest.mock import patch

from benchmarks.speed.contender import SIGN, Contender
from benchmarks.speed.row import Asked, Lineup, Row
from torch import Tensor

# Who asks whether a kernel is to be used: it is not, where that is false.
QUESTIONS = {
    "flash_attention": ("kernel.api.supports_flash_attention",),
    "masked_softmax": ("kernel.masked_softmax.supports_elements",),
    "decode_attention": ("kernel.api.supports_decode_attention",),
    "linear": ("kernel.api.supports_training_linear", "objectives.likelihood.supports_training_linear"),
    "inference_linear": ("kernel.api.supports_inference_linear",),
    "activate": ("kernel.api.supports_activation",),
    "cross_entropy": ("kernel.api.supports_logits",),
    "adam": ("training.optim.adamw.supports_gradients",),
    "fused_step": ("models.stack.fused_layers",),
    "top_tokens": ("kernel.api.supports_scores",),
}


class Without(Contender):
    """`one` without a kernel of `QUESTIONS`."""

    def __init__(self, one: Contender, kernel: str) -> None:
        super().__init__(
            f"{one.name}{SIGN}{kernel}", "off", one.settings, flops=one.flops_per_token, bytes=one.bytes_per_token
        )
        self._one, self._kernel = one, kernel

    def told(self) -> str:
        return self._one.told()

    def setup(self) -> None:
        with self._off():
            self._one.setup()

    def run(self, n: int) -> float:
        with self._off():
            return self._one.run(n)

    def answer(self) -> Tensor | None:
        with self._off():
            return self._one.answer()

    def peak_memory(self) -> int:
        return self._one.peak_memory()

    def close(self) -> None:
        self._one.close()

    def _off(self) -> ExitStack:
        with ExitStack() as stack:
            for question in QUESTIONS[self._kernel]:
                stack.enter_context(patch(f"tercet.{question}", _no))
            return stack.pop_all()


def _no(*_: object, **__: object) -> None:
    return None


def lineup_of(row: Row, asked: Asked) -> Lineup:
    """A row's contenders; and ours once more without each kernel that is to be off, each with a model of its own."""
    lineup = row.lineup(asked)
    for kernel in asked.without:
        lineup.add(*(Without(one, kernel) for one in row.lineup(asked).contenders if one.side == "ours"))
    for one in lineup.contenders:
        one.device = asked.place
    return lineup

"""Tercet with one kernel disabled at a time, for its gain in a row: PyTorch or the next kernel does the work then."""

from contextlib import ExitStack
from unittest.mock import patch

from benchmarks.speed.contender import SIGN, Contender
from benchmarks.speed.row import Asked, Lineup, Row
from torch import Tensor

# Functions that decide whether a kernel is used: it is not used if one of them returns False.
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
    """The contender `one` without a kernel of `QUESTIONS`."""

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
    """Return a row's contenders, and Tercet's again without each disabled kernel, each with a separate model."""
    lineup = row.lineup(asked)
    for kernel in asked.without:
        lineup.add(*(Without(one, kernel) for one in row.lineup(asked).contenders if one.side == "ours"))
    for one in lineup.contenders:
        one.device = asked.place
    return lineup

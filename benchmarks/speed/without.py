"""Tercet with one kernel disabled at a time, for its gain in a row: PyTorch or the next kernel does the work then."""

from contextlib import ExitStack
from unittest.mock import patch

from benchmarks.speed.contender import SIGN, Contender
from benchmarks.speed.row import Lineup, Options, Row
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
    """The contender `contender` without a kernel of `QUESTIONS`."""

    def __init__(self, contender: Contender, kernel: str) -> None:
        super().__init__(
            f"{contender.name}{SIGN}{kernel}",
            "off",
            contender.settings,
            flops=contender.flops_per_token,
            bytes=contender.bytes_per_token,
        )
        self._contender, self._kernel = contender, kernel

    def describe(self) -> str:
        return self._contender.describe()

    def setup(self) -> None:
        with self._off():
            self._contender.setup()

    def run(self, n: int) -> float:
        with self._off():
            return self._contender.run(n)

    def answer(self) -> Tensor | None:
        with self._off():
            return self._contender.answer()

    def peak_memory(self) -> int:
        return self._contender.peak_memory()

    def close(self) -> None:
        self._contender.close()

    def _off(self) -> ExitStack:
        with ExitStack() as stack:
            for question in QUESTIONS[self._kernel]:
                stack.enter_context(patch(f"tercet.{question}", _no))
            return stack.pop_all()


def _no(*_: object, **__: object) -> None:
    return None


def full_lineup(row: Row, options: Options) -> Lineup:
    """Return a row's contenders, and Tercet's again without each disabled kernel, each with a separate model."""
    lineup = row.lineup(options)
    for kernel in options.without:
        lineup.add(
            *(Without(contender, kernel) for contender in row.lineup(options).contenders if contender.side == "ours")
        )
    for contender in lineup.contenders:
        contender.device = options.place
    return lineup

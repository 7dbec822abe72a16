"""A contender in a row: set up once, then called for n units of the row's work."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from benchmarks.speed.machine import peak_memory
from torch import Tensor

# The kind of contender: Tercet; Tercet with a kernel disabled; another library as its README runs it; another library
# tuned for this machine; or a lower bound.
Side = Literal["ours", "off", "readme", "peer", "limit"]
SIGN = ", without "  # between the name of Tercet's contender and the disabled kernel
ALLOWED_DIFFERENCE = {"cpu": 1e-4, "cuda": 1e-3}  # allowed difference of logits with the same weights, by device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The way in which a contender computes.

    Args:
        precision: Precision of the arithmetic; bf16 is autocast, int8 applies to the weights only.
        matmul: Argument of `torch.set_float32_matmul_precision`; "medium" enables oneDNN on a CPU.
        attention: Short name of the implementation of attention.
        compiled: If True, use `torch.compile`.
        mode: Argument of `torch.compile`; None for its default.
        dynamic: Argument of `torch.compile`; None for its default.
        fused: If True, the optimizer is one kernel; None if there is no optimizer.
        keeps_memory: If True, freed memory is kept for reuse, as in `tercet train`; requires a separate process.
        note: Further description.
    """

    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    matmul: Literal["highest", "high", "medium"] = "highest"
    attention: str = ""
    compiled: bool = False
    mode: str | None = None
    dynamic: bool | None = None
    fused: bool | None = None
    keeps_memory: bool = False
    note: str = ""

    def describe(self) -> str:
        words = [
            self.precision,
            *(["oneDNN"] if self.matmul != "highest" and self.precision == "fp32" else []),
            *([f"{self.attention} attention"] if self.attention else []),
            *(["compiled"] if self.compiled else []),
            *([self.mode] if self.mode else []),
            *(["dynamic shapes"] if self.dynamic else []),
            *([] if self.fused is None else ["fused optimizer" if self.fused else "plain optimizer"]),
            *([self.note] if self.note else []),
        ]
        return ", ".join(words)

    @contextmanager
    def apply(self) -> Generator[None]:
        """Apply the settings to this process within the block.

        The matmul precision and the compiler's cache belong to the process: without isolation, a second shape of a
        function would be compiled as dynamic.
        """
        previous = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.matmul)
        with ExitStack() as stack:
            if self.compiled and self.dynamic is False:
                import torch._dynamo as dynamo

                stack.enter_context(dynamo.config.patch(automatic_dynamic_shapes=False))
            try:
                yield
            finally:
                torch.set_float32_matmul_precision(previous)

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")


class Contender:
    """A participant of a row.

    Args:
        name: Unique name within the row.
        flops: FLOPs per token, if arithmetic bounds the work; the row's count, equal for all contenders.
        bytes: Bytes read per token, if memory bounds the work.

    Attributes:
        device: Device of the work; set by the row's measurement before `setup`.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        name: str,
        side: Side,
        settings: Settings,
        *,
        flops: float | None = None,
        bytes: float | None = None,  # named after the unit
    ) -> None:
        self.name, self.side, self.settings = name, side, settings
        self.flops_per_token, self.bytes_per_token = flops, bytes

    def describe(self) -> str:
        """Return a description of the settings."""
        return self.settings.describe()

    def setup(self) -> None:
        """Do all one-time work: weights, optimizer, folders."""

    def run(self, n: int) -> float:
        """Do n units of work, and return the number of tokens, sentences or starts."""
        raise NotImplementedError

    def answer(self) -> Tensor | None:
        """Return the output for the row's first input, to compare with Tercet's; None if the weights differ."""
        return None

    def peak_memory(self) -> int:
        """Return the peak memory of the contender's process in bytes."""
        return peak_memory()

    def close(self) -> None:
        """Release all resources."""


class Function(Contender):
    """A contender that is a function of n, for work that needs no model and has no precision."""

    def __init__(
        self,
        name: str,
        side: Side,
        work: Callable[[int], float],
        *,
        note: str = "",
        answer: Callable[[], Tensor | None] | None = None,
        setup: Callable[[], None] | None = None,
        flops: float | None = None,
        bytes: float | None = None,
    ) -> None:
        super().__init__(name, side, Settings(note=note), flops=flops, bytes=bytes)
        self._work, self._answer, self._setup = work, answer, setup

    def describe(self) -> str:
        return self.settings.note

    def setup(self) -> None:
        if self._setup is not None:
            self._setup()

    def run(self, n: int) -> float:
        return self._work(n)

    def answer(self) -> Tensor | None:
        return None if self._answer is None else self._answer()


def max_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the maximum difference of two answers; infinite if their shapes differ or a number is NaN."""
    if ours.shape != theirs.shape:
        return float("inf")
    distance = float((ours.double() - theirs.double()).abs().max()) if ours.numel() else 0.0
    return distance if distance == distance else float("inf")

"""What takes part in a row: something that gets ready once, and then does n units of the row's work when told to."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from benchmarks.speed.machine import peak_memory
from torch import Tensor

# Whose figure it is: ours; ours with a kernel off; a peer as its README runs it; a peer set up for this machine; or
# what nobody can be below.
Side = Literal["ours", "off", "readme", "peer", "limit"]
SIGN = ", without "  # between the name of ours and of the kernel that is off
SAME = {"cpu": 1e-4, "cuda": 1e-3}  # how far logits of the same weights may lie apart, on a device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a contender computes.

    Args:
        precision: of the arithmetic; fp32 keeps everything so, bf16 is autocast, int8 is of the weights.
        matmul: what `torch.set_float32_matmul_precision` is told; "medium" lets oneDNN in on a CPU.
        attention: how it is worked out, in a word.
        compiled: by `torch.compile`.
        mode, dynamic: arguments of `torch.compile`; None for its defaults.
        fused: the optimizer in one kernel; None where there is no optimizer.
        keeps_memory: what is freed is kept for what comes next, as `tercet train` has it; in a process of its own.
        more: anything else worth telling.
    """

    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    matmul: Literal["highest", "high", "medium"] = "highest"
    attention: str = ""
    compiled: bool = False
    mode: str | None = None
    dynamic: bool | None = None
    fused: bool | None = None
    keeps_memory: bool = False
    more: str = ""

    def told(self) -> str:
        words = [
            self.precision,
            *(["oneDNN"] if self.matmul != "highest" and self.precision == "fp32" else []),
            *([f"{self.attention} attention"] if self.attention else []),
            *(["compiled"] if self.compiled else []),
            *([self.mode] if self.mode else []),
            *(["dynamic shapes"] if self.dynamic else []),
            *([] if self.fused is None else ["fused optimizer" if self.fused else "plain optimizer"]),
            *([self.more] if self.more else []),
        ]
        return ", ".join(words)

    @contextmanager
    def in_force(self) -> Generator[None]:
        """The matmul precision belongs to the process: each contender finds its own, and the next one its own. So does
        what the compiler has seen: a second shape of one function would be compiled as a dynamic one."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.matmul)
        with ExitStack() as stack:
            if self.compiled and self.dynamic is False:
                import torch._dynamo as dynamo

                stack.enter_context(dynamo.config.patch(automatic_dynamic_shapes=False))
            try:
                yield
            finally:
                torch.set_float32_matmul_precision(before)

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")


class Contender:
    """Args:
    name: unlike that of any other in its row.
    flops: of a token, where arithmetic bounds the work; the row's own count, the same for all.
    bytes: read for a token, where memory bounds it.

    Attributes:
        device: where it works; set by the row's measurement before `setup`.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        name: str,
        side: Side,
        settings: Settings,
        *,
        flops: float | None = None,
        bytes: float | None = None,  # as the units are called everywhere
    ) -> None:
        self.name, self.side, self.settings = name, side, settings
        self.flops_per_token, self.bytes_per_token = flops, bytes

    def told(self) -> str:
        """Its settings in words."""
        return self.settings.told()

    def setup(self) -> None:
        """Everything that is done once: weights, optimizer, folders."""

    def run(self, n: int) -> float:
        """Do n units of work; how many tokens (or sentences, or starts) they were."""
        raise NotImplementedError

    def answer(self) -> Tensor | None:
        """What it makes of the row's first input, to be held against ours; None where it can't hold our weights."""
        return None

    def peak_memory(self) -> int:
        """The most bytes of memory that the process ever had in which it works."""
        return peak_memory()

    def close(self) -> None:
        """Let go of what it holds."""


class Function(Contender):
    """A contender that is a function of n; for work that needs no model, and so has no precision to tell of."""

    def __init__(
        self,
        name: str,
        side: Side,
        work: Callable[[int], float],
        *,
        more: str = "",
        answer: Callable[[], Tensor | None] | None = None,
        setup: Callable[[], None] | None = None,
        flops: float | None = None,
        bytes: float | None = None,
    ) -> None:
        super().__init__(name, side, Settings(more=more), flops=flops, bytes=bytes)
        self._work, self._answer, self._setup = work, answer, setup

    def told(self) -> str:
        return self.settings.more

    def setup(self) -> None:
        if self._setup is not None:
            self._setup()

    def run(self, n: int) -> float:
        return self._work(n)

    def answer(self) -> Tensor | None:
        return None if self._answer is None else self._answer()


def apart(ours: Tensor, theirs: Tensor) -> float:
    """How far two answers lie apart at most; infinite where their shapes differ or a number is none."""
    if ours.shape != theirs.shape:
        return float("inf")
    distance = float((ours.double() - theirs.double()).abs().max()) if ours.numel() else 0.0
    return distance if distance == distance else float("inf")

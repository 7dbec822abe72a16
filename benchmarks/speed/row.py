"""A row: one kind of work, and its contenders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from benchmarks.speed.contender import Contender

Scale = Literal["full", "quick", "tiny"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command line that rows use.

    Args:
        scale: Sizes: full for the table, quick for `make bench-quick`, tiny for tests.
        device: Device of the rows.
        folder: Folder for the files of a row.
        bf16: If True, the device multiplies bf16 in hardware.
        nanogpt: Checkout of nanoGPT.
        joeynmt: Installation of JoeyNMT.
        translator: Folder of a trained translator, for beam search.
        only: Prefixes of the names of contenders to run; all of them if empty.
        without: Kernels, each of which is disabled in an additional contender.
    """

    folder: Path
    device: Device = "cpu"
    scale: Scale = "full"
    bf16: bool = False
    nanogpt: Path | None = None
    joeynmt: Path | None = None
    translator: Path | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def place(self) -> torch.device:
        """Return the device of the models; at tiny scale the rows of a GPU run without one too."""
        dry = self.scale == "tiny" and not torch.cuda.is_available()
        return torch.device("cpu" if dry else self.device)

    def to_device(self, batch: Any) -> Any:
        """Return a named tuple of tensors, moved to the device."""
        return type(batch)(*(None if part is None else part.to(self.place) for part in batch))


@dataclass
class Lineup:
    """The contenders of a row, and the reasons why others are left out."""

    contenders: list[Contender] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, *contenders: Contender) -> None:
        self.contenders += contenders

    def keep(self, only: Sequence[str]) -> None:
        """Keep only the contenders with these prefixes, or all if there are none."""
        selected = (
            [contender for contender in self.contenders if contender.name.startswith(tuple(only))]
            if only
            else self.contenders
        )
        if len(selected) < len(self.contenders):
            self.leave_out("others", f"only {', '.join(only)} was asked for")
        self.contenders = selected

    def leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why

    def try_to(self, name: str, make: Callable[[], list[Contender]]) -> None:
        """Add the contenders that `make` returns, or note the missing package."""
        try:
            self.contenders += make()
        except ModuleNotFoundError as error:
            self.leave_out(name, f"the package {error.name} is not installed")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of work.

    Args:
        name: Name on the command line.
        title: Description of the work.
        unit: Counted unit: tokens, sentences, starts.
        lineup: Function that creates the contenders; they build nothing before their `setup`.
        seconds_each: If True, figures are seconds per unit instead of units per second.
        gigabytes: Memory that all contenders together need at full scale.
        memory: If True, measure peak memory, each contender in a separate process.
        weight: Weight of the row when the time of a run is divided among its rows.
        separate_processes: If True, every contender runs in a separate process, with its own freed memory. Otherwise
            they share one, except for those that keep memory.
    """

    name: str
    title: str
    lineup: Callable[[Options], Lineup]
    unit: str = "tokens"
    seconds_each: bool = False
    gigabytes: float = 1.0
    memory: bool = True
    weight: float = 1.0
    separate_processes: bool = False

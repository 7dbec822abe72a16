"""A row: one kind of work, and who is there to do it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from benchmarks.speed.contender import Contender

Scale = Literal["full", "quick", "tiny"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says that rows need to know.

    Args:
        scale: full for the sizes of the table, quick for `make bench-quick`, tiny for tests.
        device: whose rows they are.
        folder: where a row may write what it needs.
        bf16: whether the device multiplies bf16 in hardware.
        nanogpt, joeynmt: a checkout of the one, an installation of the other.
        translator: the folder of a trained translator, for beam search.
        only: how the names of the contenders begin that are wanted; all of them, where it is empty.
    without: kernels, each of which is off in a contender of its own.
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
        """The device of the models; at tiny scale the rows of a GPU run without one, too."""
        dry = self.scale == "tiny" and not torch.cuda.is_available()
        return torch.device("cpu" if dry else self.device)

    def moved(self, batch: Any) -> Any:
        """A named tuple of tensors, on the device."""
        return type(batch)(*(None if part is None else part.to(self.place) for part in batch))


@dataclass
class Lineup:
    """Who takes part in a row, and who doesn't and why."""

    contenders: list[Contender] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, *contenders: Contender) -> None:
        self.contenders += contenders

    def keep(self, only: Sequence[str]) -> None:
        """Those alone whose names begin so; all, where nothing is asked for."""
        asked = [one for one in self.contenders if one.name.startswith(tuple(only))] if only else self.contenders
        if len(asked) < len(self.contenders):
            self.leave_out("others", f"only {', '.join(only)} was asked for")
        self.contenders = asked

    def leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why

    def try_to(self, name: str, make: Callable[[], list[Contender]]) -> None:
        """Add what `make` gives, or say which package it lacks."""
        try:
            self.contenders += make()
        except ModuleNotFoundError as error:
            self.leave_out(name, f"the package {error.name} is not installed")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Args:
    name: as the command line calls it.
    title: what the work is.
    unit: what is counted: tokens, sentences, starts.
    lineup: makes the contenders; they build nothing before their `setup`.
    seconds_each: figures are told as seconds a unit in place of units a second.
    gigabytes: the memory that all contenders together need at full scale.
    memory: whether peak memory is measured, each contender in a process of its own.
    weight: of the row, when the time of a run is divided among its rows.
    apart: every contender works in a process of its own, and finds what it has freed itself. Others share one, but for
        those that keep memory.
    """

    name: str
    title: str
    lineup: Callable[[Asked], Lineup]
    unit: str = "tokens"
    seconds_each: bool = False
    gigabytes: float = 1.0
    memory: bool = True
    weight: float = 1.0
    apart: bool = False

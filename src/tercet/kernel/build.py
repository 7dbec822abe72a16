"""Which kernels a process has: those that came with the wheel for a CPU like this one, else those that this machine
compiled. Where neither can be had, or TERCET_KERNEL=off is set, there are none, and everything goes the plain way: the
same results, up to rounding.

Which instructions a kernel uses decides how it rounds. So the choice is made once, before the first result, and whoever
comes first waits for the compiler, at most a minute on a machine where it never ends. To go on plainly meanwhile and
change when it is done would make what is computed depend on how long that took.
"""

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast

import torch

from tercet.cache_dir import UntrustedFile
from tercet.config import UserError
from tercet.kernel.levels import (
    NATIVE,
    PREBUILT,
    CompilerError,
    Level,
    best_level,
    cpu_instructions,
    levels_of,
    missing_instructions,
)
from tercet.kernel.library_cache import find_or_compile, read_code
from tercet.kernel.signatures import BFLOAT16, SIGNATURES
from tercet.messages import print_note, show

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class KernelChoice:
    """Which kernels this process has.

    Args:
        level: their instructions, as `TERCET_KERNEL` names them; "none" where there are no kernels.
        origin: "prebuilt" came with the wheel, "compiled" was made on this machine.
        reason: why it is these, in a line.
        library: the kernels; None where there are none.
    """

    level: str
    origin: Literal["prebuilt", "compiled", "none"]
    reason: str
    library: ctypes.CDLL | None = None


def constant_when_compiled(function: Function) -> Function:
    """What `torch.compiler.assume_constant_result` does, without its import of the compiler, which takes a second."""
    cast(Any, function)._dynamo_marked_constant = True
    return function


@cache
def choose_kernels() -> KernelChoice:
    """The kernels of this process: the highest level that the CPU runs, or the one that TERCET_KERNEL names.

    Raises:
        UserError: where TERCET_KERNEL names none, or one that this CPU would die of.
    """
    requested = os.environ.get("TERCET_KERNEL") or "auto"
    if requested == "off":
        return KernelChoice("none", "none", "TERCET_KERNEL=off")
    level, reason = _choose_level(requested)
    prebuilt, missing = PREBUILT / f"{level.name}.so", "the installed package has no kernels for it"
    if prebuilt.exists():
        try:
            return KernelChoice(level.name, "prebuilt", reason, _load(prebuilt))
        except (OSError, AttributeError) as error:
            missing = f"those of the installed package cannot be loaded ({error})"
    if level != NATIVE:
        reason = f"{reason}; {missing}"
    try:
        compiled_level, path = find_or_compile(
            [level] if requested == level.name or level == NATIVE else [level, NATIVE]
        )
        if compiled_level != level:
            reason = f"{reason}; the compiler cannot make {level.name}"
        return KernelChoice(compiled_level.name, "compiled", reason, _load(path))
    except UntrustedFile as error:
        print_note(f"tercet: no compiled kernels are used: {error}")
        failure = str(error)
    except (CompilerError, OSError, UserError, AttributeError) as error:
        failure = str(error)
    return KernelChoice("none", "none", f"{level.name}, {reason}; {failure}")


def library() -> ctypes.CDLL | None:
    """The kernels; None where this machine can't have them."""
    return choose_kernels().library


def warm_up() -> bool:
    """Load the kernels, and compile them before where there are none for this machine: now, not within the first
    operation that asks for one.

    Returns:
        whether there are some.
    """
    return library() is not None


def build_id() -> str | None:
    """Which kernels these are: their level and the hash of their code, wherever they come from. None where there are
    none."""
    choice = choose_kernels()
    return None if choice.library is None else f"{choice.level}-{_hash_code(Path(choice.library._name))}"


def kernels() -> ctypes.CDLL:
    """The compiled kernels, for those who know that there are some."""
    dll = library()
    assert dll is not None
    return dll


def kernel_of(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """The one of this name for such numbers, of those that come in float32 and in bfloat16.

    Raises:
        NotImplementedError: where the CPU does not multiply these.
    """
    function = getattr(kernels(), f"{name}_{str(dtype).removeprefix('torch.')}", None)
    if function is None:
        raise NotImplementedError(f"{name}: kernels of the level {choose_kernels().level} do not multiply {dtype}")
    return function


def mask_strides(mask: torch.Tensor | None) -> tuple[int, int]:
    """From row to row and from query to query of a mask (B or 1, 1, T or 1, S) without gaps; 0 where one serves all."""
    if mask is None:
        return 0, 0
    return mask.stride(0) if len(mask) > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0


def supports_elements(x: torch.Tensor, min_elements: int) -> bool:
    """Whether these numbers, float32 or bfloat16, are ones for a kernel that pays from so many on."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() >= min_elements
        and library() is not None
    )


@constant_when_compiled
def has_kernels() -> bool:
    """Whether there are kernels here, in words that `torch.compile` follows."""
    return library() is not None


@constant_when_compiled
def multiplies_bfloat16() -> bool:
    """Whether the kernels were compiled for a CPU that multiplies bfloat16 (AVX-512 BF16)."""
    dll = library()
    return dll is not None and all(hasattr(dll, name) for name in BFLOAT16)


def _choose_level(requested: str) -> tuple[Level, str]:
    """The level, and why this one."""
    machine, cpu = platform.machine(), cpu_instructions()
    levels = {level.name: level for level in (*levels_of(machine), NATIVE)}
    if requested in levels:
        if missing := missing_instructions(levels[requested], cpu):
            _reject(f"needs {', '.join(missing)}, which this CPU has not", levels)
        return levels[requested], f"TERCET_KERNEL={requested}"
    if requested != "auto":
        _reject("is no level of this machine", levels)
    level = best_level(machine, cpu)
    if level != NATIVE:
        return level, "the highest level whose instructions this CPU has"
    return level, "this CPU has the instructions of no level"


def _reject(problem: str, levels: dict[str, Level]) -> NoReturn:
    raise UserError(
        f"TERCET_KERNEL={show(os.environ['TERCET_KERNEL'])} {problem}; set it to one of auto, off, {', '.join(levels)}"
    )


def _load(path: Path) -> ctypes.CDLL:
    dll = ctypes.CDLL(str(path))
    for name, arguments in SIGNATURES.items():
        if name in BFLOAT16 and not hasattr(dll, name):
            continue
        function = getattr(dll, name)
        function.argtypes, function.restype = arguments, None
        setattr(dll, name, _interruptible(function))
    return dll


def _interruptible(function: Callable[..., None]) -> Callable[..., None]:
    """Let Ctrl-C while arguments are converted be Ctrl-C: ctypes raises an error of its own in its place."""

    def call(*arguments: Any) -> None:
        try:
            function(*arguments)
        except ctypes.ArgumentError as error:
            if KeyboardInterrupt.__name__ in str(error):
                raise KeyboardInterrupt from None
            raise

    return call


@cache
def _hash_code(path: Path) -> str:
    return hashlib.sha256(read_code(path)).hexdigest()[:24]

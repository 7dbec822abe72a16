"""Selection of the kernels of a process: those of the wheel, or those compiled on this machine.

If neither exists, or TERCET_KERNEL=off is set, there are no kernels and PyTorch computes the same results, up to
rounding.

The instructions of a kernel determine its rounding. The choice is therefore made once, before the first result, and
the first caller waits for the compiler, for at most one minute. If PyTorch were used in the meantime, results would
depend on how long compiling takes.
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
    """The kernels of this process.

    Args:
        level: Instruction set, as in `TERCET_KERNEL`; "none" without kernels.
        origin: "prebuilt" for kernels of the wheel, "compiled" for kernels that were compiled on this machine, "none"
            without kernels.
        reason: Reason for the choice of these kernels, or for their absence, in one line.
        library: Library with the kernels; None without kernels.
    """

    level: str
    origin: Literal["prebuilt", "compiled", "none"]
    reason: str
    library: ctypes.CDLL | None = None


def constant_when_compiled(function: Function) -> Function:
    """Mark a function as `torch.compiler.assume_constant_result` does, and return it.

    `assume_constant_result` would import the compiler, which takes a second.
    """
    cast(Any, function)._dynamo_marked_constant = True
    return function


@cache
def choose_kernels() -> KernelChoice:
    """Return the kernels of the highest level that the CPU supports, or of the level in TERCET_KERNEL.

    Raises:
        UserError: If TERCET_KERNEL is unknown, or requires instructions that this CPU does not support.
    """
    requested = os.environ.get("TERCET_KERNEL") or "auto"
    if requested == "off":
        return KernelChoice("none", "none", "TERCET_KERNEL=off")
    level, reason = _choose_level(requested)
    prebuilt, missing = PREBUILT / f"{level.name}.so", "the installed package has no kernels for this level"
    if prebuilt.exists():
        try:
            return KernelChoice(level.name, "prebuilt", reason, _load(prebuilt))
        except (OSError, AttributeError) as error:
            missing = f"the kernels of the installed package cannot be loaded ({error})"
    if level != NATIVE:
        reason = f"{reason}; {missing}"
    try:
        compiled_level, path = find_or_compile(
            [level] if requested == level.name or level == NATIVE else [level, NATIVE]
        )
        if compiled_level != level:
            reason = f"{reason}; the compiler does not support {level.name}"
        return KernelChoice(compiled_level.name, "compiled", reason, _load(path))
    except UntrustedFile as error:
        print_note(f"tercet: no compiled kernels, using PyTorch: {error}")
        failure = str(error)
    except (CompilerError, OSError, UserError, AttributeError) as error:
        failure = str(error)
    return KernelChoice("none", "none", f"{level.name}, {reason}; {failure}")


def library() -> ctypes.CDLL | None:
    """Return the library with the kernels; None if there are none (`choose_kernels` returns the reason)."""
    return choose_kernels().library


def warm_up() -> bool:
    """Load the kernels now instead of at their first use. Compile them if necessary.

    Returns:
        True if there are kernels.
    """
    return library() is not None


def build_id() -> str | None:
    """Return the level of the kernels and the hash of their code; None without kernels.

    The hash is the same for prebuilt and compiled kernels with the same code.
    """
    choice = choose_kernels()
    return None if choice.library is None else f"{choice.level}-{_hash_code(Path(choice.library._name))}"


def kernels() -> ctypes.CDLL:
    """Return the library with the kernels, which must exist."""
    dll = library()
    assert dll is not None
    return dll


def kernel_of(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """Return the version of a kernel for this dtype, float32 or bfloat16.

    Raises:
        NotImplementedError: If the kernels of this process do not contain this version.
    """
    function = getattr(kernels(), f"{name}_{str(dtype).removeprefix('torch.')}", None)
    if function is None:
        raise NotImplementedError(f"{name}: kernels of level {choose_kernels().level} do not support {dtype}")
    return function


def mask_strides(mask: torch.Tensor | None) -> tuple[int, int]:
    """Return the strides of rows and queries of a contiguous mask (B or 1, 1, T or 1, S).

    Broadcast axes have stride 0.
    """
    if mask is None:
        return 0, 0
    return mask.stride(0) if len(mask) > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0


def supports_elements(x: torch.Tensor, min_elements: int) -> bool:
    """Return whether this tensor is float32 or bfloat16 on a CPU and has at least `min_elements` elements."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() >= min_elements
        and library() is not None
    )


@constant_when_compiled
def has_kernels() -> bool:
    """Return whether there are kernels, in a form that `torch.compile` supports."""
    return library() is not None


@constant_when_compiled
def multiplies_bfloat16() -> bool:
    """Return whether the kernels were compiled for a CPU that multiplies bfloat16 (AVX-512 BF16)."""
    dll = library()
    return dll is not None and all(hasattr(dll, name) for name in BFLOAT16)


def _choose_level(requested: str) -> tuple[Level, str]:
    """Return the level and the reason for it."""
    machine, cpu = platform.machine(), cpu_instructions()
    levels = {level.name: level for level in (*levels_of(machine), NATIVE)}
    if requested in levels:
        if missing := missing_instructions(levels[requested], cpu):
            _reject(f"requires {', '.join(missing)}, which this CPU does not support", levels)
        return levels[requested], f"TERCET_KERNEL={requested}"
    if requested != "auto":
        _reject("is not a level of this machine", levels)
    level = best_level(machine, cpu)
    if level != NATIVE:
        return level, "the highest level that this CPU supports"
    return level, "this CPU does not support any level"


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
    """Wrap a kernel so that Ctrl-C during the conversion of its arguments raises KeyboardInterrupt.

    ctypes would raise an ArgumentError instead.
    """

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

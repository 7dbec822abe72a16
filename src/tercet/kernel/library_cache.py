"""The kernels that this machine compiled: once, in seconds, and kept. That its compiler failed is kept as well, so that
the next process does not wait for it again.

What is kept is code that runs at the next start: a library that others could have written is not loaded, and one that
is not whole is compiled anew.

    <sha256 of sources, flags, compiler and, for `native`, the CPU>.so:    the library | sha256 of its bytes
    <the same>.failed:    why there is none, in a line
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from tercet.cache_dir import UntrustedFile, cache_dir, check_owner
from tercet.kernel.levels import (
    CPP,
    FLAGS,
    NATIVE,
    SOURCE,
    CompilerError,
    CompilerTimeout,
    Level,
    compile_kernels,
    cpu_instructions,
    find_compiler,
)
from tercet.messages import one_line, print_note
from tercet.storage import lock_file

FAILURE_LIFETIME = 24 * 3600.0  # seconds for which a failure is believed: what was missing may have been installed


def find_or_compile(levels: Sequence[Level]) -> tuple[Level, Path]:
    """The first of these levels for which this machine has kernels, the user's own and whole, or can compile some.

    Raises:
        UntrustedFile: where others could have written them.
        CompilerError: where there is no compiler, or it fails, or failed before.
        OSError, UserError: where they cannot be kept.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilerError(f"no C++ compiler is found ({os.environ.get('CXX') or 'c++'})")
    folder = cache_dir() / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = folder.resolve()  # from here on no link is followed
    check_owner(folder)
    is_announced, reason = False, ""
    for place, level in enumerate(levels):
        target = folder / f"{_identify(level, compiler)}.so"
        line = "compiling kernels once, 15 s"
        if os.path.lexists(target):
            check_owner(target)
            if _is_whole(target):
                return level, target
            line = f"{target} is damaged; the kernels are compiled anew"
        if failure := _read_failure(target):
            reason = f"{failure} (tried again after a day, or when {_failure_path(target)} is removed)"
            continue
        if not is_announced:
            print_note(f"tercet: {line}")
            is_announced = True
        try:
            with lock_file(target.with_suffix(".lock")):
                if not (os.path.lexists(target) and _is_whole(target)):  # by a process that started with this one
                    _compile(level, compiler, target)
            return level, target
        except CompilerError as error:
            reason = one_line(str(error))
            # It may be older than a level and know this CPU all the same; one that hangs would hang again.
            for failed_level in levels[place:] if isinstance(error, CompilerTimeout) else [level]:
                with suppress(OSError):
                    _failure_path(folder / f"{_identify(failed_level, compiler)}.so").write_text(
                        reason, encoding="utf-8"
                    )
    if is_announced:
        print_note(f"tercet: no compiled kernels, PyTorch does the work: {reason}")
    raise CompilerError(reason)


def read_code(path: Path) -> bytes:
    """A library's bytes, without the hash that stands behind those that were compiled here."""
    content = path.read_bytes()
    end = _end_of_code(content)
    return content if end is None else content[:end]


def _compile(level: Level, compiler: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:  # beside its place: whole there, or not at all
        library = Path(scratch) / "kernels.so"
        compile_kernels(compiler, level, library)
        with library.open("ab") as file:  # the loader reads no further than the library's own end
            file.write(hashlib.sha256(library.read_bytes()).digest())
        library.chmod(0o600)  # whatever the umask is
        library.replace(target)


def _identify(level: Level, compiler: str) -> str:
    """A name for what the compiler would make: another one where sources, flags, the compiler or the CPU are others."""
    program = Path(compiler).resolve()
    status = program.stat()  # a compiler that is replaced has another size or time
    cpu = sorted(cpu_instructions()) or [torch.backends.cpu.get_cpu_capability()] if level == NATIVE else []
    sources = [path.read_text() for path in sorted([SOURCE, *CPP.glob("*.h")])]
    return _hash(*sources, *FLAGS, *level.flags, str(program), str(status.st_size), str(status.st_mtime_ns), *cpu)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _failure_path(target: Path) -> Path:
    return target.with_suffix(".failed")


def _read_failure(target: Path) -> str | None:
    """Why the compiler failed when it was last tried; None where it did not, or that is long ago."""
    path = _failure_path(target)
    try:
        if not 0 <= time.time() - path.lstat().st_mtime < FAILURE_LIFETIME:
            return None
        check_owner(path)
        return one_line(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, UntrustedFile):
        return None


def _is_whole(library: Path) -> bool:
    """Whether the bytes are those that were written: of a part of them, the loader would die by a signal."""
    return _end_of_code(library.read_bytes()) is not None


def _end_of_code(content: bytes) -> int | None:
    """Where the hash of what stands before it begins; None where there is no such hash."""
    end = len(content) - hashlib.sha256().digest_size
    return end if end > 0 and hashlib.sha256(memoryview(content)[:end]).digest() == content[end:] else None

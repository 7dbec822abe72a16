"""Cache of the kernels compiled on this machine, and of compiler failures.

Processes wait only while the kernels are compiled for the first time; later ones run the code in the cache. A library
that other users could have written is therefore not loaded, and a damaged one is compiled again.

    HASH.so        the library, followed by the sha256 of its bytes
    HASH.failed    the reason of a failure, in one line

HASH is the first 24 digits of the sha256 of sources, flags, the compiler's path, size and time and, for `native`, the
CPU.
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

FAILURE_LIFETIME = 24 * 3600.0  # seconds after which to retry; a missing tool may have been installed


def find_or_compile(levels: Sequence[Level]) -> tuple[Level, Path]:
    """Return the first of these levels that has kernels in the cache or can be compiled, and the path of its library.

    Raises:
        UntrustedFile: If other users could have written the kernels.
        CompilerError: If there is no compiler, or it fails or failed before.
        OSError, UserError: If the kernels cannot be stored.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilerError(f"no C++ compiler found ({os.environ.get('CXX') or 'c++'})")
    folder = cache_dir() / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = folder.resolve()  # no link is followed after this
    check_owner(folder)
    is_announced, reason = False, ""
    for place, level in enumerate(levels):
        target = folder / f"{_identify(level, compiler)}.so"
        line = "compiling the CPU kernels once, which takes about 15 s"
        if os.path.lexists(target):
            check_owner(target)
            if _is_whole(target):
                return level, target
            line = f"{target} is damaged; compiling the kernels again"
        if failure := _read_failure(target):
            reason = f"{failure} (retried after a day, or when {_failure_path(target)} is removed)"
            continue
        if not is_announced:
            print_note(f"tercet: {line}")
            is_announced = True
        try:
            with lock_file(target.with_suffix(".lock")):
                if not (os.path.lexists(target) and _is_whole(target)):  # another process may have compiled it
                    _compile(level, compiler, target)
            return level, target
        except CompilerError as error:
            reason = one_line(str(error))
            # The compiler may be too old for a level and still support this CPU. A timeout would be repeated.
            for failed_level in levels[place:] if isinstance(error, CompilerTimeout) else [level]:
                with suppress(OSError):
                    _failure_path(folder / f"{_identify(failed_level, compiler)}.so").write_text(
                        reason, encoding="utf-8"
                    )
    if is_announced:
        print_note(f"tercet: no compiled kernels, using PyTorch: {reason}")
    raise CompilerError(reason)


def read_code(path: Path) -> bytes:
    """Return the bytes of a library, without the hash at the end of a library that was compiled on this machine."""
    content = path.read_bytes()
    end = _end_of_code(content)
    return content if end is None else content[:end]


def _compile(level: Level, compiler: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:  # in the same folder, so that the rename is atomic
        library = Path(scratch) / "kernels.so"
        compile_kernels(compiler, level, library)
        with library.open("ab") as file:  # the loader ignores bytes after the library's end
            file.write(hashlib.sha256(library.read_bytes()).digest())
        library.chmod(0o600)  # regardless of the umask
        library.replace(target)


def _identify(level: Level, compiler: str) -> str:
    """Return a name that depends on sources, flags, compiler and, for `native`, the CPU."""
    program = Path(compiler).resolve()
    status = program.stat()  # a replaced compiler has another size or time
    cpu = sorted(cpu_instructions()) or [torch.backends.cpu.get_cpu_capability()] if level == NATIVE else []
    sources = [path.read_text(encoding="utf-8") for path in sorted([SOURCE, *CPP.glob("*.h")])]
    return _hash(*sources, *FLAGS, *level.flags, str(program), str(status.st_size), str(status.st_mtime_ns), *cpu)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _failure_path(target: Path) -> Path:
    return target.with_suffix(".failed")


def _read_failure(target: Path) -> str | None:
    """Return the reason of the compiler's last failure; None if there was none in the last `FAILURE_LIFETIME`."""
    path = _failure_path(target)
    try:
        if not 0 <= time.time() - path.lstat().st_mtime < FAILURE_LIFETIME:
            return None
        check_owner(path)
        return one_line(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, UntrustedFile):
        return None


def _is_whole(library: Path) -> bool:
    """Return whether the library is complete. Loading a truncated one would kill the process."""
    return _end_of_code(library.read_bytes()) is not None


def _end_of_code(content: bytes) -> int | None:
    """Return the offset of the trailing hash of all bytes before it; None if there is no such hash."""
    end = len(content) - hashlib.sha256().digest_size
    return end if end > 0 and hashlib.sha256(memoryview(content)[:end]).digest() == content[end:] else None

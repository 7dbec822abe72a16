"""Kinds of file damage: disk errors, truncated copies, and files of another folder."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

PAGE = 4096


def _flip(third: int) -> Callable[[Path, random.Random], None]:
    def flip(path: Path, chance: random.Random) -> None:
        data = bytearray(path.read_bytes())
        start, end = (len(data) * bound // 3 for bound in (third, third + 1))
        data[chance.randrange(start, max(start + 1, end))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)

    return flip


def _truncate(path: Path, size: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:size])


def _zero_page(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = chance.randrange(-(-len(data) // PAGE)) * PAGE
    end = min(len(data), start + PAGE)
    data[start:end] = bytes(end - start)
    path.write_bytes(data)


def _append(path: Path, chance: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chance.randbytes(64))


def _replace(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def replace(path: Path, chance: random.Random) -> None:
        path.unlink()
        make(path)

    return replace


def _lock(path: Path, chance: random.Random) -> None:
    path.chmod(0)


# Damage that needs no other file.
ALONE: dict[str, Callable[[Path, random.Random], None]] = {
    "bit in the first third": _flip(0),
    "bit in the middle": _flip(1),
    "bit in the last third": _flip(2),
    "cut to nothing": lambda path, chance: _truncate(path, 0),
    "cut in half": lambda path, chance: _truncate(path, path.stat().st_size // 2),
    "cut by a byte": lambda path, chance: _truncate(path, path.stat().st_size - 1),
    "page of zeros": _zero_page,
    "bytes appended": _append,
    "missing": lambda path, chance: path.unlink(),
    "a folder": _replace(Path.mkdir),
    "a link to nothing": _replace(lambda path: path.symlink_to("nothing")),
    "a link to /dev/zero": _replace(lambda path: path.symlink_to("/dev/zero")),
    "a pipe": _replace(os.mkfifo),
    **({"not to be read": _lock} if os.geteuid() else {}),  # root can read every file
}
# Damage by a file of the same name from another place.
ANOTHERS = ("another run's", "another folder's", "another moment's")
KINDS = (*ALONE, *ANOTHERS)


def damage(path: Path, kind: str, chance: random.Random, others: dict[str, Path]) -> bool:
    """Damage a file.

    Args:
        others: Files of the same name that replace it, by kind.

    Returns:
        True if the file has changed.
    """
    before = path.read_bytes()
    if kind in ALONE:
        if not before and "missing" not in kind and not kind.startswith("a "):
            return False
        ALONE[kind](path, chance)
        return not path.is_file() or path.is_symlink() or path.read_bytes() != before
    other = others.get(kind)
    if other is None or other.read_bytes() == before:
        return False
    path.unlink()
    shutil.copy(other, path)
    return True


def others_of(file: str, *, run: Path, other_run: Path, other_moment: Path) -> dict[str, Path]:
    """Return existing files with the same name as `file` of `run`, by kind."""
    own = run / file
    beside = (
        path
        for path in sorted(run.rglob(own.name))
        if path != own and path.is_file() and path.read_bytes() != own.read_bytes()
    )
    found = {
        "another run's": other_run / file,
        "another folder's": next(beside, None),
        "another moment's": other_moment / file,
    }
    return {kind: path for kind, path in found.items() if path is not None and path.is_file()}

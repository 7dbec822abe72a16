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
SINGLE_FILE_DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
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
KINDS = (*SINGLE_FILE_DAMAGES, *ANOTHERS)


def damage(path: Path, kind: str, chance: random.Random, replacements: dict[str, Path]) -> bool:
    """Damage a file.

    Args:
        others: Files of the same name that replace it, by kind.

    Returns:
        True if the file has changed.
    """
    before = path.read_bytes()
    if kind in SINGLE_FILE_DAMAGES:
        if not before and "missing" not in kind and not kind.startswith("a "):
            return False
        SINGLE_FILE_DAMAGES[kind](path, chance)
        return not path.is_file() or path.is_symlink() or path.read_bytes() != before
    replacement = replacements.get(kind)
    if replacement is None or replacement.read_bytes() == before:
        return False
    path.unlink()
    shutil.copy(replacement, path)
    return True


def find_replacements(file: str, *, run: Path, other_run: Path, other_moment: Path) -> dict[str, Path]:
    """Return existing files with the same name as `file` of `run`, by kind."""
    original = run / file
    same_names = (
        path
        for path in sorted(run.rglob(original.name))
        if path != original and path.is_file() and path.read_bytes() != original.read_bytes()
    )
    candidates = {
        "another run's": other_run / file,
        "another folder's": next(same_names, None),
        "another moment's": other_moment / file,
    }
    return {kind: path for kind, path in candidates.items() if path is not None and path.is_file()}

"""Small model folders of every kind, created once, and copies to modify."""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from attack import attack_function
from hurt_folders import make_folders

from tercet.checkpoint import load_model
from tercet.config import UserError


@cache
def whole_folders() -> dict[str, Path]:
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return make_folders(root)


def copy_folder(kind: str, root: Path) -> Path:
    """Return a fresh copy to be damaged, replacing an earlier one."""
    source, target = whole_folders()[kind], root / "copy"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source if source.is_dir() else source.parent, target)
    return target if source.is_dir() else target / source.name


def assert_rejected(changes: dict[str, Callable[[], None]], folder: Path, *, memory: int = 300 << 20) -> None:
    """Check in one child that after each change the folder is rejected quickly and in one line."""

    def work() -> int:
        for name, change in changes.items():
            print(name, flush=True)
            change()
            with pytest.raises(UserError) as error:
                load_model(folder)
            assert "\n" not in str(error.value)
            assert len(str(error.value)) < 1500
        return 0

    outcome = attack_function(work, seconds=10.0 + len(changes))
    assert outcome.code == 0, outcome.stdout[-300:] + outcome.stderr[-3000:]
    assert outcome.memory < memory

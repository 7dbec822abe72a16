"""The package `my_package` that the guides of custom parts write, for tests."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = (
    "add-a-position-scheme.md", "add-an-optimizer.md", "add-a-block-part.md", "add-an-objective.md", "add-a-metric.md",
    "add-a-tokenizer.md", "add-a-dataset.md",
)  # fmt: skip
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
ALLOW = ("--allow-code", "my_package")


def blocks(page: str) -> tuple[dict[str, str], list[str]]:
    """Return the files of the package that a guide writes, by their paths, and its other Python code."""
    code = PYTHON.findall((GUIDES / page).read_text(encoding="utf-8"))
    files = {block.split("\n")[0].removeprefix("# "): block for block in code if block.startswith("# my_package/")}
    assert all(sum(1 for line in block.splitlines() if line.strip()) <= 60 for block in files.values())
    return files, [block for block in code if block not in files.values()]


def write_package(site: Path) -> None:
    """Write `my_package` as the guides do."""
    for page in PAGES:
        for path, code in blocks(page)[0].items():
            (site / path).parent.mkdir(exist_ok=True)
            (site / path).write_text(code)


@contextmanager
def importable_package(site: Path) -> Iterator[None]:
    """Write `my_package` into the folder, and add the folder to the path within the block."""
    write_package(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield
    forget()


def forget() -> None:
    """Forget the modules of the package, as in a new process."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]

"""Faults to plant in `src/tercet`, one at a time. The tests must catch each of them.

A fault is one edit after which the program still runs with plausible results. The YAML files next to this module list
them by package; `make faults` plants them (`plant.py`).
"""

from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "tercet"


class Fault(NamedTuple):
    """Edit of one source file."""

    what: str
    """The fault in a few words, unique among all faults."""
    file: str
    """The file, relative to `src/tercet`."""
    right: str
    """The text to replace, which occurs once in the file."""
    wrong: str
    """Its replacement."""
    tests: str = ""
    """Tests to run first, as pytest takes them (`figures/test_counts.py -k pseudo`). A file that coverage cannot trace
    (C++, JavaScript, YAML) needs them."""

    def plant(self, source: Path) -> None:
        """Apply the edit to the copy of `src/tercet` in `source`."""
        path = source / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.right) != 1:
            raise ValueError(f"{self.what}: {self.right!r} occurs {text.count(self.right)} times in {self.file}")
        path.write_text(text.replace(self.right, self.wrong), encoding="utf-8")


def read_faults() -> list[Fault]:
    """Return all faults, in the order of their files."""
    return [
        Fault(**fault)
        for path in sorted(Path(__file__).parent.glob("*.yaml"))
        for fault in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]

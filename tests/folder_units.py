"""Distribution of tests over processes: the tests of a folder run in one process, which trains their runs only once."""

from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

LARGEST = 0.1  # of all tests


def units_of(tests: Collection[str]) -> dict[str, str]:
    """Return the folder of each test, or its file, by the test's id.

    It is the file in folders with more than a tenth of all tests, and in `tests` itself.
    """
    files = {test: PurePosixPath(test.partition("::")[0]) for test in tests}
    counts = Counter(path.parent for path in files.values())
    whole = {path for path, count in counts.items() if len(path.parts) > 1 and count <= LARGEST * len(tests)}
    return {test: str(path.parent if path.parent in whole else path) for test, path in files.items()}


class FolderScheduling(LoadScopeScheduling):
    """Gives each process one unit of tests after the other, beginning with the largest."""

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]

    @cached_property
    def _units(self) -> Mapping[str, str]:
        return units_of(self.collection or [])

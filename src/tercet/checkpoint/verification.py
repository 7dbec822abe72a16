"""Verification of the files of a run or a model by the hashes that were written with them."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tercet.checkpoint.run_record import RECORD, check_run_links, read_record
from tercet.config import UserError
from tercet.notebook import Summary
from tercet.storage import MANIFEST, Manifest, read_manifest


@dataclass(frozen=True, kw_only=True, repr=False)
class Verification(Summary):
    """Result of a verification.

    Attributes:
        files: Number of files that were checked.
        bytes: Total size of these files in bytes, as recorded with their hashes.
        damaged: One line for each file that is missing or differs.
    """

    files: int
    bytes: int
    damaged: tuple[str, ...]


def verify(path: Path | str) -> Verification:
    """Check all files that have a hash: in a run, its own files, its models and its checkpoints.

    Args:
        path: Run folder or model folder, or any folder above models.

    Raises:
        UserError: If there is no such folder, it contains no hashes, or a link leads out of the run.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"no such folder: {path}")
    check_run_links(path)
    damaged: list[str] = []
    manifests: list[Manifest] = []

    def check_all(manifest: Manifest, check: Callable[[str], None]) -> None:
        manifests.append(manifest)
        for name in manifest.files:
            with _collect(damaged):
                check(name)

    with _collect(damaged):
        if (record := read_record(path)) is not None:
            check_all(record.files, partial(record.check_file, path))
    for folder in sorted({file.parent for file in path.rglob(MANIFEST)}):
        with _collect(damaged):
            if (manifest := read_manifest(folder)) is not None:
                check_all(manifest, lambda name, folder=folder, manifest=manifest: manifest.check(folder, [name]))
    if not manifests and not damaged:
        raise UserError(f"{path} has no {RECORD} and no {MANIFEST}: nothing to compare its files with")
    files = [file for manifest in manifests for file in manifest.files.values()]
    return Verification(files=len(files), bytes=sum(file.size for file in files), damaged=tuple(damaged))


@contextmanager
def _collect(damaged: list[str]) -> Generator[None]:
    """Append a UserError to `damaged` instead of raising it, without its remedy, which is the same for all files."""
    try:
        yield
    except UserError as error:
        damaged.append(str(error).partition(";")[0])

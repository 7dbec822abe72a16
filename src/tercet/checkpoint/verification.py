"""Every file of a run or a model against the hash that was written with it."""

from dataclasses import dataclass
from pathlib import Path

from tercet.checkpoint.run_record import RECORD, read_record
from tercet.config import UserError
from tercet.storage import MANIFEST, Manifest, read_manifest


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Attributes:
    files: how many were looked at.
    bytes: in all of them.
    damaged: what is wrong, a line for each file that is not what was written.
    """

    files: int
    bytes: int
    damaged: tuple[str, ...]


def verify(path: Path | str) -> Verification:
    """Look at every file of which a hash is kept: in a run its own files, its models and its checkpoints.

    Raises:
        UserError: where there is no such folder, or no hash in it.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"no such folder: {path}")
    damaged: list[str] = []
    manifests: list[tuple[Path, Manifest, bool]] = []
    try:
        record = read_record(path)
        if record is not None:
            manifests.append((path, record.files, not record.finished))
    except UserError as error:
        damaged.append(_finding(error))
    for folder in sorted({file.parent for file in path.rglob(MANIFEST)}):
        try:
            manifest = read_manifest(folder)
            assert manifest is not None
            manifests.append((folder, manifest, False))
        except UserError as error:
            damaged.append(_finding(error))
    if not manifests and not damaged:
        raise UserError(f"{path} has no {RECORD} and no {MANIFEST}: nothing to compare its files with")
    for folder, manifest, grows in manifests:
        for name in manifest.files:
            try:
                manifest.check(folder, [name], grown=grows and name == "metrics.csv")
            except UserError as error:
                damaged.append(_finding(error))
    files = [file for _, manifest, _ in manifests for file in manifest.files.values()]
    return Verification(files=len(files), bytes=sum(file.size for file in files), damaged=tuple(damaged))


def _finding(error: UserError) -> str:
    """What is wrong, without the remedy, which is the same for all."""
    return str(error).partition(";")[0]

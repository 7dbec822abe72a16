"""`run.json`: what a run settled when it began, how far it has been saved, and the hashes of its other files.

What `auto` came to is kept through every resumption, so that the arithmetic stays the same. The record has a checksum
of its own, and is written after each save: it is the run's manifest.
"""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tercet.config import UserError
from tercet.storage import FileHash, Manifest, read_sealed_json, write_sealed_json

RECORD = "run.json"
RECIPE = "recipe.yaml"
PRETRAINED_COPY = "pretrained"  # the folder of the model that the run went on from
Matmul = Literal["highest", "medium"]  # PyTorch's words; "medium" lets oneDNN in on a CPU

GROWING = "metrics.csv"  # lines are added after the save that hashed it
HASHED = (RECIPE, GROWING, "loss.png")  # as they are at each save, beside the samples


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Attributes:
    data, tokenizer: their hashes.
    precision, matmul, compile: what `auto` came to.
    steps: of a run whose length was given in hours; None for others.
    saved: steps of training behind the last save; 0 before the first.
    finished: whether the run is at its end.
    files: of the run's folder, without those of its models and checkpoints, which have manifests of their own.
    """

    data: str
    tokenizer: str
    precision: str
    matmul: Matmul
    compile: str
    steps: int | None = None
    saved: int = 0
    finished: bool = False
    files: Manifest = field(default_factory=lambda: Manifest({}))

    def write(self, out: Path) -> None:
        """Write `run.json`. Raises as `write_atomically` does."""
        plain = {
            "finished": self.finished, "saved": self.saved, "data": self.data, "tokenizer": self.tokenizer,
            "precision": self.precision, "matmul": self.matmul, "compile": self.compile,
            **({} if self.steps is None else {"steps": self.steps}), "files": self.files.to_plain(),
        }  # fmt: skip
        write_sealed_json(out / RECORD, plain)

    def saved_at(self, out: Path, step: int) -> "RunRecord":
        """The record when `step` steps are behind the run, with the hashes of what `out` holds of them."""
        # Samples of a save before are as they were then; those of later steps will be written again.
        known = {name: file for name, file in self.files.files.items() if 0 < _step(name) <= min(step, self.saved)}
        samples = [path for path in (out / "samples").glob("*") if self.saved < _step(path.name) <= step]
        paths = [path for name in HASHED if (path := out / name).is_file()] + sorted(samples)
        new = {path.relative_to(out).as_posix(): FileHash.of(path) for path in paths}
        return replace(self, saved=step, files=Manifest({**known, **new}))

    def check_file(self, out: Path, name: str) -> None:
        """Compare the file `name` of the run in `out` with what was written.

        Raises:
            DamagedFile: where it is missing or another.
        """
        self.files.check(out, [name], grown=name == GROWING and not self.finished, said_by=RECORD)


def read_record(out: Path) -> RunRecord | None:
    """What the run in `out` noted of itself; None where it noted nothing.

    Raises:
        UserError: where that is damaged.
    """
    path = out / RECORD
    if not os.path.lexists(path):
        return None
    plain: dict[str, Any] = read_sealed_json(path, since="files")
    files = Manifest.parse(plain.pop("files", {}), str(path))
    try:
        return RunRecord(**plain, files=files)
    except TypeError:
        raise UserError(f"{path} is of another version of Tercet; give another --out, or --restart") from None


def _step(sample: str) -> int:
    """Of a sample's name; 0 of all others."""
    match = re.search(r"step-(\d{1,18})\.txt$", sample)
    return int(match[1]) if match else 0

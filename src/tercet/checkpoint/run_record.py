"""`run.json`, the record of a run: resolved settings, changes, the last save, and hashes of the run's files.

The resolved values of `auto` settings are kept when a run is resumed, so that the arithmetic stays the same. The record
is written after each save and has its own checksum. It serves as the manifest of the run.
"""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from tercet.config import UserError
from tercet.reading.files import check_links
from tercet.storage import FileHash, Manifest, read_sealed_json, write_sealed_json

RECORD = "run.json"
RECIPE = "recipe.yaml"
PRETRAINED_COPY = "pretrained"  # folder of the pretrained model that the run started from
Matmul = Literal["highest", "medium"]  # of torch.set_float32_matmul_precision; "medium" allows oneDNN on a CPU

PILOTS = "pilots"  # folder of the pilot runs from which the run was forecast
FORECAST = "forecast.json"  # written before the run, and hashed only at its start
METRICS = "metrics.csv"  # until the next save, it may be longer than when it was hashed
HASHED_FILES = (RECIPE, METRICS, "loss.png")  # hashed at each save, in addition to the samples


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting that was changed after the run had started.

    Attributes:
        step: Number of completed steps; the change applies from the next step on.
        key: Dotted key of the recipe, such as training.max_steps.
        old: Previous value.
        new: New value.
        steps: New length of the run in steps if the key determines it; otherwise None.
    """

    step: int
    key: str
    old: Any
    new: Any
    steps: int | None = None

    @staticmethod
    def parse(plain: Any) -> "Change":
        """Parse the output of `to_plain`. Raises TypeError if it is not valid."""
        change = Change(**plain)
        counts = [change.step, 1 if change.steps is None else change.steps]
        if type(change.key) is not str or any(type(count) is not int or count < 0 for count in counts):
            raise TypeError("not a change of a run")
        return change

    def to_plain(self) -> dict[str, Any]:
        length = {} if self.steps is None else {"steps": self.steps}
        return {"step": self.step, "key": self.key, "old": self.old, "new": self.new, **length}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of `run.json`.

    Attributes:
        data: Hash of the training data, as in the card of a model.
        tokenizer: Hash of the tokenizer, as in the card of a model.
        precision: Precision in use, such as "bf16"; the chosen one if the recipe has `auto`.
        matmul: PyTorch's precision of float32 matrix products; the chosen one if the recipe's precision is `auto`.
        compile: Compilation in use; the chosen one if the recipe has `auto`.
        threads: Number of threads of each process, as of the last start; None in a run of an earlier version.
        micro_batches: Pairs of a step, counted from 0, and the micro-batch size per device from this step on: the
            resolved value of `auto`, and halved sizes after a device ran out of memory. The size is in rows; for a
            translator it is in tokens per side. Empty if the recipe's size is used.
        steps: Length of the run in steps when it was started.
        changes: Changes of the recipe in order; `recipe.yaml` itself is never changed.
        code: Version of the package of each custom part, by its import path; None if the package has no version.
        saved: Number of steps at the last save; 0 before the first.
        finished: If True, the run is complete.
        files: Hashes of the run's files, without those of models and checkpoints, which have their own manifests.
    """

    data: str
    tokenizer: str
    precision: str
    matmul: Matmul
    compile: Literal["never", "always", "cuda_graphs"]
    threads: int | None = None
    micro_batches: tuple[tuple[int, int], ...] = ()
    steps: int
    changes: tuple[Change, ...] = ()
    code: dict[str, str | None] = field(default_factory=dict[str, str | None])
    saved: int = 0
    finished: bool = False
    files: Manifest = field(default_factory=lambda: Manifest({}))

    @property
    def total_steps(self) -> int:
        """The current length of the run in steps."""
        return next((change.steps for change in reversed(self.changes) if change.steps is not None), self.steps)

    @property
    def micro_batch(self) -> int | None:
        """The current micro-batch size per device; None if it is that of the recipe."""
        return self.micro_batches[-1][1] if self.micro_batches else None

    def write(self, out: Path) -> None:
        """Write `run.json` to the run folder `out`. Raises like `write_atomically`."""
        plain = {
            "finished": self.finished, "saved": self.saved, "data": self.data, "tokenizer": self.tokenizer,
            "precision": self.precision, "matmul": self.matmul, "compile": self.compile,
            **({"threads": self.threads} if self.threads is not None else {}), "steps": self.steps,
            **({"micro_batches": [list(entry) for entry in self.micro_batches]} if self.micro_batches else {}),
            **({"changes": [change.to_plain() for change in self.changes]} if self.changes else {}),
            **({"code": self.code} if self.code else {}),
            "files": self.files.to_plain(),
        }  # fmt: skip
        write_sealed_json(out / RECORD, plain)

    def update_saved(self, out: Path, step: int) -> "RunRecord":
        """Return the record after a save at `step`, with new hashes of the files in the run folder `out`."""
        # Samples of earlier saves keep their hashes. Those of steps after `step` are left out: they are written again.
        previous_hashes = {
            name: file
            for name, file in self.files.files.items()
            if 0 < _step(name) <= min(step, self.saved) or name == FORECAST
        }
        if FORECAST not in previous_hashes and (out / FORECAST).is_file():
            previous_hashes[FORECAST] = FileHash.from_path(out / FORECAST)
        samples = [path for path in (out / "samples").glob("*") if self.saved < _step(path.name) <= step]
        paths = [path for name in HASHED_FILES if (path := out / name).is_file()] + sorted(samples)
        new_hashes = {path.relative_to(out).as_posix(): FileHash.from_path(path) for path in paths}
        return replace(self, saved=step, files=Manifest({**previous_hashes, **new_hashes}))

    def check_file(self, out: Path, name: str) -> None:
        """Compare a file of the run with its hash. Files without a hash are accepted.

        Args:
            out: Run folder.
            name: Path of the file relative to `out`. The metrics of an unfinished run may have become longer.

        Raises:
            DamagedFile: If the file is missing or differs.
        """
        self.files.check(out, [name], allow_growth=name == METRICS and not self.finished, recorded_in=RECORD)


def check_run_links(folder: Path) -> None:
    """Check all links below a folder if it contains a run, before the run is read or written.

    Raises:
        UserError: If a link leads out of the run, as in `check_links`.
    """
    if any(os.path.lexists(folder / name) for name in (RECORD, RECIPE, METRICS)):
        check_links(folder, recursive=True)


def read_record(out: Path) -> RunRecord | None:
    """Return the record of the run in the folder `out`; None if there is none.

    Raises:
        UserError: If the record is damaged or of another version, or a link leads out of the run.
    """
    path = out / RECORD
    if not os.path.lexists(path):
        return None
    check_links(out, recursive=True)
    plain: dict[str, Any] = read_sealed_json(path, since="files")
    files = Manifest.parse(plain.pop("files", {}), str(path))
    try:
        changes = tuple(map(Change.parse, plain.pop("changes", ())))
        micro_batches = tuple(map(_parse_micro_batch, plain.pop("micro_batches", ())))
        return RunRecord(**plain, micro_batches=micro_batches, changes=changes, files=files)
    except TypeError:
        raise UserError(
            f"{path} was written by another version of Tercet; choose another --out, or pass --restart"
        ) from None


def _parse_micro_batch(plain: Any) -> tuple[int, int]:
    step, micro = plain if isinstance(plain, list) and len(cast(list[Any], plain)) == 2 else (None, None)
    if type(step) is not int or type(micro) is not int or step < 0 or micro < 1:
        raise TypeError("not a micro-batch size")
    return step, micro


def _step(sample: str) -> int:
    """Return the step in the file name of a sample, such as step-000250.txt; 0 for other names."""
    match = re.search(r"step-(\d{1,18})\.txt$", sample)
    return int(match[1]) if match else 0

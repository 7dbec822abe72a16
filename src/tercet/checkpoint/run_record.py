"""`run.json`: what a run settled when it began, what was changed since, how far it is saved, the hashes of its files.

What `auto` came to is kept through every resumption, so that the arithmetic stays the same. The record has a checksum
of its own, and is written after each save: it is the run's manifest.
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
PRETRAINED_COPY = "pretrained"  # the folder of the model that the run went on from
Matmul = Literal["highest", "medium"]  # PyTorch's words; "medium" lets oneDNN in on a CPU

METRICS = "metrics.csv"  # lines are added after the save that hashed it
HASHED_FILES = (RECIPE, METRICS, "loss.png")  # as they are at each save, beside the samples


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting that became another after the run had begun.

    Attributes:
        step: steps of training that were behind the run: the change holds from the next one on.
        key: of the recipe, such as training.max_steps.
        steps: the length of the run from then on, where this is what the key says; else None.
    """

    step: int
    key: str
    old: Any
    new: Any
    steps: int | None = None

    @staticmethod
    def parse(plain: Any) -> "Change":
        """The inverse of `to_plain`. Raises TypeError where it is nothing of the kind."""
        change = Change(**plain)
        counts = [change.step, 1 if change.steps is None else change.steps]
        if type(change.key) is not str or any(type(count) is not int or count < 0 for count in counts):
            raise TypeError("no change of a run")
        return change

    def to_plain(self) -> dict[str, Any]:
        length = {} if self.steps is None else {"steps": self.steps}
        return {"step": self.step, "key": self.key, "old": self.old, "new": self.new, **length}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Attributes:
    data, tokenizer: their hashes.
    precision, matmul, compile: what `auto` came to.
    threads: Number of threads of each process, as of the last start; None in a run of an earlier version.
    micro_batches: where that is not as the recipe has it, how much a device holds at once, each with the step, counted
        from 0, from which on: what `auto` came to, and the halves of it that memory asked for. Rows; of a translator
        tokens a side.
    steps: the run's length when it began.
    changes: of the recipe, in the order in which they were made; `recipe.yaml` stays as the run began.
    saved: steps of training behind the last save; 0 before the first.
    finished: whether the run is at its end.
    files: of the run's folder, without those of its models and checkpoints, which have manifests of their own.
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
    saved: int = 0
    finished: bool = False
    files: Manifest = field(default_factory=lambda: Manifest({}))

    @property
    def total_steps(self) -> int:
        """The run's length as it is now."""
        return next((change.steps for change in reversed(self.changes) if change.steps is not None), self.steps)

    @property
    def micro_batch(self) -> int | None:
        """How much a device holds at once; None where the recipe says it."""
        return self.micro_batches[-1][1] if self.micro_batches else None

    def write(self, out: Path) -> None:
        """Write `run.json`. Raises as `write_atomically` does."""
        plain = {
            "finished": self.finished, "saved": self.saved, "data": self.data, "tokenizer": self.tokenizer,
            "precision": self.precision, "matmul": self.matmul, "compile": self.compile,
            **({"threads": self.threads} if self.threads is not None else {}), "steps": self.steps,
            **({"micro_batches": [list(entry) for entry in self.micro_batches]} if self.micro_batches else {}),
            **({"changes": [change.to_plain() for change in self.changes]} if self.changes else {}),
            "files": self.files.to_plain(),
        }  # fmt: skip
        write_sealed_json(out / RECORD, plain)

    def update_saved(self, out: Path, step: int) -> "RunRecord":
        """The record when `step` steps are behind the run, with the hashes of what `out` holds of them."""
        # Samples of a save before are as they were then; those of later steps will be written again.
        previous_hashes = {
            name: file for name, file in self.files.files.items() if 0 < _step(name) <= min(step, self.saved)
        }
        samples = [path for path in (out / "samples").glob("*") if self.saved < _step(path.name) <= step]
        paths = [path for name in HASHED_FILES if (path := out / name).is_file()] + sorted(samples)
        new_hashes = {path.relative_to(out).as_posix(): FileHash.of(path) for path in paths}
        return replace(self, saved=step, files=Manifest({**previous_hashes, **new_hashes}))

    def check_file(self, out: Path, name: str) -> None:
        """Compare the file `name` of the run in `out` with what was written.

        Raises:
            DamagedFile: where it is missing or another.
        """
        self.files.check(out, [name], grown=name == METRICS and not self.finished, said_by=RECORD)


def check_run_links(folder: Path) -> None:
    """Check the links of everything below a folder that holds a run, before it is read or written.

    Raises:
        UserError: As `check_links`.
    """
    if any(os.path.lexists(folder / name) for name in (RECORD, RECIPE, METRICS)):
        check_links(folder, nested=True)


def read_record(out: Path) -> RunRecord | None:
    """What the run in `out` noted of itself; None where it noted nothing.

    Raises:
        UserError: where that is damaged, or as `check_run_links`.
    """
    path = out / RECORD
    if not os.path.lexists(path):
        return None
    check_links(out, nested=True)
    plain: dict[str, Any] = read_sealed_json(path, since="files")
    files = Manifest.parse(plain.pop("files", {}), str(path))
    try:
        changes = tuple(map(Change.parse, plain.pop("changes", ())))
        micro_batches = tuple(map(_parse_micro_batch, plain.pop("micro_batches", ())))
        return RunRecord(**plain, micro_batches=micro_batches, changes=changes, files=files)
    except TypeError:
        raise UserError(f"{path} is of another version of Tercet; give another --out, or --restart") from None


def _parse_micro_batch(plain: Any) -> tuple[int, int]:
    step, micro = plain if isinstance(plain, list) and len(cast(list[Any], plain)) == 2 else (None, None)
    if type(step) is not int or type(micro) is not int or step < 0 or micro < 1:
        raise TypeError("no size of a micro-batch")
    return step, micro


def _step(sample: str) -> int:
    """Of a sample's name; 0 of all others."""
    match = re.search(r"step-(\d{1,18})\.txt$", sample)
    return int(match[1]) if match else 0

"""The file `seal.json` of a sealed test part: how the data was divided, and all calls that scored models on it."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tercet.config import UserError, parse
from tercet.messages import counted
from tercet.notebook import Summary, Table, View
from tercet.storage import DamagedFile, read_sealed_json, write_sealed_json

SEAL = "seal.json"
FORMAT = 1
Kind = Literal["text", "pairs", "labels", "conversations"]


@dataclass(frozen=True, kw_only=True)
class SealedPart:
    """One part of the data.

    Attributes:
        items: Number of documents, pairs, texts or conversations; of a running text the number of characters.
        bytes: Size of all files.
        files: SHA-256 of each file, by its name.
    """

    items: int
    bytes: int
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True, repr=False)
class Seal(Summary):
    """A sealed test part, as described in its `seal.json`.

    Attributes:
        kind: Kind of the data.
        source: Source that was divided; the name of the first file of two.
        unit: Name of the items.
        reading: Keys of `data` by which both parts are read, if they are not the defaults.
        division: "tail" for the end of a running text, "drawn" for items drawn by a hash.
        fraction: Requested fraction of the test part; None if a count was requested.
        count: Requested maximum number of items in the test part; None if a fraction was requested.
        train, test: Both parts.
        allowed_calls: Number of calls that may score models on the test part.
        calls: All calls so far: number, date (UTC), state ("started", "failed" or "complete") and models.
        format: Version of the file's format.
    """

    kind: Kind
    source: str
    unit: str
    reading: dict[str, Any]
    division: Literal["tail", "drawn"]
    fraction: float | None
    count: int | None
    train: SealedPart
    test: SealedPart
    allowed_calls: int
    calls: tuple[dict[str, Any], ...] = field(default=())
    format: int = FORMAT

    @property
    def models_scored(self) -> int:
        """Number of models in all calls so far. A model that several calls have scored is counted each time."""
        return sum(len(call["models"]) for call in self.calls)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `seal.json` without its checksum."""
        return asdict(self)

    def view(self) -> View:
        """Return a table of both parts, and the number of allowed calls."""
        rows = [
            (name, f"{part.items:,}", f"{part.bytes:,}", ", ".join(part.files))
            for name, part in (("train", self.train), ("test", self.test))
        ]
        table = Table(header=("", self.unit, "bytes", "files"), rows=rows, left=(0, 3), flush=True)
        calls = counted(self.allowed_calls, "call", "calls")
        return View((table, f"{calls} of `tercet evaluate --sealed` may score models on the test part"))

    def add_call(self, call: Mapping[str, Any]) -> "Seal":
        return replace(self, calls=(*self.calls, {**call}))

    def replace_call(self, call: Mapping[str, Any] | None) -> "Seal":
        """Return the seal with another record of the last call, or without it for None."""
        return replace(self, calls=(*self.calls[:-1], *([] if call is None else [{**call}])))

    def check_calls(self, folder: Path) -> None:
        """Check that another call is allowed.

        Raises:
            UserError: If all allowed calls are used.
        """
        if len(self.calls) >= self.allowed_calls:
            calls = counted(self.allowed_calls, "allowed call", "allowed calls")
            raise UserError(
                f"{folder}: all {calls} are used (the last one on {self.calls[-1]['date'][:10]}), so further scores "
                "would be chosen by chance; seal new data with `tercet data seal`"
            )

    def check_test(self, folder: Path) -> None:
        """Check that the files of the test part are unchanged.

        Raises:
            UserError: If a file is missing or has changed.
        """
        for name, expected in self.test.files.items():
            if hash_file(folder / name) != expected:
                raise UserError(f"{folder / name} has changed since it was sealed; restore the original file")

    def write(self, folder: Path) -> None:
        """Write `seal.json` atomically, with its checksum."""
        write_sealed_json(folder / SEAL, self.to_dict())


def read_seal(folder: Path) -> Seal:
    """Return the seal in a folder.

    Raises:
        UserError: If there is none, it has been edited or damaged, or a newer version has written it.
    """
    if not (folder / SEAL).is_file():
        raise UserError(f"{folder} has no {SEAL}; pass a folder that `tercet data seal` has written")
    try:
        plain = read_sealed_json(folder / SEAL)
    except DamagedFile:
        raise UserError(
            f"{folder / SEAL} was edited or is damaged, so the calls are not known; restore the original file, or seal "
            "new data"
        ) from None
    if plain.get("format") != FORMAT:
        raise UserError(f"{folder / SEAL} has the format {plain.get('format')}, not {FORMAT}; update Tercet")
    parts = {name: parse(SealedPart, plain[name], name=f"{folder / SEAL}") for name in ("train", "test")}
    fields: dict[str, Any] = {**plain, **parts, "calls": tuple(plain["calls"])}
    return Seal(**fields)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; restore the original file") from None

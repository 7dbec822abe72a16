"""Folder of tokens written by `tercet data prepare`: ids, starts of documents, and the tokenizer.

manifest.json               contents, with the size and the hash of each file; contains its own checksum
tokenizer.json              tokenizer of the ids
train-00000.bin             ids of a shard, little endian, 16 bits each if the vocabulary has at most 65,536, else 32
train-00000.documents.npy   int64 position in the shard at which each document starts or continues
validation.bin, validation.documents.npy   the same for the validation part
token_counts.npy            (V,) int64 number of occurrences of each token in the training part
"""

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from tercet.config import UserError
from tercet.data.cache import digest
from tercet.data.shards.find_prepared import is_url, may_be_prepared
from tercet.data.shards.open_shards import OpenShards
from tercet.data.shards.sharded_array import ShardedArray
from tercet.limits import MAX_VOCABULARY_BYTES
from tercet.reading.files import open_whole_file
from tercet.reading.npy import read_array_header
from tercet.storage import MANIFEST, DamagedFile, FileHash, Manifest, read_sealed_json
from tercet.tokens import Tokenizer

KIND = "tokens"  # in the manifest; other folders have no kind
TOKENIZER, COUNTS, VALIDATION = "tokenizer.json", "token_counts.npy", "validation"
DTYPES = ("<u2", "<u4")
ROLES = ("bos_id", "eos_id", "pad_id")
REMEDY = "copy the folder again, or prepare it again (`tercet data prepare`)"
MAX_OPEN = 256  # shards; each uses a file descriptor, and the limit of a process is often 1,024
ARRAY_HEADER_BYTES = 10_000  # maximum header of a `.npy` file, as in NumPy
RECENT = 2_000_000_000  # ns; two changes of a file within this time may give it the same time stamp

Result = TypeVar("Result")

_verified = set[tuple[object, ...]]()  # states of the id files whose hashes this process has verified


@dataclass(frozen=True, kw_only=True)
class Part:
    """Ids in a separate file: a shard, or the validation part.

    Attributes:
        name: Name of the part's files, without suffix.
        documents: Number of documents that start in the part.
        starts: Number of positions at which a document starts, or continues from the previous part.
        bytes: UTF-8 bytes of the part's text.
    """

    name: str
    tokens: int
    documents: int
    starts: int
    bytes: int

    @property
    def ids_file(self) -> str:
        return f"{self.name}.bin"

    @property
    def documents_file(self) -> str:
        return f"{self.name}.documents.npy"


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Contents of a manifest.

    Attributes:
        dtype, tokenizer_hash: Type of the ids, and hash of the tokenizer.
        roles: Ids of bos, eos and pad, by `bos_id`, `eos_id` and `pad_id`; None if the tokenizer has none.
        shards: Shards of the training part, in their order.
        files: Size and hash of each file.
        made_from: Hash of the inputs and the settings.
    """

    dtype: np.dtype[Any]
    tokenizer_hash: str
    roles: dict[str, int | None]
    shards: tuple[Part, ...]
    validation: Part
    files: Manifest
    made_from: str

    @property
    def hash(self) -> str:
        return digest(self.files.to_plain())

    def to_plain(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "dtype": self.dtype.str,
            "tokenizer": self.tokenizer_hash,
            "roles": self.roles,
            "made_from": self.made_from,
            "shards": [_plain_part(part) for part in self.shards],
            "validation": _plain_part(self.validation),
            "hash": "xxh3_128",
            "files": self.files.to_plain(),
        }


def read_contents(path: Path) -> Contents | None:
    """Read the manifest at `path`. Return None if it belongs to another kind of folder.

    Raises:
        DamagedFile: If it cannot be read, or its contents are invalid.
    """
    data = read_sealed_json(path)
    if data.get("kind") != KIND:
        return None
    try:
        if data["dtype"] not in DTYPES:
            raise ValueError(data["dtype"])
        contents = Contents(
            dtype=np.dtype(data["dtype"]),
            tokenizer_hash=str(data["tokenizer"]),
            roles={role: None if data["roles"][role] is None else int(data["roles"][role]) for role in ROLES},
            shards=tuple(_parse_part(part) for part in data["shards"]),
            validation=_parse_part(data["validation"]),
            files=Manifest.parse(data["files"], str(path)),
            made_from=str(data["made_from"]),
        )
        _check_names(contents)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedFile(f"{path} is damaged; {REMEDY}") from None
    return contents


class TokenFolder:
    """Local prepared folder.

    Data is compared with the manifest before it is used: small files each time they are read, a file of ids when a
    process first opens it.

    Attributes:
        name: Path or URL of the folder, as in the recipe.
        group: Number of shards that are shuffled together, or None for all of them.
        max_open: Maximum number of open shards.
    """

    def __init__(
        self, name: str, folder: Path, contents: Contents, *, group: int | None, max_open: int = MAX_OPEN
    ) -> None:
        self.name, self.contents, self.group, self.max_open = name, contents, group, max_open
        self._folder = folder
        self._shards = {part.name: part for part in contents.shards}
        self._open = OpenShards(lambda name: self._map_ids(self._shards[name]), self._close_shard, max_open=max_open)

    def check(self) -> None:
        """Check that every file exists and has the size in the manifest. Hashes are checked when a file is read.

        Raises:
            DamagedFile: If a file is missing or has another size; the message names the first one.
        """
        for name, expected in self.contents.files.files.items():
            path = self._folder / name
            try:
                size = path.stat().st_size if path.is_file() else None
            except OSError as error:
                raise DamagedFile(f"cannot read {path}: {error.strerror or error}; {REMEDY}") from None
            if size is None:
                raise DamagedFile(f"{path} is missing; {REMEDY}")
            if size != expected.size:
                raise DamagedFile(f"{path} has {size:,} bytes, but {MANIFEST} specifies {expected.size:,}; {REMEDY}")

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the ids.

        Raises:
            DamagedFile: If the file is damaged, or contains another tokenizer.
        """
        return self._tokenizer

    def ids(self, part: Part) -> np.ndarray:
        """Return the ids (N,) of a part, memory-mapped.

        Raises:
            DamagedFile: If the file is damaged.
            UserError: If an id is not in the tokenizer's vocabulary.
        """
        return self._open.ids(part.name) if part.name in self._shards else self._map_ids(part)

    def open_ahead(self, shards: Sequence[int]) -> None:
        """Keep the shards with these numbers open, close all others, and open the missing ones in a thread."""
        self._open.keep([self.contents.shards[number].name for number in shards])

    def wait(self) -> None:
        """Wait for the thread that opens shards ahead."""
        self._open.wait()

    def documents(self, part: Part) -> np.ndarray:
        """Return the positions in a part at which documents start, or continue from the previous part, (D,) int64.

        Raises:
            DamagedFile: If the file is damaged.
        """
        starts = self._read_numbers(part.documents_file, part.starts)
        if len(starts) and (starts[0] != 0 or starts[-1] > part.tokens or (np.diff(starts) < 0).any()):
            raise DamagedFile(f"{self._location(part.documents_file)} has invalid starts of documents; {REMEDY}")
        return starts

    def token_counts(self) -> np.ndarray:
        """Return the number of occurrences of each token in the training part (V,).

        Raises:
            DamagedFile: If the file is damaged.
        """
        counts = self._read_numbers(COUNTS, self.tokenizer().vocab_size)
        if counts.min(initial=0) < 0 or counts.sum() != sum(part.tokens for part in self.contents.shards):
            raise DamagedFile(f"{self._location(COUNTS)} does not match the shards; {REMEDY}")
        return counts

    def all_ids(self) -> ShardedArray:
        """Return all ids of the training part (N,), as an array whose shards are opened when they are read."""
        shards = self.contents.shards
        return ShardedArray([part.tokens for part in shards], lambda n: self.ids(shards[n]), self.contents.dtype)

    def all_documents(self) -> ShardedArray:
        """Return the positions in `all_ids` at which documents start, or continue from the previous shard, (D,)."""
        shards = self.contents.shards
        lengths, tokens = [part.starts for part in shards], [part.tokens for part in shards]
        offsets = np.cumsum([0, *tokens[:-1]]).tolist()
        return ShardedArray(lengths, lambda n: self.documents(shards[n]), np.dtype(np.int64), offsets=offsets)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        try:
            tokenizer = Tokenizer.from_json(self._read_bytes(TOKENIZER, max_bytes=MAX_VOCABULARY_BYTES).decode())
        except ValueError as error:
            raise DamagedFile(f"{self._location(TOKENIZER)} is not a tokenizer: {error}; {REMEDY}") from None
        if tokenizer.hash != self.contents.tokenizer_hash:
            raise DamagedFile(f"the tokenizer of {self.name} is not the one that produced its tokens; {REMEDY}")
        try:
            return tokenizer.with_ids(**self.contents.roles)
        except ValueError as error:
            raise DamagedFile(f"the tokenizer of {self.name}: {error}; {REMEDY}") from None

    def _location(self, file: str) -> str:
        """Return the path or URL of a file for messages."""
        return str(self._folder / file)

    def _read(self, file: str, take: Callable[[BinaryIO], Result]) -> Result:
        """Call `take` with the open file, and return the result.

        Raises:
            DamagedFile: If the file cannot be read, or `take` raises it.
        """
        path = self._folder / file
        try:
            input_file = open_whole_file(path)
        except UserError as error:
            raise DamagedFile(str(error)) from None
        try:
            with input_file:
                return take(input_file)
        except OSError as error:
            raise DamagedFile(f"cannot read {path}: {error.strerror or error}; {REMEDY}") from None

    def _close_shard(self, name: str) -> None:
        """Hook for subclasses, called when a shard is closed."""

    def _map_ids(self, part: Part) -> np.ndarray:
        def take(file: BinaryIO) -> np.ndarray:
            self._verify_ids(part, file)
            try:
                return map_array(file, self.contents.dtype, part.tokens)
            except ValueError:  # the file was truncated after the check
                raise self._damage(part.ids_file) from None

        return self._read(part.ids_file, take)

    def _verify_ids(self, part: Part, file: BinaryIO) -> None:
        """Compare a file of ids with its hash and with the vocabulary, once for each state of the file."""
        expected, limit = self.contents.files.files[part.ids_file], self.tokenizer().vocab_size
        status, largest = os.fstat(file.fileno()), 0
        state = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, expected, limit
        if state in _verified:
            return

        def find_largest(block: bytes) -> None:
            nonlocal largest
            largest = max(largest, int(np.frombuffer(block, self.contents.dtype).max()))

        if status.st_size != expected.size or FileHash.from_file(file, visit=find_largest) != expected:
            raise self._damage(part.ids_file)
        if largest >= limit:
            raise UserError(
                f"{self._location(part.ids_file)} has the id {largest}, but its tokenizer has {limit} ids; "
                "prepare the text again (`tercet data prepare`)"
            )
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > RECENT:
            _verified.add(state)

    def _read_bytes(self, file: str, *, max_bytes: int | None = None) -> bytes:
        expected = self.contents.files.files[file]
        if max_bytes is not None and expected.size > max_bytes:
            raise UserError(f"{self._location(file)} has {expected.size} bytes, the maximum is {max_bytes}; {REMEDY}")

        def take(input_file: BinaryIO) -> bytes:
            data = input_file.read() if os.fstat(input_file.fileno()).st_size == expected.size else b""
            if FileHash.from_bytes(data) != expected:
                raise self._damage(file)
            return data

        return self._read(file, take)

    def _read_numbers(self, file: str, length: int) -> np.ndarray:
        """Return the numbers (length,) int64 of a `.npy` file."""
        input_file = BytesIO(data := self._read_bytes(file))
        try:
            dtype, shape, _ = read_array_header(input_file)
            if dtype != np.int64 or shape != (length,):
                raise ValueError(shape)
            return np.frombuffer(data, np.int64, length, offset=input_file.tell())
        except ValueError:
            raise DamagedFile(f"{self._location(file)} does not contain {length:,} numbers; {REMEDY}") from None

    def _damage(self, file: str) -> DamagedFile:
        return DamagedFile(f"{self._location(file)} is damaged: its hash does not match {MANIFEST}; {REMEDY}")


def find_token_folder(source: str) -> Path | None:
    """Return the local prepared folder that `source` denotes, or None.

    Raises:
        DamagedFile: If its manifest is damaged.
    """
    if is_url(source) or not may_be_prepared(source):
        return None
    folder = Path(source).expanduser()
    return None if read_contents(folder / MANIFEST) is None else folder


def map_array(file: BinaryIO, dtype: np.dtype[Any], length: int) -> np.ndarray:
    """Map an open file of `length` numbers (N,). The array remains valid if the file is closed and its path removed."""
    if not length:
        return np.empty(0, dtype)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype, length)


def release_pages(ids: np.ndarray) -> None:
    """Release the memory pages of a mapped array, which would count as memory of this process.

    They stay in the system's file cache, so that reading them again is fast.
    """
    base: Any = ids.base
    mapping = getattr(base, "obj", base)  # NumPy's base is a memoryview of it
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def roles_of(tokenizer: Tokenizer) -> dict[str, int | None]:
    return {role: getattr(tokenizer, role) for role in ROLES}


def check_tokenizer(folder: TokenFolder, tokenizer: Tokenizer, model_tokenizer: Tokenizer | None) -> None:
    """Raise UserError if the tokenizer of a folder is not that of the model, unless that is None.

    In a mixture without a pretrained model, the model has the tokenizer of the first folder.
    """
    if model_tokenizer is not None and model_tokenizer.hash != tokenizer.hash:
        raise UserError(
            f"the tokens of {folder.name} were made with another tokenizer than the model's; prepare the text with "
            "`tercet data prepare --tokenizer` and the folder of the model, or of the first source of a mixture"
        )


def _plain_part(part: Part) -> list[Any]:
    return [part.name, part.tokens, part.documents, part.starts, part.bytes]


def _parse_part(data: Any) -> Part:
    name, *numbers = data
    tokens, documents, starts, n_bytes = (int(number) for number in numbers)
    if min(tokens, documents, starts, n_bytes) < 0:
        raise ValueError("negative")
    return Part(name=str(name), tokens=tokens, documents=documents, starts=starts, bytes=n_bytes)


def _check_names(contents: Contents) -> None:
    """Check that all files are in the folder and have the size of their part; manifests are untrusted."""
    files = contents.files.files
    if any(Path(name).name != name or name.startswith(".") for name in files):
        raise ValueError("a file outside the folder")
    for part in (*contents.shards, contents.validation):
        size, header = files[part.ids_file].size, files[part.documents_file].size - 8 * part.starts
        if size != part.tokens * contents.dtype.itemsize or not 0 < header <= ARRAY_HEADER_BYTES:
            raise ValueError(part.name)
    if TOKENIZER not in files or COUNTS not in files:
        raise ValueError("files are missing")

"""A folder of tokens that `tercet data prepare` has made: shards of ids, where documents start in them, the tokenizer.

manifest.json               what is in it, with the size and the hash of each file; its own checksum
tokenizer.json
train-00000.bin             ids, 16 bits each where the vocabulary has at most 65,536, else 32; little endian
train-00000.documents.npy   int64 position in the shard at which each document starts, or goes on
validation.bin, validation.documents.npy
token_counts.npy            (V,) int64: how often each token stands in the training part
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tercet.config import UserError
from tercet.data.cache import digest
from tercet.data.find_prepared import is_url, may_be_prepared
from tercet.data.sharded_array import ShardedArray
from tercet.storage import MANIFEST, DamagedFile, Manifest, read_sealed_json
from tercet.tokens import Tokenizer

KIND = "tokens"  # in the manifest, where other folders have none
TOKENIZER, COUNTS, VALIDATION = "tokenizer.json", "token_counts.npy", "validation"
DTYPES = ("<u2", "<u4")
ROLES = ("bos_id", "eos_id", "pad_id")
REMEDY = "copy the folder again, or prepare it anew (`tercet data prepare`)"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Ids of a folder in a file of their own: a shard, or the validation part.

    Attributes:
        name: of its files, without their endings.
        documents: that begin in it.
        starts: how many positions are told where a document begins, or goes on from the part before.
        bytes: of UTF-8 text that it stands for.
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
    """What the manifest says.

    Attributes:
        roles: which ids are bos, eos and pad.
        shards: of the training part, in their order.
        files: of the folder.
        made_from: digest of the inputs and the settings.
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
    """What a manifest says; None where it is another folder's.

    Raises:
        DamagedFile: where it cannot be read, or says what cannot be.
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
    """A prepared folder on this machine.

    Attributes:
        name: where it is, as the recipe says.
        group: how many shards are shuffled together; None for all of them.
        most_open: how many shards are kept at hand; None for all of them.
    """

    most_open: int | None = None

    def __init__(self, name: str, folder: Path, contents: Contents, *, group: int | None) -> None:
        self.name, self.contents, self.group = name, contents, group
        self._folder = folder

    def check(self) -> None:
        """Whether every file is there in its size; `tercet verify` reads them through.

        Raises:
            DamagedFile: for the first that is not.
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
                raise DamagedFile(f"{path} has {size:,} bytes, and {MANIFEST} says {expected.size:,}; {REMEDY}")

    def path(self, file: str) -> Path:
        """Where a file of the folder lies."""
        return self._folder / file

    def fetch_ahead(self, shards: Sequence[int]) -> None:
        """Have shards at hand soon."""

    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.load(self.path(TOKENIZER))
        if tokenizer.hash != self.contents.tokenizer_hash:
            raise DamagedFile(f"the tokenizer of {self.name} is not the one that its tokens are of; {REMEDY}")
        try:
            return tokenizer.with_ids(**self.contents.roles)
        except ValueError as error:
            raise DamagedFile(f"the tokenizer of {self.name}: {error}; {REMEDY}") from None

    def ids(self, part: Part) -> np.ndarray:
        """The ids (N,) of a part, mapped."""
        return map_array(self.path(part.ids_file), self.contents.dtype, part.tokens)

    def documents(self, part: Part) -> np.ndarray:
        """Where documents start in a part."""
        path = self.path(part.documents_file)
        try:
            starts = np.load(path, allow_pickle=False)
            if starts.dtype != np.int64 or starts.shape != (part.starts,):
                raise ValueError(starts.shape)
        except (OSError, ValueError, EOFError):
            raise DamagedFile(f"{path} is damaged; {REMEDY}") from None
        return starts

    def token_counts(self) -> np.ndarray:
        """(V,) how often each token stands in the training part."""
        try:
            return np.load(self.path(COUNTS), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise DamagedFile(f"{self.path(COUNTS)} is damaged; {REMEDY}") from None

    def all_ids(self) -> ShardedArray:
        """All ids of the training part."""
        shards = self.contents.shards
        return ShardedArray([part.tokens for part in shards], lambda n: self.ids(shards[n]), self.contents.dtype)

    def all_documents(self) -> ShardedArray:
        """Where documents start in `all_ids`."""
        shards = self.contents.shards
        lengths, tokens = [part.starts for part in shards], [part.tokens for part in shards]
        offsets = np.cumsum([0, *tokens[:-1]]).tolist()
        return ShardedArray(lengths, lambda n: self.documents(shards[n]), np.dtype(np.int64), offsets=offsets)


def find_token_folder(source: str) -> Path | None:
    """The folder on this machine that `source` means, where it is a prepared one.

    Raises:
        DamagedFile: where its manifest is damaged.
    """
    if is_url(source) or not may_be_prepared(source):
        return None
    folder = Path(source).expanduser()
    return None if read_contents(folder / MANIFEST) is None else folder


def map_array(path: Path, dtype: np.dtype[Any], length: int) -> np.ndarray:
    """The numbers (N,) in a file.

    Raises:
        DamagedFile: where there are not so many.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size != length * dtype.itemsize:
                raise DamagedFile(f"{path} is not as long as {MANIFEST} says; {REMEDY}")
            if not length:
                return np.empty(0, dtype)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DamagedFile(f"cannot read {path}: {error.strerror or error}; {REMEDY}") from None
    return np.frombuffer(mapped, dtype)


def release_pages(ids: np.ndarray) -> None:
    """What was read of a mapped array counts as this process's memory until it is given back: it stays in the system's
    cache of files, where another reading finds it."""
    base: Any = ids.base
    mapped = getattr(base, "obj", base)  # NumPy holds a memoryview of it
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def roles_of(tokenizer: Tokenizer) -> dict[str, int | None]:
    return {role: getattr(tokenizer, role) for role in ROLES}


def check_tokenizer(folder: TokenFolder, own: Tokenizer, other: Tokenizer | None) -> None:
    """Raises UserError where the model that training goes on from has another tokenizer than the tokens."""
    if other is not None and other.hash != own.hash:
        raise UserError(
            f"the tokens of {folder.name} are another tokenizer's than the model's; prepare the text with "
            "`tercet data prepare --tokenizer` and the model's folder"
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
    """Every file of the folder is in the folder, and every part has its two: a manifest may have come from anywhere."""
    files = contents.files.files
    if any(Path(name).name != name or name.startswith(".") for name in files):
        raise ValueError("a file outside of the folder")
    for part in (*contents.shards, contents.validation):
        size = files[part.ids_file].size
        if size != part.tokens * contents.dtype.itemsize or part.documents_file not in files:
            raise ValueError(part.name)
    if TOKENIZER not in files or COUNTS not in files:
        raise ValueError("files are missing")

"""Encoding of documents, or of existing ids, into one file of ids.

Each document ends with eos if the tokenizer has one. It starts with the ids that the tokenizer puts before a text (its
`opening`, such as Llama's bos), as in generation, or with bos if the tokenizer has a mask token.
"""

from array import array
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.progress import Progress

from tercet.config import UserError
from tercet.data.cache import chunk_items, id_dtype
from tercet.data.encode.unknown_text import check_unknown_share, encode_located
from tercet.data.min_hash import MinHash
from tercet.data.sources.documents import DocumentSource, TextPiece
from tercet.data.sources.id_files import IdFile
from tercet.data.text_hashes import hash_bytes, hash_near_duplicate, hash_text
from tercet.messages import shorten
from tercet.tokens import Tokenizer
from tercet.tokens.sequences import beyond_error

CUT_REACH = 4096  # characters before the end of a piece that are searched for a better cut
CUT_TRIES = 64  # maximum cuts tried
CUT_CONTEXT = 256  # characters on either side; the ids at a cut do not depend on text further away


class SupportsWrite(Protocol):
    """Protocol of binary files and buffers to write to."""

    def write(self, data: bytes, /) -> object: ...


class EncodedPiece(NamedTuple):
    """Encoded part of a document.

    Attributes:
        ids: (N,) ids, which may be empty.
        n_bytes: Bytes of the text in UTF-8.
        last: True if the document ends with this piece.
        text_hash: Hash of the text, or of the ids if the source contains ids.
        text: Text that `ids` was encoded from, or None if the source contains ids.
        group: Group of the document; empty if the source has no groups.
    """

    ids: np.ndarray[Any, Any]
    n_bytes: int
    last: bool
    text_hash: int
    text: str | None
    group: str = ""


class EncodedSource(NamedTuple):
    """Properties of the documents of a source, after encoding.

    Attributes:
        starts: (D,) int64 position of the start of each document.
        sizes: (D,) int64 UTF-8 bytes of each document's text.
        text_hashes: (D,) uint64, equal for equal documents.
        near_hashes: (D,) uint64, equal for near duplicates. Documents of several pieces are compared piece by piece,
            so that they must be cut in the same places.
        group_hashes: (D,) uint64, equal for documents of the same group; 0 without a group.
    """

    starts: np.ndarray
    sizes: np.ndarray
    text_hashes: np.ndarray
    near_hashes: np.ndarray
    group_hashes: np.ndarray


def encode_source(
    source: DocumentSource | IdFile,
    tokenizer: Tokenizer,
    path: Path,
    bar: Progress,
    *,
    min_hash: MinHash | None = None,
) -> EncodedSource:
    """Write the ids of all documents of a source to a file, and return the properties of the documents.

    Args:
        source: Documents, or existing ids.
        tokenizer: Tokenizer of the ids.
        path: File to write.
        bar: Progress bar to which a task is added.
        min_hash: Object to which all documents are added, or None.

    Raises:
        UserError: If a text cannot be read or encoded, or most pieces of text are a single unknown token.
    """
    is_text = not isinstance(source, IdFile)
    task = bar.add_task(
        f"{'tokenizing' if is_text else 'reading'} {source.name}", total=source.size() if is_text else None
    )
    text_hashes, near_hashes, group_hashes, pieces = array("Q"), array("Q"), array("Q"), list[tuple[int, int]]()
    unknown = total = 0
    with path.open("wb") as file:
        writer = DocumentWriter(file, tokenizer)
        for piece in encode_pieces(source, tokenizer):
            writer.write(piece.ids, piece.n_bytes)
            pieces.append((piece.text_hash, piece.text_hash if piece.text is None else hash_near_duplicate(piece.text)))
            if min_hash is not None:
                _add_piece(min_hash, piece)
            unknown += len(piece.ids) == 1 and piece.ids[0] == tokenizer.unk_id
            total += 1
            bar.advance(task, piece.n_bytes if is_text else piece.ids.nbytes)
            if piece.last:
                writer.end()
                for hashes, piece_hashes in zip((text_hashes, near_hashes), zip(*pieces, strict=True), strict=True):
                    hashes.append(hash_bytes(array("Q", piece_hashes).tobytes()))
                group_hashes.append(hash_text(piece.group) if piece.group else 0)
                pieces.clear()
    if is_text:
        check_unknown_share(source.name, tokenizer, unknown, total)
    return EncodedSource(
        starts=np.array(writer.ends[:-1], dtype=np.int64),
        sizes=np.array(writer.sizes, dtype=np.int64),
        text_hashes=np.array(text_hashes, dtype=np.uint64),
        near_hashes=np.array(near_hashes, dtype=np.uint64),
        group_hashes=np.array(group_hashes, dtype=np.uint64),
    )


def _add_piece(min_hash: MinHash, piece: EncodedPiece) -> None:
    if piece.text is None:
        min_hash.add_symbols(piece.ids, last=piece.last)
    else:
        min_hash.add(piece.text, last=piece.last)


def encode_pieces(
    source: DocumentSource | IdFile, tokenizer: Tokenizer, *, skip: int = 0, characters: int | None = None
) -> Iterator[EncodedPiece]:
    """Yield all documents of a source, piece by piece.

    Pieces are cut so that their concatenated ids are those of the whole document, if there is such a cut near their
    end. A prefix space is added only to the first piece of a document.

    Args:
        source: Documents, or existing ids.
        tokenizer: Tokenizer of the ids.
        skip: Number of pieces to skip without encoding them.
        characters: Approximate number of characters to encode in one call (default: `cache.CHUNK_CHARACTERS`).
    """
    if isinstance(source, IdFile):
        yield from islice(_cut_blocks(source, tokenizer), skip, None)
        return
    pieces = _cut_exactly(source.pieces(), tokenizer, skip)
    for chunk in chunk_items(pieces, lambda piece: len(piece.text), characters):
        chunk_ids = encode_located(
            tokenizer, [piece.text for piece in chunk],
            (f"{source.name}, {piece.document}" for piece in chunk),
            continued=[piece.continues for piece in chunk],
        )  # fmt: skip
        for piece, ids in zip(chunk, chunk_ids, strict=True):
            text = piece.text.encode()
            yield EncodedPiece(ids, len(text), piece.last, hash_bytes(text), piece.text, piece.group)


class _Part(NamedTuple):
    """Part of a document's text. `continues` is False for the first part; `document` names the document in messages."""

    text: str
    last: bool
    continues: bool
    document: str
    group: str


def _cut_exactly(pieces: Iterator[TextPiece], tokenizer: Tokenizer, skip: int) -> Iterator[_Part]:
    """Yield the pieces from number `skip` on, cut near their ends so that the cuts do not change any ids."""
    previous, document = None, 1  # text that the previous piece passes to this one, and whether its document continues
    for number, (piece, following) in enumerate(pairwise(chain(pieces, [None]))):
        assert piece is not None
        carried_text, continues = previous or ("", False)
        end = len(piece.text)
        if not piece.last and following is not None and number >= skip - 1:
            end = _find_exact_cut(piece.text, following.text, tokenizer)
        previous = None if piece.last else (piece.text[end:], True)
        if number >= skip:
            location = f"record {shorten(repr(piece.record), 80)}" if piece.record else f"document {document:,}"
            yield _Part(carried_text + piece.text[:end], piece.last, continues, location, piece.group)
        document += piece.last


def _find_exact_cut(text: str, following: str, tokenizer: Tokenizer) -> int:
    """Return a position near the end of `text` at which a cut does not change any ids, or the end if there is none."""
    if not tokenizer.uses_library:
        return len(text)
    nearby = range(len(text) - 1, max(0, len(text) - CUT_REACH), -1)
    breaks = (place for place in nearby if text[place - 1].isspace() != text[place].isspace())
    for place in islice(chain([len(text)], breaks), CUT_TRIES):
        left = text[max(0, place - CUT_CONTEXT) : place]
        right = text[place : place + CUT_CONTEXT] + following[: max(0, place + CUT_CONTEXT - len(text))]
        whole, *parts = tokenizer.encode_batch([left + right, left, right], continued=[True] * 3)
        if np.array_equal(whole, np.concatenate(parts)):
            return place
    return len(text)


def beginning_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids before each document: the tokenizer's `opening`, else bos if it has a mask token."""
    if tokenizer.opening:
        return list(tokenizer.opening)
    return [] if tokenizer.mask_id is None or tokenizer.bos_id is None else [tokenizer.bos_id]


def encoding_key(tokenizer: Tokenizer) -> list[Any]:
    """Return the properties of a tokenizer that the ids depend on, in addition to its hash.

    The opening ids, the prefix space, and the roles that a model folder changes are included only if they are set, so
    that caches of versions without them remain valid.
    """
    beginning, changed_roles = beginning_ids(tokenizer), sorted(tokenizer.changed_roles.items())
    key_parts = [["opening", *tokenizer.opening], ["prefix", tokenizer.adds_prefix], ["roles", *changed_roles]]
    return (["bos"] if beginning else []) + [part for part in key_parts if any(part[1:])]


def check_ids(source: DocumentSource | IdFile, tokenizer: Tokenizer) -> None:
    """Raise UserError if a file of ids has an id that the tokenizer lacks. Other sources are not read."""
    if isinstance(source, IdFile) and (largest := source.largest()) >= tokenizer.id_limit:
        raise UserError(f"{source.name}: {beyond_error(str(largest), tokenizer.id_limit)}")


class DocumentWriter:
    """Writer of documents, with `beginning_ids` and eos unless a document already has them.

    Attributes:
        ends: Number of ids up to the end of each complete document, after an initial 0.
        sizes: UTF-8 bytes of each complete document.
        last: Last id of the current document, or None if there is none.
        n_ids: Number of ids written.
    """

    def __init__(
        self,
        file: SupportsWrite,
        tokenizer: Tokenizer,
        *,
        dtype: np.dtype[Any] | None = None,
        last: int | None = None,
    ) -> None:
        """Initialize the writer.

        Args:
            file: File to write to.
            tokenizer: Tokenizer of the ids.
            dtype: Type of the ids in the file (default: `id_dtype(tokenizer)`).
            last: Last id written of a document that the first one continues, or None if it is a new document.
        """
        self._file, self._dtype = file, dtype or id_dtype(tokenizer)
        self._beginning, self._eos = np.array(beginning_ids(tokenizer), dtype=self._dtype), tokenizer.eos_id
        self.ends, self.sizes, self.last = array("q", [0]), array("q"), last
        self.n_ids = self._size = 0

    @property
    def is_open(self) -> bool:
        """True if a document has been started and has not ended."""
        return self.n_ids > self.ends[-1] or self.last is not None

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes) + self._size

    @property
    def starts(self) -> "array[int]":
        """Positions in the file at which documents start, or continue from another file."""
        return self.ends if self.n_ids > self.ends[-1] else self.ends[:-1]

    def write(self, ids: np.ndarray[Any, Any], n_bytes: int) -> None:
        """Write the next ids of a document; their text has `n_bytes` UTF-8 bytes."""
        if not self.is_open and not np.array_equal(ids[: len(self._beginning)], self._beginning):
            self._append(self._beginning)
        self._append(ids)
        self._size += n_bytes
        if len(ids):
            self.last = int(ids[-1])

    def end(self) -> None:
        if self._eos is not None and self.last != self._eos:
            self._append(np.array([self._eos]))
        self.ends.append(self.n_ids)
        self.sizes.append(self._size)
        self._size, self.last = 0, None

    def _append(self, ids: np.ndarray[Any, Any]) -> None:
        self._file.write(ids.astype(self._dtype).tobytes())
        self.n_ids += len(ids)


def _cut_blocks(source: IdFile, tokenizer: Tokenizer) -> Iterator[EncodedPiece]:
    """Yield the documents of a file of ids. A list of ids is one document, or several if it contains eos inside."""
    is_open = False
    for ids, last in source.blocks():
        cuts = [] if tokenizer.eos_id is None else (np.flatnonzero(ids == tokenizer.eos_id) + 1).tolist()
        for start, end in pairwise([0, *cuts]):
            yield _make_piece(ids[start:end], tokenizer, last=True)
        rest = ids[cuts[-1] if cuts else 0 :]
        is_open = bool(len(rest)) or (is_open and not cuts)
        if is_open and (len(rest) or last):
            yield _make_piece(rest, tokenizer, last=last)
        is_open = is_open and not last


def _make_piece(ids: np.ndarray[Any, Any], tokenizer: Tokenizer, *, last: bool) -> EncodedPiece:
    return EncodedPiece(ids, tokenizer.count_bytes(ids), last, hash_bytes(ids.tobytes()), None)

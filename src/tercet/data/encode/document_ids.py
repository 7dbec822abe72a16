"""From documents, or from ids that were made elsewhere, to one file of ids.

Each document is ended by eos where there is one. It begins with the ids that open a text for its tokenizer (a Llama's
bos), as in generation, or with bos where tokens are masked.
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
from tercet.data.sources.documents import DocumentSource, TextPiece
from tercet.data.sources.id_files import IdFile
from tercet.data.text_hashes import hash_bytes, hash_near_duplicate
from tercet.messages import shorten
from tercet.tokens import Tokenizer
from tercet.tokens.sequences import beyond_error

CUT_REACH = 4096  # characters before the end of a piece, in which a better place to cut is looked for
CUT_TRIES = 64  # such places
CUT_CONTEXT = 256  # characters on either side: the ids at a place do not depend on what is further away


class SupportsWrite(Protocol):
    """A file, or a buffer."""

    def write(self, data: bytes, /) -> object: ...


class EncodedPiece(NamedTuple):
    """A part of a document.

    Attributes:
        ids: (N,), perhaps none.
        n_bytes: of its text in UTF-8.
        last: whether the document ends with it.
        text_hash: of its text, or of the ids of a file that has no text.
        text: What `ids` was made from; None of a file that has no text.
    """

    ids: np.ndarray[Any, Any]
    n_bytes: int
    last: bool
    text_hash: int
    text: str | None


class EncodedSource(NamedTuple):
    """What was written of a source.

    Attributes:
        starts: (D,) int64: where each document starts.
        sizes: (D,) int64: the UTF-8 bytes of its text.
        text_hashes: (D,) uint64: equal for documents of equal text.
        near_hashes: (D,) uint64: Equal for near duplicates. Documents of several pieces are compared piece by piece.
    """

    starts: np.ndarray
    sizes: np.ndarray
    text_hashes: np.ndarray
    near_hashes: np.ndarray


def encode_source(source: DocumentSource | IdFile, tokenizer: Tokenizer, path: Path, bar: Progress) -> EncodedSource:
    """Write the ids of all documents.

    Raises:
        UserError: If a text cannot be read or encoded, or most texts are one unknown token each.
    """
    is_text = not isinstance(source, IdFile)
    task = bar.add_task(
        f"{'tokenising' if is_text else 'reading'} {source.name}", total=source.size() if is_text else None
    )
    text_hashes, near_hashes, pieces = array("Q"), array("Q"), list[tuple[int, int]]()
    unknown = total = 0
    with path.open("wb") as file:
        writer = DocumentWriter(file, tokenizer)
        for piece in encode_pieces(source, tokenizer):
            writer.write(piece.ids, piece.n_bytes)
            pieces.append((piece.text_hash, piece.text_hash if piece.text is None else hash_near_duplicate(piece.text)))
            unknown += len(piece.ids) == 1 and piece.ids[0] == tokenizer.unk_id
            total += 1
            bar.advance(task, piece.n_bytes if is_text else piece.ids.nbytes)
            if piece.last:
                writer.end()
                for hashes, piece_hashes in zip((text_hashes, near_hashes), zip(*pieces, strict=True), strict=True):
                    hashes.append(hash_bytes(array("Q", piece_hashes).tobytes()))
                pieces.clear()
    if is_text:
        check_unknown_share(source.name, tokenizer, unknown, total)
    return EncodedSource(
        starts=np.array(writer.ends[:-1], dtype=np.int64),
        sizes=np.array(writer.sizes, dtype=np.int64),
        text_hashes=np.array(text_hashes, dtype=np.uint64),
        near_hashes=np.array(near_hashes, dtype=np.uint64),
    )


def encode_pieces(
    source: DocumentSource | IdFile, tokenizer: Tokenizer, *, skip: int = 0, characters: int | None = None
) -> Iterator[EncodedPiece]:
    """All documents of a source, piece by piece.

    The ids of a document's pieces, joined, are those of the whole: a tokenizer that puts a space before every text puts
    none before a piece, and what it would join across the end of a piece goes to the next one.

    Args:
        skip: so many pieces are left out, and not tokenised either.
        characters: of text that is tokenised together.
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
            yield EncodedPiece(ids, len(text), piece.last, hash_bytes(text), piece.text)


class _Part(NamedTuple):
    """A part of a document, which `continues` another part or begins the document; `document` names that."""

    text: str
    last: bool
    continues: bool
    document: str


def _cut_exactly(pieces: Iterator[TextPiece], tokenizer: Tokenizer, skip: int) -> Iterator[_Part]:
    """The pieces from number `skip` on, cut where the tokenizer joins nothing: at their ends, or soon before."""
    previous, document = None, 1  # the previous piece, and how much of it goes to this one
    for number, (piece, following) in enumerate(pairwise(chain(pieces, [None]))):
        assert piece is not None
        carried_text, continues = previous or ("", False)
        end = len(piece.text)
        if not piece.last and following is not None and number >= skip - 1:
            end = _find_exact_cut(piece.text, following.text, tokenizer)
        previous = None if piece.last else (piece.text[end:], True)
        if number >= skip:
            location = f"record {shorten(repr(piece.record), 80)}" if piece.record else f"document {document:,}"
            yield _Part(carried_text + piece.text[:end], piece.last, continues, location)
        document += piece.last


def _find_exact_cut(text: str, following: str, tokenizer: Tokenizer) -> int:
    """Where to cut `text` so that both sides have the ids of the whole; its end if there is no such place near it."""
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
    """What stands before each document: what opens a text for its tokenizer, else bos for a model that fills masks."""
    if tokenizer.opening:
        return list(tokenizer.opening)
    return [] if tokenizer.mask_id is None or tokenizer.bos_id is None else [tokenizer.bos_id]


def encoding_key(tokenizer: Tokenizer) -> list[Any]:
    """What the ids of documents depend on besides the tokenizer's hash; empty if they are as the first caches had them.

    The opening of a text, the space that no piece gets, and the roles that a folder gives are not in those.
    """
    beginning, changed_roles = beginning_ids(tokenizer), sorted(tokenizer.changed_roles.items())
    key_parts = [["opening", *tokenizer.opening], ["prefix", tokenizer.adds_prefix], ["roles", *changed_roles]]
    return (["bos"] if beginning else []) + [part for part in key_parts if any(part[1:])]


def check_ids(source: DocumentSource | IdFile, tokenizer: Tokenizer) -> None:
    """Raises UserError where a file has ids that the tokenizer does not; it is read through for that."""
    if isinstance(source, IdFile) and (largest := source.largest()) >= tokenizer.id_limit:
        raise UserError(f"{source.name}: {beyond_error(str(largest), tokenizer.id_limit)}")


class DocumentWriter:
    """The documents that are written so far; what has its beginning already, or ends with eos, gets no second one.

    Attributes:
        ends: position in the file at which each ends, and 0 before the first.
        sizes: UTF-8 bytes of each.
        last: the last id of the document that has not ended.
    """

    def __init__(
        self,
        file: SupportsWrite,
        tokenizer: Tokenizer,
        *,
        dtype: np.dtype[Any] | None = None,
        last: int | None = None,
    ) -> None:
        """With `last` a document goes on here, of which this was the last id so far."""
        self._file, self._dtype = file, dtype or id_dtype(tokenizer)
        self._beginning, self._eos = np.array(beginning_ids(tokenizer), dtype=self._dtype), tokenizer.eos_id
        self.ends, self.sizes, self.last = array("q", [0]), array("q"), last
        self.n_ids = self._size = 0

    @property
    def is_open(self) -> bool:
        """Whether something is written of a document that has not ended."""
        return self.n_ids > self.ends[-1] or self.last is not None

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes) + self._size

    @property
    def starts(self) -> "array[int]":
        """Where each document starts, or goes on from another file."""
        return self.ends if self.n_ids > self.ends[-1] else self.ends[:-1]

    def write(self, ids: np.ndarray[Any, Any], n_bytes: int) -> None:
        """The next ids of a document, and how many bytes they stand for."""
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
    """Each list of ids is a document, and so is what stands between two eos of a list."""
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

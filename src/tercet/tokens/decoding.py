"""Conversion of ids to text: each id stands for some bytes, which are joined and decoded as UTF-8.

Some tokens lose their leading space at the start of a text, so a second table contains the bytes of tokens there. A
token may be a part of a character, so bytes are joined before they are decoded, and a stream holds back incomplete
characters. Invalid UTF-8, which a model may generate, is decoded as U+FFFD, the replacement character.
"""

import codecs
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, Protocol

from tercet.tokens.trainers import BYTE_TOKENS

CLEANUPS = [
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
]


MAX_CONTEXT_TOKENS = 16  # tokens of a prompt that are decoded again with each new token


class ByteTables(NamedTuple):
    """The bytes that each id adds to a text, in id order.

    Attributes:
        first: Bytes of the first token with text.
        later: Bytes of all other tokens.
    """

    first: Sequence[bytes]
    later: Sequence[bytes]

    def without(self, ids: Set[int]) -> "ByteTables":
        """Return the tables without bytes for these ids."""
        return ByteTables(*([b"" if n in ids else piece for n, piece in enumerate(table)] for table in self))


class TextStream(Protocol):
    """Incremental decoder.

    The results of `push` for each id and of `flush` at the end, joined, equal the result of `decode` for all ids.
    """

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class ByteStream:
    """A `TextStream` from two tables of the bytes of each id.

    `first` is used for the first token with text, and `table` for all others. Ids in `special` have no text.
    """

    def __init__(self, table: Sequence[bytes], first: Sequence[bytes], special: frozenset[int]) -> None:
        self._table, self._next, self._special = table, first, special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if not 0 <= token < len(self._table) or token in self._special:
            return ""
        piece = self._next[token]
        if self._table[token]:
            self._next = self._table
        return self._decoder.decode(piece)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class RedecodingStream:
    """A `TextStream` for tokenizers that only the `tokenizers` library can decode, such as sentencepiece's.

    The whole text is decoded again for each token, and the new part is returned. A run of byte tokens is held back
    until it ends, since an invalid byte can change how previous bytes are decoded. In that case the library's own
    stream raises an error.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], byte_ids: frozenset[int], *, after: Sequence[int] = ()
    ) -> None:
        """Create a stream for ids that follow `after`.

        Args:
            decode: Function from ids to text.
            byte_ids: Ids that stand for single bytes.
            after: Previous ids; only the last `MAX_CONTEXT_TOKENS`, and a run of bytes that they continue, are used.
        """
        self._decode, self._byte_ids = decode, byte_ids
        start = max(0, len(after) - MAX_CONTEXT_TOKENS)
        while start and after[start] in byte_ids:  # bytes are decoded from the start of their run
            start -= 1
        self._ids = list(after[start:])
        self._emitted_text = decode(self._ids)

    def push(self, token: int) -> str:
        self._ids.append(token)
        return "" if token in self._byte_ids else self._new_text(incomplete_end="\ufffd")

    def flush(self) -> str:
        return self._new_text(incomplete_end=None)

    def _new_text(self, incomplete_end: str | None) -> str:
        text = self._decode(self._ids)
        if incomplete_end and text.endswith(incomplete_end):
            return ""
        new, self._emitted_text = text.removeprefix(self._emitted_text), text
        return new


def byte_table(structure: dict[str, Any], names: Sequence[str]) -> list[bytes] | None:
    """Return the bytes of every id, in id order; None if decoding is more than joining the bytes of the tokens.

    Args:
        structure: Parsed `tokenizer.json`.
        names: Tokens as the library writes them, in id order.
    """
    steps = decoder_steps(structure)
    if steps[-1:] == ["Strip"] and has_prefix_space(structure):
        steps.pop()
    match steps:
        case ["ByteLevel"]:
            value = {character: byte for byte, character in enumerate(byte_characters())}
            plain = [all(character in value for character in name) for name in names]
            return [
                bytes(value[character] for character in name) if is_plain else name.encode()
                for name, is_plain in zip(names, plain, strict=True)
            ]
        case ["ByteFallback", "Fuse"]:
            value = {name: bytes([byte]) for byte, name in enumerate(BYTE_TOKENS)}
            return [value.get(name, name.encode()) for name in names]
        case ["Fuse"]:
            return [name.encode() for name in names]
        case [] if is_separated(structure):  # without a decoder the library joins tokens by spaces
            return [f" {name}".encode() if name else b"" for name in names]
        case ["WordPiece"]:
            prefix, cleanup = structure["decoder"]["prefix"], structure["decoder"]["cleanup"]
            pieces = [name.removeprefix(prefix) if name.startswith(prefix) else f" {name}" for name in names]
            return [
                _clean_up(piece, cleanup).encode() if name else b"" for name, piece in zip(names, pieces, strict=True)
            ]
        case _:
            return None


def first_table(structure: dict[str, Any], names: Sequence[str], table: list[bytes]) -> list[bytes]:
    """Return the bytes of every id at the start of a text.

    Args:
        structure: Parsed `tokenizer.json`.
        names: Tokens as the library writes them, in id order.
        table: Bytes of every id elsewhere in a text, as from `byte_table`.
    """
    if decoder_steps(structure) == ["WordPiece"]:  # a first piece from inside a word keeps its ##
        return [_clean_up(name, structure["decoder"]["cleanup"]).encode() for name in names]
    starts_without = has_prefix_space(structure) or is_separated(structure)
    return [piece.removeprefix(b" ") for piece in table] if starts_without else table


def piece_tables(structure: dict[str, Any], names: Sequence[str]) -> ByteTables | None:
    """Return the bytes of every id if the decoder restores the spaces of sentencepiece; None for other decoders.

    The tables apply to valid UTF-8 only: the library replaces each byte of an invalid character separately.

    Args:
        structure: Parsed `tokenizer.json`.
        names: Tokens as the library writes them, in id order.
    """
    decoders = _decoders(structure)
    bytes_of = {name: bytes([byte]) for byte, name in enumerate(BYTE_TOKENS)}
    match decoders:
        case [{"type": "Metaspace", "replacement": str(mark)}]:  # the first token loses all its marks
            drops = decoders[0].get("prepend_scheme", "always") != "never"
            later = [name.replace(mark, " ").encode() for name in names]
            return ByteTables([name.replace(mark, "").encode() for name in names] if drops else later, later)
        case [
            {"type": "Replace", "pattern": {"String": str(mark)}, "content": str(space)},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            *end,
        ] if end in ([], [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]):
            later = [bytes_of.get(name) or name.replace(mark, space).encode() for name in names]
            return ByteTables([piece.removeprefix(b" ") for piece in later] if end else later, later)
        case _:
            return None


def is_separated(structure: dict[str, Any]) -> bool:
    """Return whether decoding puts a space between tokens that belongs to neither of them."""
    return not decoder_steps(structure) and structure["model"]["type"] == "WordLevel"


def _clean_up(piece: str, cleanup: bool) -> str:
    """Apply the library's `cleanup` to a token: no space before punctuation, joined English contractions."""
    for pattern, replacement in CLEANUPS if cleanup else ():
        piece = piece.replace(pattern, replacement)
    return piece


def decoder_steps(structure: dict[str, Any]) -> list[str]:
    """Return the types of the steps of a `tokenizer.json`'s decoder."""
    return [part["type"] for part in _decoders(structure)]


def has_prefix_space(structure: dict[str, Any]) -> bool:
    """Return whether the normalizer of a `tokenizer.json` only adds a space before texts, which decoding removes."""
    return (
        structure.get("normalizer") == {"type": "Prepend", "prepend": " "}
        and _decoders(structure)[-1:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        and len(_decoders(structure)) == 2
    )


def _decoders(structure: dict[str, Any]) -> list[dict[str, Any]]:
    decoder = structure.get("decoder") or {}
    return [part for part in decoder.get("decoders", [decoder]) if part]


def byte_characters() -> list[str]:
    """Return GPT-2's visible character for each byte: itself if it is printable, else one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(substitutes)) for byte in range(256)]

"""Ids back to text: every id stands for some bytes, and text is those bytes joined and read as UTF-8.

Some tokens lose the space before them where they begin a text, so there is a second table for those that do.
A token may hold half a character, so bytes are joined before they are read, and a stream holds back an unfinished
character until it is whole. What is not UTF-8 (a model may say anything) is read as U+FFFD, the replacement character.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tercet.tokens.trainers import BYTE_TOKENS

CLEANUPS = [
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
]


MAX_CONTEXT_TOKENS = 16  # tokens of a prompt that are decoded again with each new token


class TextStream(Protocol):
    """Text from ids as they come: all `push`es and the `flush` joined equal `decode` of the whole list."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class ByteStream:
    """A `TextStream` over two tables of bytes per id: for the `first` token that stands for any, and for the others."""

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
    """A `TextStream` for a tokenizer whose decoder only the library knows (sentencepiece's spaces).

    The whole text is decoded at every token, and what is new in it is emitted. The library's own stream raises an error
    where a byte that is no UTF-8 changes how the bytes before it are read, so a run of bytes is held back to its end.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], byte_ids: frozenset[int], *, after: Sequence[int] = ()
    ) -> None:
        """Decode what follows `after`, of which the last few tokens suffice; `byte_ids` are the ids of single bytes."""
        self._decode, self._byte_ids = decode, byte_ids
        start = max(0, len(after) - MAX_CONTEXT_TOKENS)
        while start and after[start] in byte_ids:  # bytes are read from the first of their run
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
    """The bytes of every id, in id order; None where the tokenizer does more than to join its tokens.

    Args:
        structure: the parsed `tokenizer.json`.
        names: the tokens as the library writes them, in id order.
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
        case [] if is_separated(structure):  # the library joins by a space what has no decoder
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
    """The bytes of every id where it is the first of a text, beside its `table` elsewhere."""
    if decoder_steps(structure) == ["WordPiece"]:  # a piece from inside a word then shows that it is one
        return [_clean_up(name, structure["decoder"]["cleanup"]).encode() for name in names]
    starts_without = has_prefix_space(structure) or is_separated(structure)
    return [piece.removeprefix(b" ") for piece in table] if starts_without else table


def is_separated(structure: dict[str, Any]) -> bool:
    """Whether a space stands between any two tokens, which belongs to neither."""
    return not decoder_steps(structure) and structure["model"]["type"] == "WordLevel"


def _clean_up(piece: str, cleanup: bool) -> str:
    """The library's `cleanup`, one token at a time: no space before a full stop, and English contractions joined."""
    for pattern, replacement in CLEANUPS if cleanup else ():
        piece = piece.replace(pattern, replacement)
    return piece


def decoder_steps(structure: dict[str, Any]) -> list[str]:
    """The steps of a `tokenizer.json`'s decoder, by name."""
    return [part["type"] for part in _decoders(structure)]


def has_prefix_space(structure: dict[str, Any]) -> bool:
    """Whether a `tokenizer.json` puts a space before every text and takes one away at the end, and does no more."""
    return (
        structure.get("normalizer") == {"type": "Prepend", "prepend": " "}
        and _decoders(structure)[-1:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        and len(_decoders(structure)) == 2
    )


def _decoders(structure: dict[str, Any]) -> list[dict[str, Any]]:
    decoder = structure.get("decoder") or {}
    return [part for part in decoder.get("decoders", [decoder]) if part]


def byte_characters() -> list[str]:
    """The visible character by which GPT-2's vocabulary writes each byte: itself where it prints, else from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(substitutes)) for byte in range(256)]

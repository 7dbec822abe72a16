"""Small .spm files, written by hand in the protobuf format of sentencepiece_model.proto."""

import struct
from collections.abc import Mapping
from typing import Any


def spm(
    scores: Mapping[str, float], *, kinds: Mapping[str, int] | None = None, model: int = 1, table: bytes = b"",
    **settings: Any,
) -> bytes:  # fmt: skip
    """Return a file of pieces with scores, after `<unk>`, `<s>` and `</s>`; keys of `settings` are field numbers."""
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, **(kinds or {})}
    pieces = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, **scores}
    data = b""
    for name, score in pieces.items():
        piece = text(1, name.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
        data += text(1, piece + (number(3, kinds[name]) if name in kinds else b""))
    data += text(2, number(3, model) + text(1, b"some.txt"))
    normal = text(1, b"nmt_nfkc") + (text(2, table) if table else b"")
    return data + text(3, normal + b"".join(number(int(key[1:]), value) for key, value in settings.items()))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])

"""Fast conversion of characters to ids without the `tokenizers` library: a megabyte of text takes milliseconds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tercet.config import UserError
from tercet.tokens.trainers import BYTE_TOKENS


class CharacterTable:
    """Map from code points to ids as one array, so that a whole text is looked up at once."""

    def __init__(self, names: Sequence[str]) -> None:
        codes = {ord(name): token for token, name in enumerate(names) if len(name) == 1}
        self._ids = np.full(
            max(codes, default=0) + 2, -1, dtype=np.int64
        )  # the last row stands for all higher code points
        self._ids[list(codes)] = list(codes.values())
        ids_by_name = {name: token for token, name in enumerate(names)}
        has_byte_tokens = all(name in ids_by_name for name in BYTE_TOKENS)
        self._bytes = np.array([ids_by_name[name] for name in BYTE_TOKENS]) if has_byte_tokens else None

    def encode(self, text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        ids = self._ids[np.minimum(codes, len(self._ids) - 1)]
        unknown = ids < 0
        if not unknown.any():
            return ids.astype(np.uint32)
        if self._bytes is None:
            raise self._unknown_error(sorted({chr(code) for code in codes[unknown]}))
        n_bytes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)  # UTF-8 bytes of each character
        repeats = np.where(unknown, n_bytes, 1)
        values = np.frombuffer(codes[unknown].tobytes().decode("utf-32-le").encode(), dtype=np.uint8)
        ids = np.repeat(ids, repeats)
        ids[np.repeat(unknown, repeats)] = self._bytes[values]
        return ids.astype(np.uint32)

    def _unknown_error(self, characters: Sequence[str]) -> UserError:
        shown_characters = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in characters[:5])
        suffix = f" and {len(characters) - 5} more" if len(characters) > 5 else ""
        remedy = "set byte_fallback: true, or use the kind bpe, and train again"
        if all(character.upper() != character and self._has(character.upper()) for character in characters):
            remedy = f"write it in capitals (for sequences, set data.sequence_case: upper), or {remedy}"
        return UserError(f"the vocabulary has no {shown_characters}{suffix}; {remedy}")

    def _has(self, character: str) -> bool:
        return len(character) == 1 and ord(character) < len(self._ids) and bool(self._ids[ord(character)] >= 0)

"""Places of the tokens of a text, so that a part of the tokens can be shown as a part of the text."""

import re
from typing import Any

import numpy as np
import tokenizers

from tercet.tokens.library import check_unicode
from tercet.tokens.structure import library_errors

_NUMBER = re.compile(r"[0-9]+")
Starts = np.ndarray[Any, np.dtype[np.int64]]


class TokenOffsets:
    """The part of a tokenizer that finds its tokens in a text."""

    kind: str
    _library: tokenizers.Tokenizer

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def token_starts(self, text: str) -> Starts:
        """Return the index (N,) of the character of `text` at which each token of `encode(text)` begins.

        The indices do not decrease. Tokens that are parts of one character begin at the same index. The first token
        begins at 0, and the space before a word may belong to the previous token, depending on the tokenizer.

        Raises:
            UserError: If `text` cannot be encoded.
        """
        check_unicode(text)
        if self.kind == "ids":
            starts = np.array([match.start() for match in _NUMBER.finditer(text)], dtype=np.int64)
        elif self.kind == "characters":
            lengths = {character: len(self.encode(character)) for character in {*text}}  # bytes of unknown characters
            starts = np.repeat(np.arange(len(text)), [lengths[character] for character in text])
        else:
            with library_errors():
                offsets = self._library.encode(text, add_special_tokens=False).offsets
            starts = np.array([start for start, _ in offsets], dtype=np.int64)
            starts = np.maximum.accumulate(np.clip(starts, 0, len(text)))
        starts[:1] = 0
        return starts

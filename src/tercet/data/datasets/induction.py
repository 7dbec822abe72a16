"""Dataset of repeated random words, in which a token can only be predicted by looking back.

Each document is a word of distinct random letters, repeated to the end of the document. The letters cannot be
memorized, because every word is new. A letter that has occurred before is followed by the same letter again, so a
model that predicts that letter has developed an induction head (Olsson et al. 2022).
"""

from functools import cache
from string import ascii_lowercase

import numpy as np

DOCUMENTS = 20_000
LENGTH = 64  # characters of a document
WORD = (8, 24)  # minimum and maximum length of a word, so that it occurs at least twice, at varying distances
SEED = 5


@cache
def repeated_words() -> tuple[str, ...]:
    """Return the documents: the same ones in every call, no two of them equal."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    letters = generator.permuted(np.tile(np.array(list(ascii_lowercase)), (DOCUMENTS, 1)), axis=1)
    sizes = generator.integers(WORD[0], WORD[1], size=DOCUMENTS, endpoint=True)
    words = ("".join(row[:size]) for row, size in zip(letters.tolist(), sizes, strict=True))
    return tuple((word * (LENGTH // len(word) + 1))[:LENGTH] for word in words)

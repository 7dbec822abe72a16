"""Words that are said again and again: text in which only looking back helps.

Each document is a word of random letters, no letter twice in it, repeated to the document's end. Which letter comes
cannot be learnt by heart, for every word is new; but once a letter has been seen, it is told by what followed it then.
A model that does so has grown an induction head (Olsson et al. 2022).
"""

from functools import cache
from string import ascii_lowercase

import numpy as np

DOCUMENTS = 20_000
LENGTH = 64  # characters of a document
WORD = (8, 24)  # the shortest and the longest word: said at least twice, and at no fixed distance
SEED = 5


@cache
def repeated_words() -> tuple[str, ...]:
    """The documents, always the same and no two alike."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    letters = generator.permuted(np.tile(np.array(list(ascii_lowercase)), (DOCUMENTS, 1)), axis=1)
    sizes = generator.integers(WORD[0], WORD[1], size=DOCUMENTS, endpoint=True)
    words = ("".join(row[:size]) for row, size in zip(letters.tolist(), sizes, strict=True))
    return tuple((word * (LENGTH // len(word) + 1))[:LENGTH] for word in words)

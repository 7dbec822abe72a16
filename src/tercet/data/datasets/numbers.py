"""Dataset of numbers in English and German words, learned in minutes and checked exactly.

German swaps units and tens ("siebenundzwanzig" for twenty-seven) and writes a number as one word, so that translating
word by word fails. Numbers outside the training part show whether a model has learned the rules or memorized examples.
"""

from functools import cache

import numpy as np

from tercet.config import UserError
from tercet.data.examples.pairs import Pair, PairTexts

TRAIN_BELOW = 2_000  # all smaller numbers are in the training part
PART_SIZES = {
    "train": 18_000,
    "validation": 500,
    "test": 1_000,
}  # numbers of each part from TRAIN_BELOW on, in equal shares of 4, 5 and 6 digits
LENGTHS = (4, 5, 6)  # digits
SEED = 27


@cache
def number_pairs(part: str, source: str, target: str) -> PairTexts:
    """Return the pairs of one part, "train", "validation" or "test". The parts have no number in common.

    Args:
        part: Name of the part.
        source, target: Languages, "en" or "de".

    Raises:
        UserError: If the `num2words` package is not installed.
    """
    texts = tuple(Pair(_spell(number, source), _spell(number, target)) for number in _draw_numbers()[part])
    return PairTexts(name="numbers", items=texts)


@cache
def _draw_numbers() -> dict[str, list[int]]:
    generator = np.random.Generator(np.random.PCG64(SEED))
    parts = {part: list(range(TRAIN_BELOW)) if part == "train" else [] for part in PART_SIZES}
    for index, length in enumerate(LENGTHS):
        shares = {part: (count + index) // len(LENGTHS) for part, count in PART_SIZES.items()}
        first = max(TRAIN_BELOW, 10 ** (length - 1))
        sample = first + generator.permutation(10**length - first)[: sum(shares.values())]
        for part, share in shares.items():
            parts[part] += sample[:share].tolist()
            sample = sample[share:]
    return {part: generator.permutation(part_numbers).tolist() for part, part_numbers in parts.items()}


def _spell(number: int, language: str) -> str:
    """Spell a number below a million by joining its thousands and the rest, both cached because num2words is slow."""
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _spell_below_million(rest, language)
    thousands_text = _spell_below_million(thousands * 1000, language)
    if not rest:
        return thousands_text
    separator = "" if language == "de" else " and " if rest < 100 else ", "
    return thousands_text + separator + _spell_below_million(rest, language)


@cache
def _spell_below_million(number: int, language: str) -> str:
    try:
        from num2words import num2words
    except ImportError:
        raise UserError("the dataset numbers requires num2words; pip install num2words==0.5.14") from None
    return num2words(number, lang=language)

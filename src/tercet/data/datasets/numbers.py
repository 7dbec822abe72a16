"""Numbers written out in English and in German: a translation that is learnt in minutes, and can be checked exactly.

German turns units and tens round ("siebenundzwanzig" for twenty-seven) and writes a number as one word, so word by word
is not enough; and that it is learnt, not known by heart, shows on numbers that training never saw.
"""

from functools import cache

import numpy as np

from tercet.config import UserError
from tercet.data.examples.pairs import Pair, PairTexts

SMALL = 2_000  # all numbers below are for training
PART_SIZES = {
    "train": 18_000,
    "validation": 500,
    "test": 1_000,
}  # numbers above, shared out over their lengths in digits
LENGTHS = (4, 5, 6)
SEED = 27


@cache
def number_pairs(part: str, source: str, target: str) -> PairTexts:
    """The pairs of "train", "validation" or "test"; no number is in two of them.

    Raises:
        UserError: without the `num2words` package.
    """
    texts = tuple(Pair(_spell(number, source), _spell(number, target)) for number in _draw_numbers()[part])
    return PairTexts(name="numbers", texts=texts)


@cache
def _draw_numbers() -> dict[str, list[int]]:
    generator = np.random.Generator(np.random.PCG64(SEED))
    parts = {part: list(range(SMALL)) if part == "train" else [] for part in PART_SIZES}
    for index, length in enumerate(LENGTHS):
        shares = {part: (count + index) // len(LENGTHS) for part, count in PART_SIZES.items()}
        first = max(SMALL, 10 ** (length - 1))
        sample = first + generator.permutation(10**length - first)[: sum(shares.values())]
        for part, share in shares.items():
            parts[part] += sample[:share].tolist()
            sample = sample[share:]
    return {part: generator.permutation(part_numbers).tolist() for part, part_numbers in parts.items()}


def _spell(number: int, language: str) -> str:
    """What num2words writes, which takes its time, put together from thousands and the rest, of which there are few."""
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
        raise UserError("the dataset numbers needs num2words; pip install num2words==0.5.14") from None
    return num2words(number, lang=language)

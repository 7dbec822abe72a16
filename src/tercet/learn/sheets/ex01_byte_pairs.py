"""Exercise 1: Byte pair encoding.

A tokenizer of byte pairs starts with single characters. It repeatedly finds the most frequent pair of neighboring
symbols and merges it to a new symbol. The list of these merges, in the order in which they were learned, is the
tokenizer: it splits new words by the same merges in the same order.

A word is a tuple of symbols: ("l", "o", "w") at first, and ("lo", "w") after the merge of ("l", "o"). A corpus gives
the number of occurrences of each word:

    {("l", "o", "w"): 5, ("l", "o", "w", "e", "r"): 2}

Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 1`.

Paper: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016).
"""

Word = tuple[str, ...]
Pair = tuple[str, str]


def count_pairs(corpus: dict[Word, int]) -> dict[Pair, int]:
    """Return how often each pair of neighboring symbols occurs in the corpus.

    A word that occurs 5 times counts each of its pairs 5 times.
    """
    raise NotImplementedError


def merge_pair(word: Word, pair: Pair) -> Word:
    """Return the word in which each occurrence of the pair is one symbol, from left to right.

    Occurrences do not overlap: ("a", "a", "a") with the pair ("a", "a") becomes ("aa", "a").
    """
    raise NotImplementedError


def learn_merges(corpus: dict[Word, int], n_merges: int) -> list[Pair]:
    """Return the first `n_merges` merges that the corpus teaches, or fewer if no pairs are left.

    Each step merges the most frequent pair in all words and counts the pairs again. If several pairs are equally
    frequent, the first of them in alphabetical order is merged (`min` of the pairs).
    """
    raise NotImplementedError


def encode(word: str, merges: list[Pair]) -> Word:
    """Return the symbols of a new word: its characters, to which the merges are applied in their order."""
    raise NotImplementedError

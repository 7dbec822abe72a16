"""Encoding of words one by one, so that the label of a word can be assigned to its first token."""

from collections.abc import Sequence

import numpy as np

from tercet.tokens import Tokenizer


def encode_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each list of words, their ids (M,) and the position (W,) of each word's first token in the ids.

    Words are encoded as if separated by spaces, but one by one, so that no token belongs to two words. A token that is
    only a space is not the first token of a word. The position is -1 if the tokenizer encodes the word to nothing.
    """
    spaced_sentences = [
        [f" {word}" if number and not tokenizer.prefix_space else word for number, word in enumerate(words)]
        for words in sentences
    ]
    distinct = list(dict.fromkeys(word for words in spaced_sentences for word in words))
    pieces = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
    begins = {word: _find_first_piece(tokenizer, ids) for word, ids in pieces.items()}
    results = list[tuple[np.ndarray, np.ndarray]]()
    for words in spaced_sentences:
        ends = np.cumsum([0, *(len(pieces[word]) for word in words)])
        firsts = np.array([begins[word] for word in words], dtype=np.int64)
        ids = np.concatenate([np.empty(0, np.uint32), *(pieces[word] for word in words)])
        results.append((ids, np.where(firsts < 0, -1, ends[:-1] + firsts)))
    return results


def _find_first_piece(tokenizer: Tokenizer, ids: np.ndarray) -> int:
    if not len(ids):
        return -1
    return next((position for position, piece in enumerate(tokenizer.tokens(ids)) if piece.strip()), 0)

"""Find the tokens that begin a word, for many rows at once, for whole-word masking and display.

A word is a part that the tokenizer's splitting rule gives: letters, digits or punctuation with the space before them,
or white space. The bytes of the tokens are joined and decoded again, because a token may be a part of a character.
Special and unknown tokens begin a word, and so do the first token of a row and the tokens after special and unknown
ones.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence, Set

import numpy as np

SPACE, LETTER, NUMBER, OTHER, MARK, SEPARATE, UNKNOWN = range(7)
NOT_SEEN = 255
WHITE = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | set(map(chr, range(0x2000, 0x200B)))
CONTRACTION = re.compile("'(?:s|t|re|ve|m|ll|d)")
WHOLE_WORD_KINDS = ("fields", "kmers", "ids")  # kinds whose tokens are words
SEPARATE_BYTE = b"\xff"  # never part of UTF-8


def split_before_mask(part: str, absorbs_space: bool, includes_space: bool) -> list[str]:
    """Split the text before a mask as if a word followed it.

    Args:
        part: Text before the mask.
        absorbs_space: If True, the mask absorbs all white space before it, as RoBERTa's does.
        includes_space: If True, words include the space before them.
    """
    if absorbs_space:
        return [part.rstrip()]
    if not includes_space or part[-1:] not in WHITE:
        return [part]
    return [part[:-1]] if part.endswith(" ") else [part[:-1], part[-1]]


class NameWordStarts:
    """Word starts from the names of the tokens: `##ing` continues a word, `▁the` begins one."""

    def __init__(self, begins: Sequence[bool], special: Iterable[int], unknown: int | None) -> None:
        self._begins = np.array([*begins, True])  # the last row stands for all ids outside the vocabulary
        self._separate = _mark_separate(len(begins), special, unknown)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        rows = _to_rows(ids, len(self._begins) - 1)
        starts = self._begins[rows] | self._separate[rows]
        starts[:, 1:] |= self._separate[rows[:, :-1]]
        return starts[:, 1:].reshape(ids.shape)


class TextWordStarts:
    """Word starts from the decoded text."""

    def __init__(
        self, table: Sequence[bytes], special: Iterable[int], unknown: int | None, *, gpt2_rules: bool
    ) -> None:
        """Create the word starts of a vocabulary.

        Args:
            table: Bytes of each id.
            special: Special ids.
            unknown: Id of the unknown token, or None.
            gpt2_rules: If True, split as GPT-2 does: `'ll` is a word, and a combining accent is not a letter.
        """
        self._separate, self._unknown = _mark_separate(len(table), special, unknown), unknown
        pieces = [
            SEPARATE_BYTE if separate else piece for piece, separate in zip([*table, b""], self._separate, strict=True)
        ]
        self._lengths = np.array([len(piece) for piece in pieces])
        self._offsets = self._lengths.cumsum() - self._lengths
        self._bytes = np.frombuffer(b"".join(pieces), dtype=np.uint8)
        self._gpt2_rules = gpt2_rules
        self._classes = np.full(0x110000, NOT_SEEN, dtype=np.uint8)  # by code point, filled on demand

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        rows = _to_rows(ids, len(self._lengths) - 1)
        flat = rows.reshape(-1)
        lengths = self._lengths[flat]
        offsets = lengths.cumsum() - lengths
        positions = np.repeat(self._offsets[flat] - offsets, lengths) + np.arange(lengths.sum())
        # an invalid byte becomes one character, U+DC80 and up
        text = self._bytes[positions].tobytes().decode("utf-8", "surrogateescape")
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
        n_bytes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
        n_bytes[(codes >= 0xD800) & (codes < 0xE000)] = 1
        first_bytes = n_bytes.cumsum() - n_bytes

        classes = self._classes_of(codes)
        separate = np.zeros(len(positions), dtype=np.uint8)
        separate[offsets[self._separate[flat]]] = SEPARATE
        separate[offsets[flat == self._unknown]] = UNKNOWN
        classes = np.maximum(classes, separate[first_bytes])
        begins = np.zeros(len(positions) + 1, dtype=bool)  # by byte; an empty token may follow the last
        begins[first_bytes] = self._begins(text, codes, classes)
        starts = begins[offsets] & (lengths > 0)
        return starts.reshape(rows.shape)[:, 1:].reshape(ids.shape)

    def _begins(self, text: str, codes: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Return True for each character that begins a word by the pattern `CLASS_RUN`, or by that of GPT-2.

        `WORD` splits at some of these places, and no token of `words` begins at the others.
        """
        previous = np.concatenate([[SEPARATE], classes[:-1]])
        following = np.concatenate([classes[1:], [SEPARATE]])
        has_space_before = np.concatenate([[False], codes[:-1] == ord(" ")]) & (previous == SPACE)
        begins = (classes != previous) & ~has_space_before | (classes >= SEPARATE)
        # The last of a run of white space before a word belongs to the word or is separate.
        begins |= (classes == SPACE) & ((previous != SPACE) | ((following != SPACE) & (following != SEPARATE)))
        for contraction in CONTRACTION.finditer(text) if self._gpt2_rules else ():
            start, end = contraction.span()
            if begins[start]:
                begins[start + 1 : end] = False
                begins[end : end + 1] = True
        return begins

    def _classes_of(self, codes: np.ndarray) -> np.ndarray:
        classes = self._classes[codes]
        if (classes == NOT_SEEN).any():
            for code in np.unique(codes[classes == NOT_SEEN]).tolist():
                kind = _classify(chr(code))
                self._classes[code] = kind if kind != MARK else OTHER if self._gpt2_rules else LETTER
            classes = self._classes[codes]
        return classes


def find_word_starts(
    kind: str,
    table: Sequence[bytes] | None,
    names: Sequence[str],
    continuation: str,
    special: Set[int],
    unknown: int | None,
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that marks the tokens of rows of ids that begin a word.

    Args:
        kind: Kind of the tokenizer.
        table: Bytes of each id; None if decoding is more than joining them.
        names: Tokens as the library writes them, in id order.
        continuation: Prefix of the tokens inside words, such as "##"; empty if there is none.
        special: Special ids.
        unknown: Id of the unknown token, or None.
    """
    if kind in WHOLE_WORD_KINDS:
        return NameWordStarts([True] * len(names), special, unknown)
    if table is not None and not continuation:
        gpt2_rules = kind not in ("characters", "words", "unigram")
        return TextWordStarts(table, special, unknown, gpt2_rules=gpt2_rules)
    if continuation:
        begins = [not name.startswith(continuation) for name in names]
    else:
        begins = [name.startswith(("▁", " ")) for name in names]
    return NameWordStarts(begins, special, unknown)


def _classify(character: str) -> int:
    if character in WHITE:
        return SPACE
    return {"L": LETTER, "N": NUMBER, "M": MARK}.get(unicodedata.category(character)[0], OTHER)


def _to_rows(ids: np.ndarray, padding_row: int) -> np.ndarray:
    """Return ids (..., T) as rows (R, 1 + T) that start with `padding_row`.

    `padding_row` counts as a special token, so that the first id of a row begins a word. Ids outside the vocabulary
    also become `padding_row`.
    """
    ids = np.asarray(ids).astype(np.int64)
    rows = ids.reshape(-1, ids.shape[-1]) if ids.size else np.zeros((0, ids.shape[-1]), dtype=np.int64)
    rows = np.where((rows >= 0) & (rows < padding_row), rows, padding_row)
    return np.concatenate([np.full((len(rows), 1), padding_row), rows], axis=1)


def _mark_separate(size: int, special: Iterable[int], unknown: int | None) -> np.ndarray:
    separate = np.zeros(size + 1, dtype=bool)
    separate[[*special, size if unknown is None else unknown, size]] = True
    return separate

"""Tokenizers for data other than prose: separated fields, k-mers of a sequence, existing ids.

Fields and k-mers may contain punctuation, so one of them could equal a special token's name such as `<eos>`. The names
of their special tokens are therefore prefixed with `HIDDEN_PREFIX`, a code point that the normalizer replaces in every
text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tercet.config import UserError
from tercet.limits import MAX_IDS, MAX_TOKEN_CHARACTERS
from tercet.tokens.sentencepiece import HIDDEN_PREFIX
from tercet.tokens.specs import Fields, KMers, PlainIds
from tercet.tokens.trainers import BOS, EOS, MASK, PAD, UNKNOWN, special_tokens

SEPARATORS = r"[ \t\n\r\f\v,]+"  # between fields
END_OF_DATA = "<|endoftext|>"  # name of the id of the data that ends a document, as in GPT-2's vocabulary
MAX_COUNTS = 4 << 20  # maximum number of counted fields or k-mers, about 400 MB
MER_SCORE, CHARACTER_SCORE = -1.0, -10.0  # natural logarithms: a known k-mer is preferred to its k characters
DIGITS = 10  # maximum digits of an id; MAX_IDS has seven

_SEPARATORS = re.compile(SEPARATORS)
_NO_ID = re.compile(r"[^0-9 \t\n\r\f\v]+")


def train_fields(spec: Fields, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer with the most frequent fields, in descending order of their counts."""
    counts = _count(_SEPARATORS.split(text) for text in texts)
    names = [*_hidden_names(spec), UNKNOWN]
    fields = (name for name in counts if 0 < len(name) <= MAX_TOKEN_CHARACTERS and counts[name] >= spec.min_count)
    names += _commonest({name: counts[name] for name in fields}, spec.vocab_size - len(names))
    model = models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=UNKNOWN)
    tokenizer = tokenizers.Tokenizer(model)  # without a decoder the library joins tokens by spaces
    tokenizer.normalizer = normalizers.Replace(HIDDEN_PREFIX, "\ufffd")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SEPARATORS), "removed")
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in [*_hidden_names(spec), UNKNOWN]]
    )
    return tokenizer


def train_kmers(spec: KMers, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer with all characters of the texts, and the most frequent k-mers.

    Raises:
        UserError: If the characters do not fit into `vocab_size`.
    """
    characters, counts = set[str](), Counter[str]()
    for text in texts:
        characters.update(text)
        counts.update(text[start : start + spec.k] for start in range(0, len(text) - spec.k + 1, spec.k))
        _bound(counts)
    special = [*_hidden_names(spec), UNKNOWN]
    single_characters = sorted(characters - {HIDDEN_PREFIX})
    n_free = spec.vocab_size - len(special) - len(single_characters)
    if n_free < 0:
        raise UserError(
            f"too many different characters for vocab_size={spec.vocab_size}: {len(single_characters):,}; "
            "increase tokenizer.vocab_size"
        )
    mers = _commonest(
        {name: count for name, count in counts.items() if HIDDEN_PREFIX not in name}, n_free if spec.k > 1 else 0
    )
    scores = [*((name, 0.0) for name in special), *((name, CHARACTER_SCORE) for name in single_characters)]
    scores += [(name, MER_SCORE) for name in mers]
    tokenizer = tokenizers.Tokenizer(models.Unigram(scores, unk_id=len(special) - 1))
    tokenizer.normalizer = normalizers.Replace(HIDDEN_PREFIX, "\ufffd")
    tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(spec.k)
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


def make_plain_ids(spec: PlainIds, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer whose tokens are the numbers below `spec.vocab_size`, followed by special tokens.

    If `vocab_size` is None, the numbers end with the largest one in the texts, or with `eos_id` if that is larger.

    Raises:
        UserError: If a text does not consist of numbers, or there are more ids than a vocabulary may have.
    """
    size = spec.vocab_size
    if size is None:
        size = 1 + max((int(ids.max()) for text in texts if len(ids := parse_ids(text, MAX_IDS))), default=-1)
        size = max(size, 1, 0 if spec.eos_id is None else spec.eos_id + 1)
    names = [str(number) for number in range(size)]
    special = [name for name, is_enabled in _special_flags(spec) if is_enabled]
    if spec.eos_id is not None:
        names[spec.eos_id] = END_OF_DATA
    names += special
    if len(names) > MAX_IDS:
        raise UserError(f"{len(names):,} ids are more than the maximum of {MAX_IDS:,}; use smaller numbers")
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special += [] if spec.eos_id is None else [END_OF_DATA]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


def parse_ids(text: str, limit: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the numbers in a text, which are separated by white space.

    Raises:
        UserError: If the text contains anything else, or a number is `limit` or more.
    """
    if odd := _NO_ID.search(text):
        raise UserError(
            f"{odd[0][:40]!r} is not an id: texts of the kind ids consist of whole numbers and spaces, such as 5 17 2"
        )
    numbers = text.split()
    if too_long := next((number for number in numbers if len(number) > DIGITS), None):
        raise beyond_error(too_long[:20], limit)
    ids = np.array(list(map(int, numbers)), dtype=np.int64)
    if len(ids) and int(ids.max()) >= limit:
        raise beyond_error(str(ids.max()), limit)
    return ids.astype(np.uint32)


def beyond_error(number: str, limit: int) -> UserError:
    """Return the error for an id that is not in the vocabulary."""
    return UserError(
        f"the id {number} is outside the vocabulary, whose last id is {limit - 1}; "
        "use ids of the vocabulary, or train with a larger data.tokenizer.vocab_size"
    )


def is_plain_ids(vocabulary: dict[str, int]) -> bool:
    """Return whether the name of each token, except for special tokens, is its id as a number."""
    special = {PAD, BOS, EOS, MASK, END_OF_DATA}
    return "0" in vocabulary and all(name == str(number) or name in special for name, number in vocabulary.items())


def count_plain_ids(vocabulary: dict[str, int]) -> int:
    """Return the number of ids before the special tokens."""
    return 1 + max(number for name, number in vocabulary.items() if name == END_OF_DATA or name == str(number))


def _special_flags(spec: PlainIds) -> Iterator[tuple[str, bool]]:
    yield from ((PAD, spec.pad), (BOS, spec.bos), (EOS, spec.eos and spec.eos_id is None), (MASK, spec.mask))


def _hidden_names(spec: Fields | KMers) -> list[str]:
    return [HIDDEN_PREFIX + name for name in special_tokens(spec)]


def _count(pieces: Iterable[list[str]]) -> Counter[str]:
    counts = Counter[str]()
    for batch in pieces:
        counts.update(batch)
        _bound(counts)
    return counts


def _bound(counts: Counter[str]) -> None:
    """Drop the rarest entries if there are more than `MAX_COUNTS`, for example of time stamps, which never repeat."""
    if len(counts) > MAX_COUNTS:
        commonest = counts.most_common(MAX_COUNTS // 2)
        counts.clear()
        counts.update(dict(commonest))


def _commonest(counts: dict[str, int], limit: int) -> list[str]:
    ranking = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [name for name, _ in ranking[: max(0, limit)]]

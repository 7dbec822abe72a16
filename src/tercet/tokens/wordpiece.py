"""BERT's tokenizer: words are split into the longest known pieces; pieces inside a word begin with `##`.

Text is normalized as in BERT (Devlin et al. 2018, arXiv:1810.04805): control characters are removed, white space
becomes a space, Chinese characters and punctuation are separate words, and `lowercase` also removes accents. Decoding
does not restore the original text.

    unaffable -> un ##aff ##able

Pieces are trained by merging the most frequent pair, as in the `tokenizers` library. The library numbers the characters
inside words in varying order and breaks ties between pairs by number, so its vocabularies differ between runs. Here the
words are counted first, which gives all characters, and their ids are passed to the library.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tercet.config import UserError
from tercet.tokens.specs import WordPiece
from tercet.tokens.trainers import LONGEST_WORD

PAD, UNKNOWN, START, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
MAX_WORD_CHARACTERS = 100  # as in BERT: longer words are unknown
BATCH_WORDS = 10_000  # words that are passed to the library at once


def train_wordpiece(spec: WordPiece, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Train a tokenizer that depends on the words only, not on the order of the texts or how they are divided.

    Raises:
        UserError: If the texts have more different characters than fit into `vocab_size`.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=spec.lowercase), pre_tokenizers.BertPreTokenizer()
    counts = Counter[str]()
    for chunk, count in _count_chunks(texts).items():
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(chunk)):
            for start in range(0, len(word), LONGEST_WORD):  # training is quadratic in the length of a word
                counts[word[start : start + LONGEST_WORD]] += count
    names = [*SPECIAL, *_learn_pieces(counts, spec.vocab_size)]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(
            {name: number for number, name in enumerate(names)},
            unk_token=UNKNOWN,
            continuing_subword_prefix=CONTINUATION,
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
        )
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece(CONTINUATION)
    ends = [(name, names.index(name)) for name in (START, END)]
    tokenizer.post_processor = processors.TemplateProcessing(  # for other programs; `encode` adds nothing
        single=f"{START}:0 $A:0 {END}:0", pair=f"{START}:0 $A:0 {END}:0 $B:1 {END}:1", special_tokens=ends
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return tokenizer


def _count_chunks(texts: Iterable[str]) -> Counter[str]:
    """Return the counts of the parts between spaces and line breaks, so that each is normalized only once."""
    counts = Counter[str]()
    for text in texts:
        text.encode()  # reject invalid Unicode, as the library would
        counts.update(text.replace("\n", " ").split(" "))
    return counts


def _learn_pieces(counts: Counter[str], vocab_size: int) -> list[str]:
    """Return the pieces in the order of their ids: characters inside words, characters, merges by frequency."""
    characters = set[str]().union(*counts)
    continuations = [CONTINUATION + character for character in sorted(set[str]().union(*(word[1:] for word in counts)))]
    if len(SPECIAL) + len(continuations) + len(characters) > vocab_size:
        raise UserError(
            f"too many different characters for vocab_size={vocab_size}: {len(characters)}, and {len(continuations)} "
            "of them inside words; increase tokenizer.vocab_size, or use the kind bpe"
        )
    library = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size - len(SPECIAL),
        min_frequency=2,  # pairs seen once are not worth a merge, and a small text need not fill the vocabulary
        special_tokens=continuations,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    library.train_from_iterator(_repeat_words(counts), trainer)
    vocabulary = library.get_vocab(with_added_tokens=False)
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _repeat_words(counts: Counter[str]) -> Iterator[str]:
    """Yield each word as often as it was counted, since the library counts again; omit words that are too long."""
    for word, count in sorted((word, count) for word, count in counts.items() if len(word) <= MAX_WORD_CHARACTERS):
        for start in range(0, count, BATCH_WORDS):
            yield f"{word} " * min(BATCH_WORDS, count - start)

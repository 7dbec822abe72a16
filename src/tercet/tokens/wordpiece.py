"""BERT's tokenizer: words cut into the longest known pieces, a piece inside a word written with `##` before it.

Text is cleaned as BERT cleans it (Devlin et al. 2018, arXiv:1810.04805): control characters go, white space becomes a
space, Chinese characters and punctuation stand alone, and `lowercase` takes accents off too. None of it comes back.

    unaffable -> un ##aff ##able

Pieces are learnt by merging the commonest pair, as the `tokenizers` library does it. The library numbers the characters
inside words in no certain order, and settles equally common pairs by number, so it learns another vocabulary every
time. Here words are counted first, which shows all characters, and the library is given their numbers.
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
MOST_WORD_CHARACTERS = 100  # BERT's: a longer word is unknown
BATCH_WORDS = 10_000  # words that are handed to the library together


def train_wordpiece(spec: WordPiece, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """The same tokenizer from the same words, in whatever order and pieces the texts come.

    Raises:
        UserError: where the text has more characters than the vocabulary has room for.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=spec.lowercase), pre_tokenizers.BertPreTokenizer()
    counts = Counter[str]()
    for chunk, count in _count_chunks(texts).items():
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(chunk)):
            for start in range(0, len(word), LONGEST_WORD):  # learning from a word takes its length squared
                counts[word[start : start + LONGEST_WORD]] += count
    names = [*SPECIAL, *_learn_pieces(counts, spec.vocab_size)]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(
            {name: number for number, name in enumerate(names)},
            unk_token=UNKNOWN,
            continuing_subword_prefix=CONTINUATION,
            max_input_chars_per_word=MOST_WORD_CHARACTERS,
        )
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece(CONTINUATION)
    ends = [(name, names.index(name)) for name in (START, END)]
    tokenizer.post_processor = processors.TemplateProcessing(  # for who opens the file elsewhere; `encode` adds nothing
        single=f"{START}:0 $A:0 {END}:0", pair=f"{START}:0 $A:0 {END}:0 $B:1 {END}:1", special_tokens=ends
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return tokenizer


def _count_chunks(texts: Iterable[str]) -> Counter[str]:
    """What stands between spaces and line ends, counted: each is cleaned once, however often it comes."""
    counts = Counter[str]()
    for text in texts:
        text.encode()  # half a surrogate pair is refused here, as the library would
        counts.update(text.replace("\n", " ").split(" "))
    return counts


def _learn_pieces(counts: Counter[str], vocab_size: int) -> list[str]:
    """The pieces in the order of their ids: characters inside words, characters, then merges from the commonest on."""
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
        min_frequency=2,  # a pair seen once teaches nothing, and a small text need not fill the vocabulary
        special_tokens=continuations,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    library.train_from_iterator(_repeat_words(counts), trainer)
    learned = library.get_vocab(with_added_tokens=False)
    return sorted(learned, key=learned.__getitem__)


def _repeat_words(counts: Counter[str]) -> Iterator[str]:
    """Each word that is not unknown for its length, as often as it was counted: the library counts for itself."""
    for word, count in sorted((word, count) for word, count in counts.items() if len(word) <= MOST_WORD_CHARACTERS):
        for start in range(0, count, BATCH_WORDS):
            yield f"{word} " * min(BATCH_WORDS, count - start)

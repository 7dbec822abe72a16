"""One tokenizer of the `tokenizers` library per kind: what it is made of, and how its vocabulary is learnt.

Special tokens get the lowest ids and are part of the model's own vocabulary. None of them can come out of ordinary
text: their names mix letters and punctuation, which all ways of splitting keep apart.
"""

import json
import math
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from tercet.config import UserError
from tercet.limits import MOST_TOKEN_CHARACTERS
from tercet.tokens.specs import BPE, Characters, Fields, KMers, Unigram, Words

PAD, BOS, EOS, MASK, UNKNOWN = "<pad>", "<bos>", "<eos>", "<mask>", "<unk>"
# Two ways of splitting; the pieces of both join up to the whole text. Each takes the space before it along.
CLASS_RUN = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
# A word that is cut at its hyphen leaves "Eastern" without a space: a token that says nowhere what it is glued to.
WORD = r" ?[\p{L}\p{M}\p{N}]+(?:[-'’][\p{L}\p{M}\p{N}]+)*| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
LONGEST_WORD = 4096  # characters
UNIGRAM_BLOCKS = 64  # as long: what has no spaces hardly repeats itself, and ten times as much takes 30 times as long
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def cut_words(texts: Iterable[str], splitter: pre_tokenizers.PreTokenizer, *, keep: float = math.inf) -> Iterator[str]:
    """The texts, cut where a word is longer than any is, such as a genome: learning from it takes its length squared.

    Text is looked at in blocks, and one that `splitter` leaves whole ends a text. No other word is touched, so that
    ordinary text is learnt from as it is.

    Args:
        keep: so many such blocks are learnt from; what more there are is left out.
    """
    for text in texts:
        start = 0
        for end in range(LONGEST_WORD, len(text), LONGEST_WORD):
            block = text[end - LONGEST_WORD : end]
            if (" " in block or "\n" in block) and not block.isspace():  # nearly all are done with here
                continue
            if len(splitter.pre_tokenize_str(block)) == 1:
                yield text[start : end if keep > 0 else end - LONGEST_WORD]
                start, keep = end, keep - 1
        yield text[start:]


def train_characters(spec: Characters, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """A BPE model without a single merge: every character stays alone."""
    alphabet = spec.alphabet
    if alphabet is None:
        known_characters = set[str]()
        for text in texts:
            known_characters.update(text)
        alphabet = sorted(known_characters)
    names = [*special_tokens(spec), *(BYTE_TOKENS if spec.byte_fallback else ()), *alphabet]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=spec.byte_fallback))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special_tokens(spec)])
    return tokenizer


def train_words(spec: Words, texts: Iterable[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter = pre_tokenizers.Split(Regex(WORD), "isolated")
    _set_decoder(tokenizer, spec, decoders.Fuse())
    trainer = trainers.WordLevelTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=spec.min_count,
        special_tokens=[AddedToken(name, special=True) for name in [*special_tokens(spec), UNKNOWN]],
        show_progress=False,
    )
    tokenizer.train_from_iterator(cut_words(texts, splitter, keep=0), trainer)
    return _remove_long_words(tokenizer)


def _remove_long_words(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer without the words that no file of a tokenizer may have; they are unknown then."""
    structure = json.loads(tokenizer.to_str())
    words = structure["model"]["vocab"]
    kept_words = [word for word in sorted(words, key=words.__getitem__) if len(word) <= MOST_TOKEN_CHARACTERS]
    if len(kept_words) == len(words):
        return tokenizer
    structure["model"]["vocab"] = {word: number for number, word in enumerate(kept_words)}
    return tokenizers.Tokenizer.from_str(json.dumps(structure))


def train_bpe(spec: BPE, texts: Iterable[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _set_decoder(tokenizer, spec, decoders.ByteLevel())
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=2,  # a pair seen once teaches nothing, and a small text need not fill the vocabulary
        special_tokens=[AddedToken(name, special=True) for name in special_tokens(spec)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MOST_TOKEN_CHARACTERS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(cut_words(texts, splitter), trainer)
    return tokenizer


def train_unigram(spec: Unigram, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Learnt by the library, then put in order: its own, and the last digits of its scores, change from run to run.

    Raises:
        UserError: where the text has more characters than the vocabulary has room for, or repeats too few of them.
    """
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = splitter = pre_tokenizers.Split(Regex(CLASS_RUN), "isolated")
    _set_decoder(library, spec, decoders.Fuse())
    names = [*special_tokens(spec), UNKNOWN]
    trainer = trainers.UnigramTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=[AddedToken(name, special=True) for name in names],
        unk_token=UNKNOWN,
        show_progress=False,
    )
    try:
        library.train_from_iterator(cut_words(texts, splitter, keep=UNIGRAM_BLOCKS), trainer)
    except Exception as error:  # the library has no exception class of its own
        if "not large enough" not in str(error):
            raise
        raise UserError(
            f"too many different characters for vocab_size={spec.vocab_size}; "
            "increase tokenizer.vocab_size, or use the kind bpe"
        ) from None
    structure = json.loads(library.to_str())
    scores = structure["model"]["vocab"][len(names) :]
    if any(score is None for _, score in scores):  # JSON for NaN: no piece but single characters
        raise UserError(
            "the text has too few different pieces to learn a unigram vocabulary; use the kind bpe or characters"
        )
    learned = {piece: round(score, 4) for piece, score in scores}
    # Characters that earned no place come last, 0.0001 apart, in no certain order: they share the lowest score.
    lowest = min(learned.values(), default=0.0)
    single = [piece for piece in learned if len(piece) == 1]
    rare = [piece for piece in single if learned[piece] <= lowest + len(single) * 0.0001]
    learned |= dict.fromkeys(rare, lowest)
    scored_pieces = sorted(learned.items(), key=lambda item: (-item[1], item[0]))
    structure["model"]["vocab"] = [*((name, 0.0) for name in names), *scored_pieces]
    return tokenizers.Tokenizer.from_str(json.dumps(structure))


def _set_decoder(tokenizer: tokenizers.Tokenizer, spec: Words | BPE | Unigram, decoder: decoders.Decoder) -> None:
    """How tokens become text again, and the space that `prefix_space` puts before it.

    The library's own `add_prefix_space` adds none where there is one already, so that " a" would come back as "a".
    """
    tokenizer.decoder = decoder
    if spec.prefix_space:
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.decoder = decoders.Sequence([decoder, decoders.Strip(" ", 1, 0)])


def special_tokens(spec: Characters | Words | BPE | Unigram | Fields | KMers) -> list[str]:
    """The names of the special tokens that a spec asks for, in the order of their ids."""
    flags = ((PAD, spec.pad), (BOS, spec.bos), (EOS, spec.eos), (MASK, spec.mask))
    return [name for name, is_enabled in flags if is_enabled]

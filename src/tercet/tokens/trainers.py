"""Training of tokenizers of the kinds characters, words, bpe and unigram with the `tokenizers` library.

Special tokens have the lowest ids and are part of the model's vocabulary. Ordinary text never produces them: their
names mix letters and punctuation, which all splitting rules separate.
"""

import json
import math
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from tercet.config import UserError
from tercet.limits import MAX_TOKEN_CHARACTERS
from tercet.tokens.specs import BPE, Characters, Fields, KMers, Unigram, Words

PAD, BOS, EOS, MASK, UNKNOWN = "<pad>", "<bos>", "<eos>", "<mask>", "<unk>"
# Two splitting rules. A part includes the space before it, and the parts joined are the whole text.
CLASS_RUN = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
# Words are not split at hyphens, since the token "Eastern" of "Middle-Eastern" would lose its connection to "Middle".
WORD = r" ?[\p{L}\p{M}\p{N}]+(?:[-'’][\p{L}\p{M}\p{N}]+)*| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
LONGEST_WORD = 4096  # characters
# Blocks of long words that Unigram training reads at most: text without spaces rarely repeats, and ten times as much of
# it takes thirty times as long.
UNIGRAM_BLOCKS = 64
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def cut_words(texts: Iterable[str], splitter: pre_tokenizers.PreTokenizer, *, keep: float = math.inf) -> Iterator[str]:
    """Split texts within extremely long words, such as genomes, since training time is quadratic in their length.

    Text is examined in blocks of `LONGEST_WORD` characters. After a block that `splitter` does not split, a new text
    begins. Other words are unchanged, so training on ordinary text is not affected.

    Args:
        texts: Training texts.
        splitter: Splitting rule of the tokenizer.
        keep: Maximum number of blocks that are not split; further ones are dropped.
    """
    for text in texts:
        start = 0
        for end in range(LONGEST_WORD, len(text), LONGEST_WORD):
            block = text[end - LONGEST_WORD : end]
            if (" " in block or "\n" in block) and not block.isspace():  # true for nearly all blocks
                continue
            if len(splitter.pre_tokenize_str(block)) == 1:
                yield text[start : end if keep > 0 else end - LONGEST_WORD]
                start, keep = end, keep - 1
        yield text[start:]


def train_characters(spec: Characters, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a BPE model without merges, in which every character is a token."""
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
    """Return the tokenizer without words longer than `MAX_TOKEN_CHARACTERS`; they become unknown."""
    structure = json.loads(tokenizer.to_str())
    words = structure["model"]["vocab"]
    kept_words = [word for word in sorted(words, key=words.__getitem__) if len(word) <= MAX_TOKEN_CHARACTERS]
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
        min_frequency=2,  # pairs seen once are not worth a merge, and a small text need not fill the vocabulary
        special_tokens=[AddedToken(name, special=True) for name in special_tokens(spec)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TOKEN_CHARACTERS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(cut_words(texts, splitter), trainer)
    return tokenizer


def train_unigram(spec: Unigram, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Train with the library; round and sort the scores, whose order and last digits vary between runs.

    Raises:
        UserError: If the text has too many different characters for the vocabulary, or too few different pieces.
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
    except Exception as error:  # the library has no exception class
        if "not large enough" not in str(error):
            raise
        raise UserError(
            f"too many different characters for vocab_size={spec.vocab_size}; "
            "increase tokenizer.vocab_size, or use the kind bpe"
        ) from None
    structure = json.loads(library.to_str())
    scores = structure["model"]["vocab"][len(names) :]
    if any(score is None for _, score in scores):  # NaN in JSON: there are only single characters
        raise UserError(
            "the text has too few different pieces to train a unigram vocabulary; use the kind bpe or characters"
        )
    piece_scores = {piece: round(score, 4) for piece, score in scores}
    # Characters that are not worth a piece come last, 0.0001 apart, in varying order. They get the lowest score.
    lowest = min(piece_scores.values(), default=0.0)
    single = [piece for piece in piece_scores if len(piece) == 1]
    rare = [piece for piece in single if piece_scores[piece] <= lowest + len(single) * 0.0001]
    piece_scores |= dict.fromkeys(rare, lowest)
    scored_pieces = sorted(piece_scores.items(), key=lambda item: (-item[1], item[0]))
    structure["model"]["vocab"] = [*((name, 0.0) for name in names), *scored_pieces]
    return tokenizers.Tokenizer.from_str(json.dumps(structure))


def _set_decoder(tokenizer: tokenizers.Tokenizer, spec: Words | BPE | Unigram, decoder: decoders.Decoder) -> None:
    """Set the decoder, and the steps for `prefix_space`.

    The library's own `add_prefix_space` adds no space if there is one already, so " a" would be decoded as "a".
    """
    tokenizer.decoder = decoder
    if spec.prefix_space:
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.decoder = decoders.Sequence([decoder, decoders.Strip(" ", 1, 0)])


def special_tokens(spec: Characters | Words | BPE | Unigram | Fields | KMers) -> list[str]:
    """Return the names of a spec's special tokens, in the order of their ids."""
    flags = ((PAD, spec.pad), (BOS, spec.bos), (EOS, spec.eos), (MASK, spec.mask))
    return [name for name, is_enabled in flags if is_enabled]

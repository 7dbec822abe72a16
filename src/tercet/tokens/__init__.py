"""Tokenizers for characters, words and subwords, each stored as a single `tokenizer.json`."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.tokens.decoding import TextStream as TextStream
    from tercet.tokens.specs import BPE as BPE
    from tercet.tokens.specs import GPT2 as GPT2
    from tercet.tokens.specs import Characters as Characters
    from tercet.tokens.specs import CustomTokenizer as CustomTokenizer
    from tercet.tokens.specs import Fields as Fields
    from tercet.tokens.specs import KMers as KMers
    from tercet.tokens.specs import PlainIds as PlainIds
    from tercet.tokens.specs import TokenizerFile as TokenizerFile
    from tercet.tokens.specs import TokenizerSpec as TokenizerSpec
    from tercet.tokens.specs import TrainableTokenizerSpec as TrainableTokenizerSpec
    from tercet.tokens.specs import Unigram as Unigram
    from tercet.tokens.specs import WordPiece as WordPiece
    from tercet.tokens.specs import Words as Words
    from tercet.tokens.tokenizer import Tokenizer as Tokenizer
else:
    export_lazily(__name__)

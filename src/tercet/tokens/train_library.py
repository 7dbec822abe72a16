"""Train a tokenizer of the `tokenizers` library for the settings of each kind."""

from collections.abc import Iterable

import tokenizers

from tercet.config import UserError
from tercet.messages import describe_error
from tercet.reading.bounded_json import parse_json
from tercet.tokens import trainers
from tercet.tokens.gpt2 import load_gpt2
from tercet.tokens.sequences import make_plain_ids, train_fields, train_kmers
from tercet.tokens.specs import (
    BPE,
    GPT2,
    Characters,
    CustomTokenizer,
    Fields,
    KMers,
    PlainIds,
    TrainableTokenizerSpec,
    Unigram,
    WordPiece,
    Words,
)
from tercet.tokens.structure import check_structure, library_errors
from tercet.tokens.wordpiece import train_wordpiece


def train_library(
    spec: TrainableTokenizerSpec | PlainIds | GPT2 | CustomTokenizer, texts: Iterable[str]
) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library, trained on `texts`, which are read once.

    Raises:
        UserError: If a required package is missing, a text is invalid, `vocab_size` is too small, or a tokenizer of
            another package cannot be trained.
    """
    match spec:
        case Characters():
            return trainers.train_characters(spec, texts)
        case Words():
            return trainers.train_words(spec, texts)
        case BPE():
            return trainers.train_bpe(spec, texts)
        case Unigram():
            return trainers.train_unigram(spec, texts)
        case WordPiece():
            return train_wordpiece(spec, texts)
        case Fields():
            return train_fields(spec, texts)
        case KMers():
            return train_kmers(spec, texts)
        case PlainIds():
            return make_plain_ids(spec, texts)
        case GPT2():
            return load_gpt2()
        case CustomTokenizer():
            return _train_custom(spec, texts)


def _train_custom(spec: CustomTokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return the tokenizer that a spec of another package trains, as it is opened from its `tokenizer.json`."""
    try:
        content = spec.train(texts).to_str()
    except (UserError, UnicodeEncodeError):  # raised by the iterator of the texts
        raise
    except Exception as error:  # the code is the user's, and may raise anything
        raise UserError(f"{spec.kind}: cannot train the tokenizer: {describe_error(error)}") from None
    try:
        check_structure(parse_json(content))
        with library_errors():
            return tokenizers.Tokenizer.from_str(content)
    except ValueError as error:
        raise UserError(f"{spec.kind}: the tokenizer cannot be opened from its tokenizer.json: {error}") from None

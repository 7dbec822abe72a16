"""Rejection of texts that a tokenizer cannot encode, or encodes to only the unknown token."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tercet.config import UserError
from tercet.messages import shorten
from tercet.tokens import Tokenizer

MAX_UNKNOWN_SHARE = 0.5  # of all texts


def encode_located(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    places: Iterable[str] | None = None,
    *,
    continued: Sequence[bool] = (),
) -> list[np.ndarray[Any, np.dtype[np.uint32]]]:
    """Return the ids of each text, as `Tokenizer.encode_batch` does.

    Args:
        places: Location of each text for messages, consumed only if there is an error. By default the text is quoted.
        continued: For each text, if True, it continues another one, and no space is added before it.

    Raises:
        UserError: If a text cannot be encoded; the message contains its location.
    """
    try:
        return tokenizer.encode_batch(texts, continued=continued)
    except UserError:
        for text, place in zip(texts, places or (shorten(repr(text), 40) for text in texts), strict=False):
            try:
                tokenizer.encode_batch([text])
            except UserError as error:
                raise UserError(f"{place}: {error}") from None
        raise


def check_unknown_share(name: str, tokenizer: Tokenizer, unknown: int, total: int) -> None:
    """Check that most texts are more than a single unknown token, because such texts could not be distinguished.

    For example, WordPiece encodes a DNA sequence as one unknown token, because it is too long for a word.

    Args:
        name: Name of the data in the message.
        tokenizer: Tokenizer of the texts.
        unknown: Number of texts that are a single unknown token.
        total: Number of all texts.

    Raises:
        UserError: If more than half of the texts are a single unknown token.
    """
    if unknown > MAX_UNKNOWN_SHARE * total:
        raise UserError(
            f"{name}: the tokenizer ({tokenizer.kind}) turns {unknown:,} of {total:,} texts into one unknown token "
            "each and does not suit them; set data.tokenizer.kind to kmers or characters for DNA and other text "
            "without spaces, or to bpe; use a pretrained model only with the kind of text that it learned"
        )

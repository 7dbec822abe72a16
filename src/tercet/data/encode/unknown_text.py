"""Texts that a tokenizer cannot encode, and texts of which nothing is left but the unknown token: both are rejected."""

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
    """The ids of each text, as `Tokenizer.encode_batch`.

    Args:
        places: Place of each text for a message, read only if there is one. By default a text is quoted.

    Raises:
        UserError: If a text cannot be encoded, with its place.
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
    """Reject data that is mostly texts of one unknown token: all of them would be the same text.

    A DNA sequence is such a text for WordPiece: one word that is too long.

    Args:
        unknown: Number of such texts.
        total: Number of all texts.
    """
    if unknown > MAX_UNKNOWN_SHARE * total:
        raise UserError(
            f"{name}: {unknown:,} of {total:,} texts are one unknown token each, so the tokenizer ({tokenizer.kind}) "
            "does not suit them; set data.tokenizer.kind to kmers or characters for DNA and other text without "
            "spaces, or to bpe; a pretrained model needs text of the kind that it learnt"
        )

"""Tokenised running text, as tasks and evaluations take it."""

from dataclasses import dataclass

import numpy as np

from tercet.data.sharded_array import TokenArray
from tercet.data.token_folder import TokenFolder
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokenised text in two parts.

    Attributes:
        train, validation: (N,) memory-mapped ids, uint16 where the vocabulary has at most 65,536, else uint32.
        train_documents, validation_documents: int64 position at which each document starts.
        train_bytes, validation_bytes: UTF-8 bytes of text on each side.
        hash: sha256 of the text the ids were made from; of prepared folders, of their manifests.
        folders: the prepared folders that it is in, of which `train` is the first one's; none of other text.
        weights: the share of each folder.
    """

    name: str
    hash: str
    tokenizer: Tokenizer
    train: TokenArray
    validation: np.ndarray
    train_documents: TokenArray
    validation_documents: np.ndarray
    train_bytes: int
    validation_bytes: int
    folders: tuple[TokenFolder, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    @property
    def train_tokens(self) -> int:
        """Of all folders."""
        if not self.folders:
            return len(self.train)
        return sum(part.tokens for folder in self.folders for part in folder.contents.shards)

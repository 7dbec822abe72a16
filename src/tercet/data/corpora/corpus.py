"""Tokenized running text for training and evaluation."""

from dataclasses import dataclass

import numpy as np

from tercet.data.shards.sharded_array import TokenArray
from tercet.data.shards.token_folder import TokenFolder
from tercet.tokens import Tokenizer

COUNT_BLOCK_IDS = 1 << 22  # ids counted at once


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokenized text in two parts.

    Attributes:
        train, validation: (N,) ids, uint16 if the vocabulary has at most 65,536 tokens, else uint32. They are
            memory-mapped; those of a prepared folder's training part are opened shard by shard.
        train_documents, validation_documents: (D,) int64 position of the start of each document. A document that is cut
            between the parts or between shards has one in each.
        train_bytes, validation_bytes: UTF-8 bytes of the text of each part, in all folders.
        hash: sha256 of the text that the ids were made from; for prepared folders, of their manifests and weights.
        near_duplicates: Number of validation documents that are near duplicates of training documents. They are not
            counted (0) with a `Tail` split and in prepared folders.
        folders: Prepared folders that contain the corpus; `train` has only the ids of the first one. Empty for other
            text.
        weights: Share of the training rows from each folder; they sum to 1.
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
    near_duplicates: int = 0
    folders: tuple[TokenFolder, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    @property
    def train_tokens(self) -> int:
        """Number of training tokens in all folders."""
        if not self.folders:
            return len(self.train)
        return sum(part.tokens for folder in self.folders for part in folder.contents.shards)

    @property
    def unknown_share(self) -> float:
        """Share of unknown tokens among the validation part's tokens that are not special."""
        unknown = self.tokenizer.unk_id
        if unknown is None:
            return 0.0
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        for start in range(0, len(self.validation), COUNT_BLOCK_IDS):
            counts += np.bincount(self.validation[start : start + COUNT_BLOCK_IDS], minlength=len(counts))
        counts[sorted(self.tokenizer.special_ids)] = 0
        return float(counts[unknown] / max(1, counts.sum()))

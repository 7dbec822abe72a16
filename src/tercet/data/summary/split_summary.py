"""Summary of the division of data into training and validation: sizes, groups, and texts that are similar across it.

A validation text with a near duplicate in training is a leak: its loss measures memory, not generalization.
"""

import hashlib
from array import array
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tercet.data.corpora.conversation_corpus import ConversationPreparation
from tercet.data.corpora.example_preparation import ExamplePreparation
from tercet.data.corpora.id_split import draw_documents
from tercet.data.corpora.label_corpus import LabelPreparation
from tercet.data.corpora.pair_corpus import PairPreparation
from tercet.data.datasets.text_datasets import find_text
from tercet.data.label_spec import LabelsSpec
from tercet.data.min_hash import MinHash, find_clusters, find_similar, hash_signatures
from tercet.data.sources.documents import DocumentSource
from tercet.data.sources.id_files import IdFile
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.data.split_specs import DocumentClusters, Documents, ExampleClusters, Fold, HeldOut, Tail
from tercet.data.summary.data_summary import DataSummary
from tercet.data.text_hashes import hash_text

THRESHOLD, SHINGLE = DocumentClusters().threshold, DocumentClusters().shingle
MAX_BYTES = 20_000_000  # of text that `find_split` compares if no threshold is passed; takes seconds


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """Groups of the items, such as authors or patients.

    Attributes:
        count: Number of groups.
        largest: Number of items in the largest group.
        train, validation: Number of groups in each part.
    """

    count: int
    largest: int
    train: int
    validation: int


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """Division of data into a training and a validation part.

    Attributes:
        kind: Kind of the division: `tail`, `documents`, `drawn`, `similarity` or `held_out`.
        train, validation: Number of items in each part. Of `tail`, which divides tokens, they are estimated by
            characters, and a document that is cut belongs to the training part.
        threshold: Estimated Jaccard similarity from which two texts are similar; None if texts were not compared, as
            are the following attributes.
        clusters: Number of clusters of similar texts in both parts together. A text without a similar one is a
            cluster.
        largest_cluster: Number of texts in the largest cluster.
        leaks: Number of validation texts that are similar to a training text.
        groups: Summary of the groups; None if the data has none.
    """

    kind: str
    train: int
    validation: int
    threshold: float | None = None
    clusters: int | None = None
    largest_cluster: int | None = None
    leaks: int | None = None
    groups: GroupSummary | None = None


def summarize_split(
    data: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec, *, threshold: float | None = THRESHOLD
) -> SplitSummary | None:
    """Summarize the division of data that training would make.

    Texts are compared by MinHash, which needs 512 bytes of memory per text: pairs by their source sentences,
    conversations by the messages before the first answer.

    Args:
        data: Spec of the data and of its validation part.
        threshold: Estimated Jaccard similarity from which two texts are similar; None does not compare texts.

    Returns:
        The summary, or None for token ids and for data that consists of a single document.

    Raises:
        UserError: If the data cannot be read or divided.
    """
    match data:
        case TextSpec():
            items = _divide_documents(data, threshold)
        case LabelsSpec():
            items = _divide_examples(LabelPreparation(data), data.validation, threshold, has_groups=data.has_groups)
        case PairsSpec():
            has_groups = data.group_field is not None
            items = _divide_examples(PairPreparation(data), data.validation, threshold, has_groups=has_groups)
        case ConversationsSpec():
            items = _divide_examples(ConversationPreparation(data), data.validation, threshold, has_groups=False)
    if items is None:
        return None
    in_validation, signatures = items.in_validation, items.signatures
    summary = SplitSummary(
        kind=items.kind,
        train=int((~in_validation).sum()),
        validation=int(in_validation.sum()),
        groups=None if items.groups is None else _summarize_groups(items.groups, in_validation),
    )
    if threshold is None or signatures is None:
        return summary
    clusters = find_clusters(signatures, threshold, hash_signatures(signatures))
    _, sizes = np.unique(clusters, return_counts=True)
    return replace(
        summary,
        threshold=threshold,
        clusters=len(sizes),
        largest_cluster=int(sizes.max()),
        leaks=int(find_similar(signatures[in_validation], signatures[~in_validation], threshold).sum()),
    )


def find_split(
    spec: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec, summary: DataSummary, similarity: float | None
) -> SplitSummary | None:
    """Return the summary of the division, or None for a single document, ids, and data that training rejects.

    Texts are compared if there are at most `MAX_BYTES` of them, or if a similarity is passed or set by the spec.

    Args:
        spec: Settings of the data.
        summary: Summary of the data.
        similarity: Minimum similarity of two texts, or None for that of `spec.validation` or `THRESHOLD`.

    Raises:
        UserError: If the data cannot be divided.
    """
    is_malformed = summary.sequences is not None and summary.sequences.malformed
    if summary.unit == "lists of ids" or summary.invalid or (is_malformed and rejects_malformed(spec)):
        return None
    threshold = similarity
    if isinstance(spec.validation, DocumentClusters | ExampleClusters):
        threshold = similarity or spec.validation.threshold
    elif sum(text.n_bytes for text in summary.texts.values()) <= MAX_BYTES:
        threshold = similarity or THRESHOLD
    return summarize_split(spec, threshold=threshold)


def rejects_malformed(spec: object) -> bool:
    """Return True if training rejects FASTA and FASTQ files with malformed records."""
    return getattr(spec, "sequence_errors", "strict") == "strict"


class _Items(NamedTuple):
    """Items of both parts.

    Attributes:
        kind: Kind of the division.
        in_validation: (N,) mask of the validation items.
        groups: (N,) uint64 hash of the group of each item, or None without groups.
        signatures: (N, HASHES) signatures, or None if texts are not compared.
    """

    kind: str
    in_validation: np.ndarray
    groups: np.ndarray | None
    signatures: np.ndarray | None


def _make_min_hash(split: object, threshold: float | None) -> MinHash | None:
    if threshold is None:
        return None
    return MinHash(split.shingle if isinstance(split, DocumentClusters | ExampleClusters) else SHINGLE)


def _divide_examples(
    preparation: ExamplePreparation[Any, Any], split: object, threshold: float | None, *, has_groups: bool
) -> _Items:
    min_hash, sides, groups = _make_min_hash(split, threshold), array("b"), array("Q")
    for text, identity, side in preparation.divided_texts():
        sides.append(side == "validation")
        groups.append(hash_text(identity) if has_groups else 0)
        if min_hash is not None:
            min_hash.add(text)
    return _Items(
        preparation.split_kind,
        np.array(sides, dtype=bool),
        np.array(groups, dtype=np.uint64) if has_groups else None,
        None if min_hash is None else min_hash.signatures(),
    )


class _Documents:
    """Properties of documents that are read one after another.

    Attributes:
        sizes: Number of characters of each document.
        text_hashes: Hash of each document, equal for equal documents.
        groups: Hash of the group of each document; 0 without a group.
    """

    def __init__(self) -> None:
        self.sizes, self.text_hashes, self.groups = array("q"), array("Q"), array("Q")

    def read(self, source: DocumentSource, min_hash: MinHash | None) -> None:
        """Add the documents of a source."""
        size, hasher = 0, hashlib.blake2b(digest_size=8)
        for piece in source.pieces():
            size += len(piece.text)
            hasher.update(piece.text.encode())
            if min_hash is not None:
                min_hash.add(piece.text, last=piece.last)
            if piece.last:
                self.sizes.append(size)
                self.text_hashes.append(int.from_bytes(hasher.digest()))
                self.groups.append(hash_text(piece.group) if piece.group else 0)
                size, hasher = 0, hashlib.blake2b(digest_size=8)


def _divide_documents(spec: TextSpec, threshold: float | None) -> _Items | None:
    """Return the documents of text; None for ids, and for a single document without a separate validation part."""
    source, split = find_text(spec), spec.validation
    if isinstance(source, IdFile):
        return None
    finds_clusters = isinstance(split, DocumentClusters)
    min_hash = _make_min_hash(split, split.threshold if finds_clusters else threshold)
    documents = _Documents()
    documents.read(source, min_hash)
    n_documents = len(documents.sizes)
    if isinstance(split, HeldOut):
        held_out = find_text(spec, split.source)
        if isinstance(held_out, IdFile):
            return None
        documents.read(held_out, min_hash)
    elif n_documents < 2:
        return None
    groups = np.array(documents.groups, dtype=np.uint64) if spec.group_settings else None
    signatures = None if min_hash is None else min_hash.signatures()
    match split:
        case HeldOut():
            in_validation = np.arange(len(documents.sizes)) >= n_documents
        case Tail(fraction=fraction):
            ends = np.cumsum(documents.sizes)
            in_validation = ends - documents.sizes >= int(ends[-1] * (1 - fraction))
        case Documents() | DocumentClusters() | Fold():
            hashes = np.array(documents.text_hashes, dtype=np.uint64)
            in_validation = draw_documents(split, hashes, name=str(spec.source), groups=groups, signatures=signatures)
    return _Items(split.kind, in_validation, groups, signatures)


def _summarize_groups(groups: np.ndarray, in_validation: np.ndarray) -> GroupSummary:
    _, sizes = np.unique(groups, return_counts=True)
    return GroupSummary(
        count=len(sizes),
        largest=int(sizes.max()),
        train=len(np.unique(groups[~in_validation])),
        validation=len(np.unique(groups[in_validation])),
    )

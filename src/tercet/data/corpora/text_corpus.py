"""Tokenized running text, built once and kept in the cache as `train.bin` and `validation.bin`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from tercet.config import UserError, to_plain
from tercet.data.cache import CHUNK_CHARACTERS, FORMAT, digest, id_dtype
from tercet.data.corpora.corpus import Corpus
from tercet.data.corpora.id_split import draw_documents, split_documents, split_tail
from tercet.data.corpora.preparation import Preparation, describe_tokenizer
from tercet.data.corpora.prepared import is_prepared, prepared_corpus
from tercet.data.datasets.text_datasets import find_text
from tercet.data.encode.document_ids import check_ids, encode_source, encoding_key
from tercet.data.encode.learn_tokenizer import learn_tokenizer
from tercet.data.min_hash import MinHash
from tercet.data.sources.documents import DocumentFiles, DocumentSource, describe_left_out_records
from tercet.data.sources.formats import describe_left_out, extract_command
from tercet.data.sources.id_files import IdFile
from tercet.data.specs import TextSpec
from tercet.data.split_specs import DocumentClusters, Documents, Fold, HeldOut, Tail
from tercet.data.text_hashes import count_near_duplicates
from tercet.messages import print_note
from tercet.tokens import PlainIds, Tokenizer


def prepare(
    spec: TextSpec,
    *,
    tokenizer: Tokenizer | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> Corpus:
    """Return the corpus that `spec` describes, from the cache if it is there.

    Args:
        spec: Settings of the data.
        tokenizer: Tokenizer of an existing model, used instead of `spec.tokenizer`.
        expected_hash: Hash that the data must have, or None to accept any data. It is compared before any text is
            tokenized, printed or cached.
        progress: If True, show a bar on stderr, if that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: If text cannot be read, tokenized or divided, or the cache cannot be written.
    """
    if is_prepared(spec):
        return prepared_corpus(spec, tokenizer=tokenizer, expected_hash=expected_hash)
    return _TextPreparation(spec, tokenizer).prepare(expected_hash=expected_hash, progress=progress)


class _TextPreparation(Preparation[Corpus]):
    folder = "corpora"

    def __init__(self, spec: TextSpec, tokenizer: Tokenizer | None) -> None:
        self._spec, self._custom_tokenizer = spec, tokenizer
        self._source, self._held_out = find_text(spec), None
        if isinstance(spec.validation, HeldOut):
            self._held_out = find_text(spec, spec.validation.source)
        self._sources = [source for source in (self._source, self._held_out) if source]
        super().__init__(str(spec.source), self._sources)

    @property
    def content_hash(self) -> str:
        hashes = [snapshot.hash for snapshot in self.snapshots]
        return hashes[0] if len(hashes) == 1 else digest(*hashes)

    def _choose_tokenizer(self) -> Tokenizer:
        key = digest(FORMAT, self.snapshots[0].hash, self._settings())
        tokenizer = self._custom_tokenizer or learn_tokenizer(
            self._spec.tokenizer, self._training_texts, key, self.snapshots[:1]
        )
        if tokenizer.prefix_space:  # each document would begin with a space, and decoding removes only the first
            raise UserError("prefix_space is for sentence pairs, not for running text; remove it from data.tokenizer")
        return tokenizer

    def _settings(self) -> list[Any]:
        """Return the settings for reading files, which are part of the cache key.

        Settings that older versions did not have are included only if they differ from their default, so that older
        caches remain valid.
        """
        spec, default = self._spec, TextSpec(source=self._spec.source).file_settings
        newer_settings = [
            {name: value}
            for name, value in spec.file_settings.items()
            if name not in ("encoding", "text_field") and value != default[name]
        ]
        groups = [spec.group_settings] if spec.group_settings else []
        return [spec.encoding, spec.text_field, *newer_settings, *groups]

    def _training_texts(self) -> Iterator[str]:
        """Yield the texts to learn a vocabulary from; for ids, only the largest, which defines the vocabulary's size.

        Raises:
            UserError: If the source contains ids, but the tokenizer is learned from text.
        """
        source, tokenizer = self._source, self._spec.tokenizer
        if not isinstance(source, IdFile):
            yield from (piece.text for piece in source.pieces())
        elif isinstance(tokenizer, PlainIds):
            yield str(source.largest())
        else:
            raise UserError(
                f"{source.name} contains ids, but data.tokenizer ({tokenizer.kind}) is learned from text; set it to "
                "{kind: ids}, or to {kind: file, path: TOKENIZER.json} if the ids' tokenizer exists"
            )

    def _key(self) -> list[Any]:
        # Distinguishes these corpora from older ones, in which equal documents could be in both parts.
        grouping_key = ["equal documents together"] if isinstance(self._spec.validation, Documents) else []
        return [
            self.content_hash, self._settings(), to_plain(self._spec.validation), self.tokenizer.hash, sys.byteorder,
            *encoding_key(self.tokenizer), *grouping_key,
        ]  # fmt: skip

    def _check(self) -> None:
        if isinstance(self._source, DocumentFiles) and self._source.looks_like_lines():
            print_note(
                f"tercet: {self._source.name} looks like one document per line, but is read as one document; "
                "set data.documents: line (--documents line) to read each line as a document"
            )
        for source in self._sources:
            _report_left_out(source)
            check_ids(source, self.tokenizer)

    def _write(self, folder: Path, bar: Progress) -> dict[str, Any]:
        tokenizer, dtype = self.tokenizer, id_dtype(self.tokenizer)
        split = self._spec.validation
        min_hash = MinHash(split.shingle) if isinstance(split, DocumentClusters) else None
        encoded = encode_source(self._source, tokenizer, folder / "train.bin", bar, min_hash=min_hash)
        starts, sizes, near = encoded.starts, encoded.sizes, encoded.near_hashes
        text_bytes, near_duplicates = int(sizes.sum()), 0
        match split:
            case HeldOut():
                assert self._held_out is not None
                held_out = encode_source(self._held_out, tokenizer, folder / "validation.bin", bar)
                held_starts, held_bytes = held_out.starts, int(held_out.sizes.sum())
                near_duplicates = count_near_duplicates(held_out.near_hashes, near)
            case Tail(fraction=fraction):
                starts, held_starts = split_tail(folder, starts, dtype, fraction)
                held_bytes = _count_bytes(folder / "validation.bin", tokenizer, held_starts)
                text_bytes -= held_bytes
            case Documents() | DocumentClusters() | Fold():
                in_validation = draw_documents(
                    split,
                    encoded.text_hashes,
                    name=self.name,
                    groups=encoded.group_hashes if self._spec.group_settings else None,
                    signatures=None if min_hash is None else min_hash.signatures(),
                )
                starts, held_starts = split_documents(folder, starts, in_validation, dtype)
                held_bytes, near_duplicates = (
                    int(sizes[in_validation].sum()),
                    count_near_duplicates(near[in_validation], near[~in_validation]),
                )
                text_bytes -= held_bytes
        np.save(folder / "train_documents.npy", starts, allow_pickle=False)
        np.save(folder / "validation_documents.npy", held_starts, allow_pickle=False)
        return {
            "source": self.name,
            "tokenizer": describe_tokenizer(tokenizer),
            "dtype": dtype.name,
            "train_bytes": text_bytes,
            "validation_bytes": held_bytes,
            "near_duplicates": near_duplicates,
        }

    def _load(self, folder: Path, meta: dict[str, Any]) -> Corpus:
        return Corpus(
            name=self.name,
            hash=self.content_hash,
            tokenizer=self.tokenizer,
            train=np.memmap(folder / "train.bin", meta["dtype"], mode="r"),
            validation=np.memmap(folder / "validation.bin", meta["dtype"], mode="r"),
            train_documents=np.load(folder / "train_documents.npy", allow_pickle=False),
            validation_documents=np.load(folder / "validation_documents.npy", allow_pickle=False),
            train_bytes=meta["train_bytes"],
            validation_bytes=meta["validation_bytes"],
            near_duplicates=meta.get("near_duplicates", 0),  # missing in older caches
        )


def _report_left_out(source: DocumentSource | IdFile) -> None:
    for note in describe_left_out_records(source):
        print_note(f"tercet: {note}")
    if isinstance(source, DocumentFiles) and (left_out := source.count_unread_files()):
        command = extract_command(source.name, left_out)
        remedy = (
            f"to read documents, run: {command}" if command else "to read them, convert them to .txt, .jsonl or .csv"
        )
        print_note(f"tercet: {source.name} has files that are not read: {describe_left_out(left_out)}; {remedy}")


def _count_bytes(path: Path, tokenizer: Tokenizer, starts: np.ndarray) -> int:
    """Return the number of UTF-8 bytes of the text of the ids in a file.

    If the tokenizer adds a space before every text, documents are counted separately, because decoding removes one
    space from each.

    Args:
        path: File of ids.
        starts: (D,) position of the start of each document.
    """
    ids = np.memmap(path, id_dtype(tokenizer), mode="r")
    if tokenizer.adds_prefix:
        return sum(tokenizer.count_bytes(document) for document in np.split(ids, starts[1:]))
    return sum(
        tokenizer.count_bytes(ids[start : start + CHUNK_CHARACTERS]) for start in range(0, len(ids), CHUNK_CHARACTERS)
    )

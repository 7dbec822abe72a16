"""Inputs of prepared shards in their order, and units: consecutive inputs that one process tokenizes.

The units depend only on the order and the sizes of the inputs, so that every machine forms the same units.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import Any

from tercet.config import UserError, to_plain
from tercet.data.cache import digest
from tercet.data.datasets.text_datasets import DATASETS, find_text
from tercet.data.encode.document_ids import encoding_key
from tercet.data.encode.learn_tokenizer import TRAINING_BYTES
from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.data.sources.dataset_source import DatasetDocuments
from tercet.data.sources.documents import DocumentFiles, DocumentSource
from tercet.data.sources.id_files import IdFile
from tercet.data.specs import OLD_FILE_SETTINGS, Side, TextSpec
from tercet.data.split_specs import Fold, HeldOut
from tercet.data.text_hashes import hash_text
from tercet.tokens import Characters, PlainIds, Tokenizer, TokenizerSpec

TOKEN_BYTES = 4  # approximate bytes of text per token, so that a unit gives about one shard
FORMAT = 2  # incremented when the shards for the same inputs change


@dataclass(frozen=True, kw_only=True)
class Input:
    """File, or texts in memory.

    Attributes:
        key: Number of the source, or "validation", and the name in the source; the same on every machine.
        source: Source that reads only this input.
        size: Size of the file on disk, or of the texts in memory, in bytes.
        side: "validation" if the input comes from a separate validation source, else "train".
    """

    key: str
    source: DocumentSource | IdFile
    size: int
    side: Side = "train"


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Consecutive inputs of one side that are tokenized together."""

    number: int
    inputs: tuple[Input, ...]

    @property
    def side(self) -> Side:
        return self.inputs[0].side

    @property
    def size(self) -> int:
        return sum(item.size for item in self.inputs)


def find_inputs(spec: TextSpec, sources: Sequence[Source]) -> list[Input]:
    """Return the inputs of `sources`, and of the validation source if `spec` has one.

    Args:
        spec: Settings for reading the sources.
        sources: Named datasets, files, folders, patterns such as `texts/**/*.jsonl`, or datasets of other packages.

    Raises:
        UserError: If a source does not exist, no file matches a pattern, or the validation part is a fold.
    """
    if isinstance(spec.validation, Fold):
        raise UserError(
            "a prepared folder has one validation part, and no folds; set data.validation to {kind: documents}, or "
            "cross-validate the texts without preparing them"
        )
    inputs = [
        item for number, source in enumerate(sources) for item in _expand_source(spec, source, f"{number}", "train")
    ]
    if isinstance(spec.validation, HeldOut):
        inputs += _expand_source(spec, spec.validation.source, "validation", "validation")
    return inputs


def cut_units(inputs: Sequence[Input], shard_tokens: int) -> list[Unit]:
    """Group consecutive inputs of the same side into units of about `shard_tokens` tokens or more.

    The last unit of a side may be smaller.
    """
    units, group = list[Unit](), list[Input]()
    for item, following in zip(inputs, [*inputs[1:], None], strict=True):
        group.append(item)
        is_full = sum(item.size for item in group) >= TOKEN_BYTES * shard_tokens
        if is_full or following is None or following.side != item.side:
            units.append(Unit(number=len(units), inputs=tuple(group)))
            group = []
    return units


def digest_inputs(
    spec: TextSpec,
    inputs: Sequence[Input],
    tokenizer: Tokenizer,
    shard_tokens: int,
    tokenizer_spec: TokenizerSpec | None,
) -> str:
    """Return a hash of everything that the shards depend on. Inputs are identified by key, size and side.

    Args:
        spec: Settings for reading and splitting the inputs.
        inputs: Inputs in their order.
        tokenizer: Tokenizer of the ids.
        shard_tokens: Approximate tokens per shard.
        tokenizer_spec: Settings of the tokenizer if it is learned from the inputs, else None.
    """
    input_keys = [[item.key, item.size, item.side] for item in inputs]
    file_settings = {  # newer settings are included only if they differ, so that older folders remain valid
        name: value
        for name, value in spec.file_settings.items()
        if name in OLD_FILE_SETTINGS or value != getattr(TextSpec(source=spec.source), name)
    }
    groups = [spec.group_settings] if spec.group_settings else []
    settings = [file_settings, to_plain(spec.validation), shard_tokens, to_plain(tokenizer_spec), *groups]
    encoding_parts = [
        part for part in encoding_key(tokenizer) if part != "bos"
    ]  # bos has always been covered by the tokenizer's hash
    return digest("shards", FORMAT, input_keys, settings, tokenizer.hash, *encoding_parts)


def sample_texts(spec: TextSpec, inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a sample of texts to learn a vocabulary from; for ids, only the largest one.

    Inputs are read in an order that depends on the hashes of their keys. If they have more than a quarter of
    `TRAINING_BYTES` together on disk, only the beginning of each is read: equally much of all inputs, but at least
    1 MiB, until `TRAINING_BYTES` of text are reached. For the kind `characters`, all text is read.

    Raises:
        UserError: If an input contains ids, but another one text, or the vocabulary is learned from text.
    """
    training = [item for item in inputs if item.side == "train"]
    ids = [item.source for item in training if isinstance(item.source, IdFile)]
    if ids:
        if len(ids) < len(training) or not isinstance(spec.tokenizer, PlainIds):
            raise UserError(
                f"{ids[0].name} contains ids; pass their tokenizer (--tokenizer FOLDER), or prepare "
                "only ids with --set data.tokenizer.kind=ids"
            )
        yield str(max(source.largest() for source in ids))
        return
    sampled_inputs = sorted(training, key=lambda item: hash_text(item.key))
    takes_all = (
        isinstance(spec.tokenizer, Characters) or sum(item.size for item in sampled_inputs) <= TRAINING_BYTES // 4
    )
    bytes_left, share = TRAINING_BYTES, TRAINING_BYTES // max(1, len(sampled_inputs))
    for item in sampled_inputs:
        n_bytes = 0
        for piece in item.source.pieces() if not isinstance(item.source, IdFile) else ():
            yield piece.text
            n_bytes += len(piece.text.encode())
            if not takes_all and n_bytes >= max(share, 1 << 20):
                break
        bytes_left -= n_bytes
        if not takes_all and bytes_left <= 0:
            return


def stamps(unit: Unit) -> list[Any]:
    """Return values that change if a source of the unit changes.

    They are the path, size and modification time of each file, and the hash of each dataset of another package.
    """
    paths = chain.from_iterable(_paths(item.source) for item in unit.inputs)
    hashes = [item.source.hash() for item in unit.inputs if isinstance(item.source, DatasetDocuments)]
    return [*((str(path), status.st_size, status.st_mtime_ns) for path in paths for status in [path.stat()]), *hashes]


def _paths(source: DocumentSource | IdFile) -> list[Path]:
    if isinstance(source, IdFile):
        return [source.path]
    return [source.root] if isinstance(source, DocumentFiles) else []


def _expand_source(spec: TextSpec, source: Source, prefix: str, side: Side) -> list[Input]:
    if isinstance(source, CustomDataset):
        documents = find_text(spec, source)
        assert isinstance(documents, DatasetDocuments)
        content, size = documents.measure()  # the hash of the content is part of the key, as there is no file
        return [Input(key=f"{prefix}/{source}/{content}", source=documents, size=size, side=side)]
    if source in DATASETS or not has_magic(source) or Path(source).exists():
        return _find_inputs(spec, source, prefix, side)
    matches = sorted(match for match in glob(source, recursive=True) if not Path(match).is_dir())
    if not matches:
        raise UserError(f"no file matches {source}; correct the pattern, and put it in quotes")
    base = Path(*_before_pattern(Path(source)))
    return [
        replace(item, key=f"{prefix}/{Path(match).relative_to(base).as_posix()}")
        for match in matches
        for item in _find_inputs(spec, match, prefix, side)
    ]


def _before_pattern(path: Path) -> Iterator[str]:
    for part in path.parts:
        if has_magic(part):
            return
        yield part


def _find_inputs(spec: TextSpec, source: str, prefix: str, side: Side) -> list[Input]:
    text_source = find_text(spec, source)
    if isinstance(text_source, IdFile):
        return [
            Input(
                key=f"{prefix}/{text_source.path.name}",
                source=text_source,
                size=text_source.path.stat().st_size,
                side=side,
            )
        ]
    if not isinstance(text_source, DocumentFiles):
        return [Input(key=f"{prefix}/{text_source.name}", source=text_source, size=text_source.size() or 0, side=side)]
    return [
        Input(
            key=f"{prefix}/{path.name if path == text_source.root else path.relative_to(text_source.root).as_posix()}",
            source=replace(text_source, root=path, may_be_empty=True),
            size=path.stat().st_size,
            side=side,
        )
        for path in text_source.files()
    ]

"""Corpora in prepared folders: local ones are memory-mapped, remote ones are fetched shard by shard."""

from collections.abc import Sequence

import numpy as np

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import check_hash, create_atomically, digest, is_complete, memory_map, report_disk_errors
from tercet.data.corpora.corpus import Corpus
from tercet.data.shards.find_prepared import is_url
from tercet.data.shards.remote_tokens import RemoteTokenFolder
from tercet.data.shards.token_folder import VALIDATION, TokenFolder, check_tokenizer, find_token_folder, read_contents
from tercet.data.sources.custom_dataset import CustomDataset
from tercet.data.specs import TextSpec
from tercet.data.split_specs import Fold
from tercet.storage import MANIFEST
from tercet.tokens import Tokenizer

BLOCK_IDS = 1 << 22  # ids copied together


def is_prepared(spec: TextSpec) -> bool:
    """Return True if the source of the spec is a prepared folder or a URL.

    Raises:
        UserError: If the spec has a mixture and its source is neither, or the manifest of the folder is damaged.
    """
    if not isinstance(spec.source, CustomDataset) and (
        is_url(spec.source) or find_token_folder(spec.source) is not None
    ):
        return True
    if spec.mixture:
        raise UserError(f"data.mixture requires prepared folders, not {spec.source}; run `tercet data prepare` on it")
    return False


def check_prepared(spec: TextSpec) -> None:
    """Check that every file of the spec's prepared folders exists with its size, and that URLs can be reached.

    Raises:
        UserError: If a file is missing or has another size, or a folder cannot be reached.
    """
    for folder in open_folders(spec):
        folder.check()


def prepared_corpus(spec: TextSpec, *, tokenizer: Tokenizer | None = None, expected_hash: str | None = None) -> Corpus:
    """Return the corpus of prepared folders, with their tokenizer and validation part.

    Args:
        spec: Settings of the data, whose source is a prepared folder or a URL.
        tokenizer: Tokenizer of a pretrained model, which must be that of the folders.
        expected_hash: Hash that the folders must have, or None to accept any.

    Raises:
        ChangedData: If the folders do not have the expected hash.
        UserError: If a file is missing or damaged, or the tokenizers differ.
    """
    folders = open_folders(spec)
    first, weights = folders[0], [1.0]
    content = first.contents.hash
    if len(folders) > 1:
        weights = [
            1 - sum(mixture_source.weight for mixture_source in spec.mixture),
            *(mixture_source.weight for mixture_source in spec.mixture),
        ]
        content = digest([folder.contents.hash for folder in folders], weights)
    check_hash(str(spec.source), content, expected_hash)
    first_tokenizer = first.tokenizer()
    for folder in folders:
        folder.check()
        check_tokenizer(folder, folder.tokenizer(), tokenizer or first_tokenizer)
    return Corpus(
        name=str(spec.source),
        hash=content,
        tokenizer=tokenizer or first_tokenizer,
        train=first.all_ids(),
        validation=_validation_ids(folders),
        train_documents=first.all_documents(),
        validation_documents=_validation_documents(folders),
        train_bytes=sum(part.bytes for folder in folders for part in folder.contents.shards),
        validation_bytes=sum(folder.contents.validation.bytes for folder in folders),
        folders=tuple(folders),
        weights=tuple(weights),
    )


def open_folders(spec: TextSpec) -> list[TokenFolder]:
    """Open the prepared folders of the spec: that of its source, then those of its mixture.

    Raises:
        UserError: If a source is not a prepared folder, or cannot be reached, or the validation part is a fold.
    """
    if isinstance(spec.validation, Fold):
        raise UserError(
            f"{spec.source} is a prepared folder, whose validation part is fixed; to cross-validate, set data.source "
            "to the texts from which it was made"
        )
    sources = str(spec.source), *(mixture_source.source for mixture_source in spec.mixture)
    return [open_folder(source, group=spec.shard_group) for source in sources]


def open_folder(source: str, *, group: int | None = None) -> TokenFolder:
    """Open the prepared folder at a path or URL.

    Args:
        source: Path or URL.
        group: Number of shards to shuffle together (default: all shards of a local folder, 8 of a URL).

    Raises:
        UserError: If it is not a prepared folder, its manifest is damaged, or it cannot be reached.
    """
    if is_url(source):
        return RemoteTokenFolder(source, group=group)
    folder = find_token_folder(source)
    contents = None if folder is None else read_contents(folder / MANIFEST)
    if folder is None or contents is None:
        raise UserError(f"{source} is not a prepared folder; make one with `tercet data prepare`")
    return TokenFolder(source, folder, contents, group=group)


def _validation_ids(folders: Sequence[TokenFolder]) -> np.ndarray:
    """Return the validation ids of all folders, memory-mapped.

    The ids of several folders are first copied into one file of the cache, which is named after the hashes of the
    folders' manifests. Ids are verified against their manifest before they are copied.
    """
    parts = [folder.ids(folder.contents.validation) for folder in folders]
    if len(parts) == 1:
        return parts[0]
    dtype = np.result_type(*parts)
    key = digest("verified validation", [folder.contents.hash for folder in folders])
    place, file = cache_dir() / "corpora" / key[:32], f"{VALIDATION}.bin"
    with report_disk_errors():
        if not is_complete(place):
            with create_atomically(place) as new, (new / file).open("wb") as output:
                for ids in parts:
                    for start in range(0, len(ids), BLOCK_IDS):
                        output.write(ids[start : start + BLOCK_IDS].astype(dtype).data)
    return memory_map(place / file, dtype)


def _validation_documents(folders: Sequence[TokenFolder]) -> np.ndarray:
    parts, offset = list[np.ndarray](), 0
    for folder in folders:
        parts.append(folder.documents(folder.contents.validation) + offset)
        offset += folder.contents.validation.tokens
    return np.concatenate(parts)

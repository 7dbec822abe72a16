"""Named datasets of text. The code that creates or downloads one is imported only when it is opened."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.config import UserError, suggest
from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.data.sources.dataset_source import DatasetDocuments
from tercet.data.sources.documents import DocumentFiles, DocumentSource, DocumentTexts
from tercet.data.sources.files import find_path
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.line_documents import DocumentUnit
from tercet.data.sources.sequence_files import UNCHANGED, SequenceSettings
from tercet.data.specs import Side, TextSpec

if TYPE_CHECKING:
    from tercet.data.sources.id_files import IdFile

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

MOVED_DATASETS = ("debian-descriptions", "debian-sections")  # moved to examples/debian
ID_SUFFIXES = (".bin", ".npy", ".jsonl")
FACTS = (
    "cats sleep most of the day.",
    "an octopus has 3 hearts.",
    "elephants hear with their feet.",
    "bees dance to show the way.",
    "whales sing across the sea.",
    "penguins fly under water.",
    "bats see by listening.",
    "snails can sleep for months.",
    "wolves raise pups together.",
    "giraffes have 7 neck bones.",
    "owls cannot turn their eyes.",
    "salmon swim home to spawn.",
    "camels keep fat in a hump.",
)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Named dataset of text.

    Attributes:
        description, origin: Texts for the list of datasets.
        open: Function that returns the documents.
    """

    description: str
    origin: str
    open: Callable[[], DocumentTexts | DocumentFiles]


def find_text(spec: TextSpec, source: Source | None = None) -> "DocumentSource | IdFile":
    """Return the documents or existing ids of `spec.source`, or of another source with the same settings.

    Raises:
        UserError: If `find_documents` raises it.
    """
    source = spec.source if source is None else source
    if isinstance(source, CustomDataset):
        if spec.group_pattern is not None:
            raise UserError(f"{source} has no headers, to which data.group_pattern applies; set data.group_field")
        return DatasetDocuments(dataset=source, text_field=spec.text_field, group_field=spec.group_field)
    if source not in DATASETS:
        path = find_path(source)
        if uncompressed_suffix(path) in ID_SUFFIXES and path.is_file():
            from tercet.data.sources.id_files import IdFile, contains_ids

            ids = IdFile(path=path, dtype=spec.dtype, encoding=spec.encoding, text_field=spec.text_field)
            if contains_ids(ids):
                _check_no_groups(spec, source, "contains ids")
                return ids
    else:
        _check_no_groups(spec, source, "is a named dataset")
    documents = find_documents(
        source,
        encoding=spec.encoding,
        text_field=spec.text_field,
        documents=spec.documents,
        sequences=spec.sequences,
    )
    return replace(documents, **spec.group_settings) if isinstance(documents, DocumentFiles) else documents


def _check_no_groups(spec: TextSpec, source: str, reason: str) -> None:
    if spec.group_settings:
        raise UserError(f"{source} {reason}, which has no groups; remove data.{next(iter(spec.group_settings))}")


def find_documents(
    source: str,
    *,
    encoding: str = "utf-8",
    text_field: str = "text",
    documents: DocumentUnit = "file",
    sequences: SequenceSettings = UNCHANGED,
) -> DocumentSource:
    """Return the named dataset `source`, or the file or folder at this path.

    `./shakespeare` is always a path. The keyword arguments are those of `TextSpec`, whose settings for FASTA
    and FASTQ are in `sequences`.

    Raises:
        UserError: If it is neither; the message suggests the nearest name.
    """
    if source in DATASETS:
        return replace(DATASETS[source].open(), documents=documents)
    path = find_path(source)
    files = DocumentFiles(root=path, encoding=encoding, text_field=text_field, documents=documents, sequences=sequences)
    if not path.exists():
        check_moved(source)
        guess = suggest(source, DATASETS)
        if path.parent == Path() and guess.startswith("; did you mean"):
            raise UserError(f"no dataset, file or folder is called {source!r}{guess}")
        if path.parent == Path() and not path.suffix:
            raise UserError(f"no dataset, file or folder is called {source!r}; datasets: {', '.join(sorted(DATASETS))}")
        files.files()  # raises with the nearest path
    return files


def find_example_file(source: Source, part: Side, datasets: Collection[str], title: str) -> Path:
    """Return the path of a file of examples, for a source that is not a named dataset.

    The path of a dataset of another package is its name.

    Args:
        source: Path of the file, or dataset of another package.
        part: Requested part.
        datasets: Names of the datasets of such examples.
        title: Name of the examples in messages.

    Raises:
        UserError: If a name without suffix is not a file, or a part other than "train" is requested.
    """
    if part != "train":
        raise UserError(f"{source} has no {part} part; datasets with one: {', '.join(datasets)}")
    if isinstance(source, CustomDataset):
        return Path(str(source))
    path = find_path(source)
    if path.name == source and not path.suffix and not path.exists():
        check_moved(source)
        raise UserError(f"no file or dataset of {title} is called {source!r}{suggest(source, datasets)}")
    return path


def check_moved(source: str) -> None:
    """Raise UserError with the new location of a dataset that is no longer packaged."""
    if source in MOVED_DATASETS:
        raise UserError(f"{source} is now a file that examples/debian/packages.py writes; use the path of that file")


def _animals() -> DocumentTexts:
    return DocumentTexts(name="animals", texts=(" ".join(FACTS),))


def _induction() -> DocumentTexts:
    from tercet.data.datasets.induction import repeated_words

    return DocumentTexts(name="induction", texts=repeated_words())


def _python_docs() -> DocumentTexts:
    from pydoc_data.topics import topics

    return DocumentTexts(
        name="python-docs", texts=tuple(_drop_repeated_paragraphs(text for _, text in sorted(topics.items())))
    )


def _drop_repeated_paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts without repeated paragraphs, so that none is in both the training and the validation part."""
    seen_paragraphs = set[str]()
    for text in texts:
        new_paragraphs = list[str]()
        for paragraph in re.split(r"\n\s*\n", text):
            words = " ".join(paragraph.split())
            if words and words not in seen_paragraphs:
                new_paragraphs.append(paragraph)
                seen_paragraphs.add(words)
        if new_paragraphs:
            yield "\n\n".join(new_paragraphs).rstrip() + "\n"


def _shakespeare() -> DocumentFiles:
    from tercet.data.datasets.downloads import fetch_file

    path = fetch_file(
        SHAKESPEARE_URL,
        sha256=SHAKESPEARE_SHA256,
        dataset="shakespeare",
        title="TinyShakespeare",
        name="input.txt",
    )
    return _NamedFiles(root=path, title="shakespeare")


@dataclass(frozen=True, kw_only=True)
class _NamedFiles(DocumentFiles):
    title: str

    @property
    def name(self) -> str:
        return self.title


DATASETS = {
    "animals": Dataset(
        description="thirteen facts about animals in one text: small enough to memorize in a minute",
        origin="written for Tercet, under its license",
        open=_animals,
    ),
    "induction": Dataset(
        description="20,000 random words, each repeated several times: predictable only by looking back",
        origin="generated by Tercet, always the same",
        open=_induction,
    ),
    "python-docs": Dataset(
        description="Python's language reference: 0.4 MB in some 80 topics, without repeated passages",
        origin="pydoc_data.topics of the running Python, so it differs between versions; PSF license",
        open=_python_docs,
    ),
    "shakespeare": Dataset(
        description="TinyShakespeare, 1.1 MB of plays: the standard first text for a character model",
        origin="public domain; collected by Andrej Karpathy, downloaded once from github.com/karpathy/char-rnn",
        open=_shakespeare,
    ),
}

"""Documents of a file or folder as texts in memory, for models that read each as a whole.

Text, JSONL, tables, Parquet and sequences are read as in training, and HTML, PDF and other documents as by
`tercet data extract`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from tercet import limits
from tercet.config import UserError
from tercet.data.extraction.document_file import DocumentFile, clean_text
from tercet.data.extraction.readers import DOCUMENT_READERS, check_packages
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.files import find_path, suggest_path
from tercet.data.sources.folders import walk_folder
from tercet.data.sources.formats import DOCUMENT_SUFFIXES, uncompressed_suffix
from tercet.data.sources.line_documents import DocumentUnit
from tercet.messages import describe_error, one_line


class DocumentText(NamedTuple):
    """A document.

    Attributes:
        id: Path of its file in the folder, or the name of the file. If a file has several documents, it is followed by
            "#" and the name of the sequence, or the number of the document in the file, from 0.
        text: The whole text.
    """

    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class DocumentFolder:
    """Documents of a file or folder.

    Attributes:
        root: The file or folder.
        encoding: Encoding of text files; that of documents such as HTML is detected.
        text_field: JSON key or table column of the text.
        documents: Unit of a document in a text file.
        left_out: Number of files of other formats below the folder by suffix, counted when the files are listed.
    """

    root: Path
    encoding: str = "utf-8"
    text_field: str = "text"
    documents: DocumentUnit = "file"
    left_out: Counter[str] = field(default_factory=Counter[str])

    def files(self) -> list[Path]:
        """Return the file itself, or every readable file below the folder, sorted by path. Hidden files are left out.

        Raises:
            UserError: If there is no such file or folder, the folder has no readable file, or the extra `documents` is
                required and not installed.
        """
        if not self.root.is_dir():
            if not self.root.exists():
                raise UserError(f"no such file or folder: {self.root}{suggest_path(self.root)}")
            files = [self.root]
        else:
            source = DocumentFiles(root=self.root, encoding=self.encoding)
            readable = set(source.files()) if source.has_files() else set[Path]()
            paths = sorted(walk_folder(self.root), key=lambda path: path.relative_to(self.root).as_posix())
            files = [path for path in paths if path in readable or (is_document(path) and path.is_file())]
            self.left_out.clear()
            self.left_out.update(path.suffix.lower() for path in {*paths}.difference(files) if path.is_file())
        if not files:
            raise UserError(f"the folder {self.root} has no readable file; add text, tables or documents such as .pdf")
        if any(map(is_document, files)):
            check_packages()
        return files

    def read(self, files: list[Path]) -> Iterator[DocumentText]:
        """Yield the documents of files, also empty ones.

        Raises:
            UserError: If a file cannot be read, does not have the format of its name, or has a document of more than
                `limits.DOCUMENT_BYTES` characters.
        """
        for path in files:
            name = path.relative_to(self.root).as_posix() if path != self.root else path.name
            texts = _read_extracted(path) if is_document(path) else self._read_text(path)
            start = list(islice(texts, 2))
            for number, (record, text) in enumerate(chain(start, texts)):
                part = record or (f"{number}" if len(start) > 1 else "")
                yield DocumentText(f"{name}#{part}" if part else name, text)

    def _read_text(self, path: Path) -> Iterator[tuple[str, str]]:
        source = DocumentFiles(
            root=path, encoding=self.encoding, text_field=self.text_field, documents=self.documents, may_be_empty=True
        )
        parts, length = list[str](), 0
        for text, last, record, _ in source.all_pieces():
            parts.append(text)
            length += len(text)
            if length > limits.DOCUMENT_BYTES:
                raise UserError(f"{path} has a document of more than {limits.DOCUMENT_BYTES:,} characters; split it")
            if last:
                yield record, "".join(parts)
                parts, length = [], 0


def is_document(path: Path) -> bool:
    """Return True if the file is of a format whose text must be extracted, such as PDF."""
    return uncompressed_suffix(path) in DOCUMENT_SUFFIXES


def read_documents(
    source: str | Path, *, encoding: str = "utf-8", text_field: str = "text", documents: DocumentUnit = "file"
) -> Iterator[DocumentText]:
    """Return an iterator over the documents of a file or folder; settings as in `DocumentFolder`.

    Files of other formats in a folder are left out; `DocumentFolder.left_out` counts them.

    Raises:
        UserError: If there is nothing to read, or a package is missing; while iterating, if a file cannot be read.
    """
    folder = DocumentFolder(root=find_path(str(source)), encoding=encoding, text_field=text_field, documents=documents)
    return folder.read(folder.files())


def _read_extracted(path: Path) -> Iterator[tuple[str, str]]:
    reader = DOCUMENT_READERS[uncompressed_suffix(path)]
    try:
        for document in reader.read(DocumentFile(path)):
            yield "", "\n\n".join(text for text in (clean_text(part.text) for part in document.parts) if text)
    except UserError:
        raise
    except Exception as error:  # readers of third parties raise many kinds of exceptions for malformed files
        reason = f"{path} is not a readable {reader.format} file ({describe_error(error)}); check or remove it"
        raise UserError(one_line(reason)) from None

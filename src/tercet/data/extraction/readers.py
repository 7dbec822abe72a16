"""The readers of documents and translation memories, by the suffix of the file."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from tercet.config import UserError
from tercet.data.extraction.document_file import Document, DocumentFile, TextPair
from tercet.data.extraction.mail import read_mailbox, read_message
from tercet.data.extraction.markup import read_html, read_markdown, read_plain_text
from tercet.data.extraction.notebook import read_notebook
from tercet.data.extraction.office import read_docx, read_epub, read_spreadsheet
from tercet.data.extraction.pdf import read_pdf
from tercet.data.extraction.restructured_text import read_rst
from tercet.data.extraction.subtitles import read_subtitles
from tercet.data.extraction.translations import read_po, read_sheet_pairs, read_tmx
from tercet.data.sources.formats import TEXT_SUFFIXES

PACKAGES = {  # modules and their distributions
    "resiliparse": "resiliparse", "pypdfium2": "pypdfium2", "mammoth": "mammoth", "python_calamine": "python-calamine",
    "docutils": "docutils", "polib": "polib", "pysubs2": "pysubs2", "lxml": "lxml", "markdown_it": "markdown-it-py",
}  # fmt: skip


class DocumentReader(NamedTuple):
    """Reader of a format.

    Attributes:
        format: Name of the format.
        read: Function that yields the documents of a file.
    """

    format: str
    read: Callable[[DocumentFile], Iterator[Document]]


class PairReader(NamedTuple):
    """Reader of a translation memory.

    Attributes:
        format: Name of the format.
        read: Function that yields the pairs of a file in the wanted languages of source and target.
    """

    format: str
    read: Callable[[DocumentFile, Sequence[str]], Iterator[TextPair]]


PLAIN_TEXT = DocumentReader("text", read_plain_text)
DOCUMENT_READERS = {
    **dict.fromkeys(TEXT_SUFFIXES, PLAIN_TEXT),
    **dict.fromkeys((".md", ".markdown"), DocumentReader("Markdown", read_markdown)),
    ".rst": DocumentReader("reStructuredText", read_rst),
    **dict.fromkeys((".html", ".htm", ".xhtml"), DocumentReader("HTML", read_html)),
    ".pdf": DocumentReader("PDF", read_pdf),
    ".docx": DocumentReader("DOCX", read_docx),
    **dict.fromkeys((".xlsx", ".ods"), DocumentReader("spreadsheet", read_spreadsheet)),
    ".epub": DocumentReader("EPUB", read_epub),
    ".ipynb": DocumentReader("notebook", read_notebook),
    **dict.fromkeys((".srt", ".vtt"), DocumentReader("subtitles", read_subtitles)),
    ".eml": DocumentReader("mail", read_message),
    ".mbox": DocumentReader("mailbox", read_mailbox),
}
PAIR_READERS = {
    ".po": PairReader("gettext", read_po),
    ".tmx": PairReader("TMX", read_tmx),
    **dict.fromkeys((".xlsx", ".ods"), PairReader("spreadsheet", read_sheet_pairs)),
}


def check_packages() -> None:
    """Check that the packages of the extra `documents` are installed.

    Raises:
        UserError: If one is missing.
    """
    if missing := [name for module, name in PACKAGES.items() if find_spec(module) is None]:
        raise UserError(
            f"extracting text from documents requires {', '.join(missing)}; pip install 'tercet[documents]'"
        )

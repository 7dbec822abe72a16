"""Reader of PDF, through PDFium."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tercet.config import UserError
from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart

HYPHEN = re.compile("[\x02\ufffe]\\s*")  # PDFium's mark of a word that is hyphenated at the end of a line
MIN_PAGES = 4  # fewer pages are too few to recognize a running header
HEADER_SHARE = 0.4  # of the pages; headers of left and right pages may differ
EDGE_LINES = 2  # at the top and the bottom of a page that may be header or footer
NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")


def read_pdf(file: DocumentFile) -> Iterator[Document]:
    """Yield the text of a PDF file, with one part per page.

    Raises:
        UserError: If the file is encrypted or damaged.
    """
    import pypdfium2

    data = file.read_bytes()
    try:
        pdf = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        remedy = "save it without a password" if "password" in str(error).lower() else "copy it again"
        raise UserError(f"{file.path} is not a readable PDF file ({error}); {remedy}") from None
    try:
        pages = [_read_page(pdf, number, file) for number in range(len(pdf))]
        file.drop("attachments", pypdfium2.raw.FPDFDoc_GetAttachmentCount(pdf))
        title = pdf.get_metadata_dict().get("Title", "")
    finally:
        pdf.close()
    if file.main_text:
        pages = _without_running_lines(pages, file)
    parts = [DocumentPart(text, f"page {number}") for number, text in enumerate(pages, 1) if text.strip()]
    yield Document(parts, " ".join(title.split()))


def _read_page(pdf: Any, number: int, file: DocumentFile) -> str:
    import pypdfium2

    try:
        page = pdf[number]
        text: str = page.get_textpage().get_text_bounded()
        _drop_annotations(page, file)
    except pypdfium2.PdfiumError:
        file.drop("damaged pages")
        return ""
    if not text.strip():
        file.drop("pages without text, such as scans (they need OCR)")
    return HYPHEN.sub("", text.replace("\r\n", "\n"))


def _drop_annotations(page: Any, file: DocumentFile) -> None:
    """Count the annotations of a page that may have text. Links and marks have none of their own."""
    from pypdfium2 import raw

    reasons = {
        raw.FPDF_ANNOT_TEXT: "comments", raw.FPDF_ANNOT_FREETEXT: "comments", raw.FPDF_ANNOT_STAMP: "comments",
        raw.FPDF_ANNOT_WIDGET: "form fields", raw.FPDF_ANNOT_FILEATTACHMENT: "attachments",
    }  # fmt: skip
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        reason = reasons.get(raw.FPDFAnnot_GetSubtype(annotation))
        raw.FPDFPage_CloseAnnot(annotation)
        if reason:
            file.drop(reason)


def _without_running_lines(pages: list[str], file: DocumentFile) -> list[str]:
    """Return the pages without headers and footers: lines at their edges that are equal on many, but for numbers."""
    page_lines = [page.split("\n") for page in pages]
    edges = [_edges(lines) for lines in page_lines]
    counts = Counter(key for lines, places in zip(page_lines, edges, strict=True)
                     for key in {_key(lines[place]) for place in places})  # fmt: skip
    limit = max(MIN_PAGES, HEADER_SHARE * len(pages))
    for lines, places in zip(page_lines, edges, strict=True):
        running = [place for place in places if counts[_key(lines[place])] >= limit]
        file.drop("headers and footers of pages", len(running))
        for place in sorted(running, reverse=True):
            del lines[place]
    return ["\n".join(lines) for lines in page_lines]


def _edges(lines: list[str]) -> list[int]:
    """Return the indices of the first and last nonempty lines of a page."""
    nonempty = [number for number, line in enumerate(lines) if line.strip()]
    return sorted({*nonempty[:EDGE_LINES], *nonempty[-EDGE_LINES:]})


def _key(line: str) -> str:
    return NUMBER.sub("0", " ".join(line.lower().split()))

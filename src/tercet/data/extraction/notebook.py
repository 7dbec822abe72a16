"""Reader of Jupyter notebooks."""

from collections.abc import Iterator
from typing import Any, cast

from tercet.config import UserError
from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart
from tercet.data.extraction.markup import markdown_to_text
from tercet.reading.bounded_json import parse_json


def read_notebook(file: DocumentFile) -> Iterator[Document]:
    """Yield the text and the code of a notebook, with one part per cell. The outputs of cells are left out.

    Raises:
        UserError: If the file is not a notebook.
    """
    try:
        content = parse_json(file.decode_text())
        sheets = [content] if "cells" in content else content["worksheets"]  # "worksheets" until version 3
        cells = cast("list[dict[str, Any]]", [cell for sheet in sheets for cell in sheet["cells"]])
        kinds = [str(cell["cell_type"]) for cell in cells]
        sources = [cell.get("source", cell.get("input", "")) for cell in cells]
        texts = ["".join(source) for source in sources]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file.path} is not a notebook ({error}); save it again") from None
    parts, title = list[DocumentPart](), ""
    for number, (cell, kind, text) in enumerate(zip(cells, kinds, texts, strict=True), 1):
        file.drop("outputs of cells", len(cell.get("outputs") or ()))
        file.drop("pictures", len(cell.get("attachments") or ()))
        if kind == "markdown":
            text, heading = markdown_to_text(text, file)
            title = title or heading
        if text.strip():
            parts.append(DocumentPart(text, f"cell {number}"))
    yield Document(parts, title)

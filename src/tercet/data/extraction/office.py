"""Readers of DOCX (Mammoth), spreadsheets (Calamine) and EPUB (zipfile and lxml)."""

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from tercet.config import UserError
from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart
from tercet.data.extraction.markup import META, html_to_text, keep_rows
from tercet.data.sources.tables import SPREADSHEET_ERRORS

DOCX_PARTS = {  # members of a DOCX file that are not read
    r"word/(header|footer)\d*\.xml": "headers and footers of pages", r"word/media/.+": "pictures",
    r"word/comments\.xml": "lists of comments", r"word/charts/chart\d*\.xml": "charts",
    r"word/embeddings/.+": "embedded objects", r"word/diagrams/data\d*\.xml": "diagrams",
    r".*vbaProject\.bin": "macros",
}  # fmt: skip
DOCX_TEXTS = r"word/(document|footnotes|endnotes)\d*\.xml"
DOCX_ELEMENTS = {  # elements of these members that are not read
    rb"<m:oMath[ >]": "equations", rb"<w:delText[ >]": "deletions of tracked changes",
}  # fmt: skip
DOCX_FIELDS = re.compile(rb"</?w:(?:fldSimple|dir|bdo)\b[^>]*>")  # elements around text that Mammoth ignores with it
SHEET_PARTS = {
    r"xl/media/.+": "pictures", r"xl/charts/chart\d*\.xml": "charts",
    r"xl/(comments\d*\.xml|threadedComments/.+)": "lists of comments", r".*vbaProject\.bin": "macros",
}  # fmt: skip
SHEET_ELEMENTS = {
    rb"<(?:\w+:)?f\b(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)\s*(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v></(?:\w+:)?v>)?"
    rb"\s*</(?:\w+:)?c>": "formulas without a stored value",
    rb"<(?:\w+:)?(?:odd|even|first)(?:Header|Footer)\b[^>]*[^/]>": "headers and footers of pages",
}  # fmt: skip
WORKBOOK, WORKBOOK_PARTS = "xl/workbook.xml", "xl/_rels/workbook.xml.rels"
BOOK_PAGES = ("application/xhtml+xml", "text/html")


def read_docx(file: DocumentFile) -> Iterator[Document]:
    """Yield the text of a DOCX file, with its tables, lists, footnotes and text boxes."""
    import mammoth

    archive = file.open_zip()
    names = archive.namelist()
    _drop_members(names, DOCX_PARTS, file)
    _drop_elements(archive, DOCX_TEXTS, DOCX_ELEMENTS, file)
    result: Any = mammoth.convert_to_html(  # type: ignore[reportUnknownVariableType]
        io.BytesIO(_without_fields(archive, file)), convert_image=mammoth.images.img_element(_without_picture),
        external_file_access=False, include_default_style_map=True,
    )  # fmt: skip
    for ignored in re.findall(r"ignored: (?!.*\boMath)(.+)", "\n".join(note.message for note in result.messages)):
        file.drop(f"kinds of elements that Mammoth cannot read ({ignored.rpartition('}')[2]})")
    html = keep_rows(re.sub(r"<img[^>]*>", "", result.value))  # pictures are counted above
    title = ""
    if "docProps/core.xml" in names:
        found = parse_xml(archive.read("docProps/core.xml")).findtext("{http://purl.org/dc/elements/1.1/}title")
        title = " ".join((found or "").split())
    yield Document([DocumentPart(html_to_text(html, file, main_text=False)[0], "")], title)


def _without_fields(archive: zipfile.ZipFile, file: DocumentFile) -> bytes:
    """Return the bytes of a DOCX file without the elements around the texts of simple fields."""
    texts = {name: archive.read(name) for name in archive.namelist() if re.fullmatch(DOCX_TEXTS, name)}
    if not any(map(DOCX_FIELDS.search, texts.values())):
        return file.read_bytes()
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, DOCX_FIELDS.sub(b"", texts[name]) if name in texts else archive.read(name))
    return output.getvalue()


def _without_picture(_: object) -> dict[str, str]:
    return {"src": ""}


def read_sheets(file: DocumentFile) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the name and the nonempty rows of each visible sheet. The value of a formula is the stored one.

    Rows are lists of texts of equal length, without empty columns at the end. Errors of formulas, such as #N/A, are
    counted, and their cells are empty.
    """
    from python_calamine import CalamineError, CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

    archive = file.open_zip()
    _drop_members(archive.namelist(), SHEET_PARTS, file)
    error_rows = _find_error_rows(archive)
    _drop_elements(archive, r"xl/worksheets/[^/]+\.xml", SHEET_ELEMENTS, file)
    _drop_elements(archive, r"xl/drawings/[^/]+\.xml", {rb"<(?:\w+:)?txBody\b": "text boxes"}, file)
    try:
        workbook = CalamineWorkbook.from_filelike(io.BytesIO(file.read_bytes()))
        for sheet in workbook.sheets_metadata:
            if sheet.visible != SheetVisibleEnum.Visible:
                file.drop("hidden sheets")
            elif sheet.typ != SheetTypeEnum.WorkSheet:
                file.drop("sheets without cells")
            else:
                rows = workbook.get_sheet_by_name(sheet.name).iter_rows()
                texts = [[_cell_text(value) for value in row] for row in rows]
                errors = sorted(error_rows.get(sheet.name, []) + _remove_errors(texts))
                if errors:
                    file.drop(f"errors of formulas in sheet {sheet.name}, first in row {errors[0]}", len(errors))
                yield sheet.name, [row for row in texts if any(row)]
    except CalamineError as error:
        raise UserError(f"{file.path} is not a readable spreadsheet ({error}); save it again as .xlsx") from None


def _find_error_rows(archive: zipfile.ZipFile) -> dict[str, list[int]]:
    """Return the row of each cell of an XLSX file whose formula has an error, by sheet; Calamine reads it as empty."""
    from lxml import etree  # type: ignore[reportAttributeAccessIssue]  # it has no stubs

    names, rows = set(archive.namelist()), dict[str, list[int]]()
    if not {WORKBOOK, WORKBOOK_PARTS} <= names:
        return rows
    parts = {part.get("Id"): part.get("Target", "") for part in parse_xml(archive.read(WORKBOOK_PARTS))}
    for sheet in parse_xml(archive.read(WORKBOOK)).iterfind("{*}sheets/{*}sheet"):
        number = next((value for key, value in sheet.attrib.items() if key.endswith("}id")), "")
        path = posixpath.normpath(posixpath.join("/xl", parts.get(number, ""))).lstrip("/")
        if path not in names or b't="e"' not in (data := archive.read(path)):
            continue
        found, number = rows.setdefault(sheet.get("name", ""), []), 0
        elements = etree.iterparse(
            io.BytesIO(data), tag="{*}row", resolve_entities=False, no_network=True, load_dtd=False
        )
        for _, row in elements:
            number = int(row.get("r") or number + 1)
            found += [number] * sum(cell.get("t") == "e" for cell in row)
            row.clear()
    return rows


def _remove_errors(rows: list[list[str]]) -> list[int]:
    """Make cells that contain the error of a formula as text empty, and return their rows, from 1."""
    found = list[int]()
    for number, row in enumerate(rows, 1):
        for column, text in enumerate(row):
            if text in SPREADSHEET_ERRORS:
                row[column] = ""
                found.append(number)
    return found


def _cell_text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return " ".join(str(value).split())


def read_spreadsheet(file: DocumentFile) -> Iterator[Document]:
    """Yield the sheets of a spreadsheet as the parts of a document, one row per line and cells separated by tabs."""
    parts = [
        DocumentPart("\n".join("\t".join(row).rstrip("\t") for row in rows), f"sheet {name}")
        for name, rows in read_sheets(file)
        if rows
    ]
    yield Document(parts)


def read_epub(file: DocumentFile) -> Iterator[Document]:
    """Yield the text of a book, with one part per chapter file in reading order.

    Raises:
        UserError: If the file is damaged, or has digital rights management.
    """
    archive = file.open_zip()
    names = set(archive.namelist())
    if "META-INF/encryption.xml" in names and "META-INF/rights.xml" in names:
        raise UserError(f"{file.path} has digital rights management; use a copy without it")
    try:
        root = parse_xml(archive.read("META-INF/container.xml")).find(".//{*}rootfile")
        package_path = "" if root is None else root.get("full-path", "")
        package = parse_xml(archive.read(package_path))
    except KeyError:
        raise UserError(f"{file.path} is not a complete EPUB file; copy it again") from None
    folder = posixpath.dirname(package_path)
    items = {item.get("id"): item for item in package.iterfind("{*}manifest/{*}item")}
    parts = list[DocumentPart]()
    for reference in package.iterfind("{*}spine/{*}itemref"):
        item = items.pop(reference.get("idref"), None)
        path = "" if item is None else posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
        if item is None or path not in names or item.get("media-type") not in BOOK_PAGES:
            file.drop("chapters that are missing or not text")
        elif "nav" in item.get("properties", "").split():
            file.drop("tables of contents")
        else:
            match = META.search(data := archive.read(path))
            html = file.decode(data, match[1].decode() if match else "")
            text, title = html_to_text(html, file, main_text=False)
            parts += (
                [DocumentPart(text, f"chapter {len(parts) + 1}" + (f": {title}" if title else ""))]
                if text.strip()
                else []
            )
    rest = [item for item in items.values() if item.get("media-type") in BOOK_PAGES]
    file.drop("pages outside of the reading order", len(rest))
    title = package.findtext("{*}metadata/{http://purl.org/dc/elements/1.1/}title") or ""
    yield Document(parts, " ".join(title.split()))


def parse_xml(data: bytes) -> Any:
    """Return the root of an XML document, without resolving entities or loading other files.

    Raises:
        lxml.etree.XMLSyntaxError: If it is not XML.
    """
    from lxml import etree  # type: ignore[reportAttributeAccessIssue]  # it has no stubs

    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))


def _drop_members(names: list[str], reasons: dict[str, str], file: DocumentFile) -> None:
    for name in names:
        for pattern, reason in reasons.items():
            if re.fullmatch(pattern, name):
                file.drop(reason)


def _drop_elements(archive: zipfile.ZipFile, members: str, reasons: dict[bytes, str], file: DocumentFile) -> None:
    for name in archive.namelist():
        if re.fullmatch(members, name):
            data = archive.read(name)
            for pattern, reason in reasons.items():
                file.drop(reason, len(re.findall(pattern, data)))

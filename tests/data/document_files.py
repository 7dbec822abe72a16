"""Small documents of each format, written by the standard library."""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tercet.data.sources.tables import SPREADSHEET_ERRORS

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def write_zip(path: Path, members: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_docx(path: Path, body: str, title: str = "", **members: str) -> Path:
    """Write a DOCX file with this content of `w:body`."""
    kind = f"{OFFICE}/officeDocument"
    return write_zip(path, {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="xml" '
        'ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" Type="{kind}" '
        'Target="word/document.xml"/></Relationships>',
        "word/document.xml": f"<w:document {W}><w:body>{body}</w:body></w:document>",
        "docProps/core.xml": '<c:p xmlns:c="c" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{escape(title)}</dc:title></c:p>",
        **members,
    })  # fmt: skip


def paragraph(text: str) -> str:
    return f'<w:p><w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'


def write_xlsx(path: Path, sheets: Mapping[str, Sequence[Sequence[str]]], hidden: Sequence[str] = ()) -> Path:
    """Write a spreadsheet with cells of text, and of the errors that a formula can have."""
    members = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r0" '
        f'Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    }
    entries, links = "", ""

    def cell_xml(cell: str) -> str:
        if cell in SPREADSHEET_ERRORS:
            return f'<c t="e"><f>A1</f><v>{cell}</v></c>'
        return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(cell)}</t></is></c>'

    for number, (name, rows) in enumerate(sheets.items(), 1):
        state = ' state="hidden"' if name in hidden else ""
        entries += f'<sheet name="{escape(name)}" sheetId="{number}"{state} r:id="r{number}"/>'
        links += f'<Relationship Id="r{number}" Type="{OFFICE}/worksheet" Target="worksheets/sheet{number}.xml"/>'
        cells = "".join(f"<row>{''.join(map(cell_xml, row))}</row>" for row in rows)
        members[f"xl/worksheets/sheet{number}.xml"] = (
            f'<worksheet xmlns="{SHEET}"><sheetData>{cells}</sheetData></worksheet>'
        )
    members["xl/workbook.xml"] = f'<workbook xmlns="{SHEET}" xmlns:r="{OFFICE}"><sheets>{entries}</sheets></workbook>'
    members["xl/_rels/workbook.xml.rels"] = f'<Relationships xmlns="{PACKAGE}/relationships">{links}</Relationships>'
    return write_zip(path, members)


def write_epub(path: Path, chapters: Sequence[str], title: str = "") -> Path:
    """Write a book whose files are in the reverse of the reading order."""
    numbers = range(len(chapters))
    items = "".join(
        f'<item id="c{n}" href="c%20{n}.xhtml" media-type="application/xhtml+xml"/>' for n in reversed(numbers)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in numbers)
    return write_zip(path, {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="book/a.opf"/></rootfiles></container>',
        "book/a.opf": '<package xmlns="http://www.idpf.org/2007/opf"><metadata '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{escape(title)}</dc:title></metadata><manifest>{items}'
        f'<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/></manifest>'
        f"<spine>{spine}"
        "</spine></package>",
        "book/nav.xhtml": "<html><body>contents</body></html>",
        **{f"book/c {n}.xhtml": f"<html><head><title>Chapter {n}</title></head><body>{chapters[n]}</body></html>"
           for n in numbers},
    })  # fmt: skip


def write_pdf(path: Path, pages: Sequence[Sequence[str]], title: str = "") -> Path:
    """Write a PDF file with the ASCII lines of each page."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        text = "".join(f"({line.replace(chr(92), '').replace('(', '').replace(')', '')}) Tj T* " for line in lines)
        stream = f"BT /F1 12 Tf 14 TL 50 750 Td {text}ET" if lines else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects.append(f"<< /Title ({title}) >>")
    file, offsets = io.BytesIO(), list[int]()
    file.write(b"%PDF-1.4\n")
    for number, content in enumerate(objects, 1):
        offsets.append(file.tell())
        file.write(f"{number} 0 obj\n{content}\nendobj\n".encode())
    start = file.tell()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    file.write(
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R "
        f"/Info {len(objects)} 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
    )
    path.write_bytes(file.getvalue())
    return path


def write_notebook(path: Path, cells: Sequence[tuple[str, str]]) -> Path:
    """Write a notebook with cells of these kinds and sources; each code cell has an output."""
    content = [
        {"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": {},
         **({"outputs": [{"output_type": "stream", "text": "printed"}]} if kind == "code" else {})}
        for kind, source in cells
    ]  # fmt: skip
    path.write_text(json.dumps({"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def write_tmx(path: Path, units: Sequence[Mapping[str, str]], source_language: str = "en") -> Path:
    """Write a translation memory whose units map languages to segments."""
    body = "".join(
        "<tu>" + "".join(f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in unit.items()) + "</tu>"
        for unit in units
    )
    path.write_text(
        f'<?xml version="1.0"?><tmx version="1.4"><header srclang="{source_language}"/><body>{body}</body></tmx>',
        encoding="utf-8",
    )
    return path

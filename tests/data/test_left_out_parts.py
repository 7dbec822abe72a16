"""Parts of documents that are easily lost without a word: they are in the text, or counted with the reason."""

from pathlib import Path
from typing import Any

import document_files as write
import pytest

from tercet.data.extraction.document_file import DocumentFile
from tercet.data.extraction.readers import DOCUMENT_READERS, PACKAGES, PAIR_READERS

for module in PACKAGES:
    pytest.importorskip(module, reason=f"{module} is not installed; pip install 'tercet[documents]'")

M = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'


def read(path: Path) -> tuple[list[str], dict[str, int]]:
    """Return the words of a document, and the number of left out parts by reason."""
    file = DocumentFile(path)
    texts = [part.text for document in DOCUMENT_READERS[path.suffix].read(file) for part in document.parts]
    return " ".join(texts).split(), dict(file.dropped)


def read_pairs(path: Path) -> tuple[list[tuple[str, str]], dict[str, int]]:
    file = DocumentFile(path)
    pairs: Any = PAIR_READERS[path.suffix].read(file, ("", ""))
    return [(pair.source, pair.target) for pair in pairs], dict(file.dropped)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (".. code-block:: python\n   :caption: Sum\n   :emphasize-lines: 2\n\n   a + b", "Sum a + b"),
        (".. code-block:: python\n   a + b", ".. code-block:: python a + b"),  # without the blank line
        ("===  ===\none  two\n===  ===\nlonger text\n===  ===", "=== === one two === === longer text === ==="),
        (".. list-table::\n   :unknown: 1\n\n   * - cell", ".. list-table:: :unknown: 1 * - cell"),
        (".. note::\n\n   Title\n   -----\n   inner", "Note Title ----- inner"),
    ],
)  # fmt: skip
def test_markup_with_errors_is_kept(source: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.rst").write_text(f"before\n\n{source}\n\nafter\n")
    text, _ = read(tmp_path / "a.rst")
    assert [word.lower() for word in text] == ["before", *words.lower().split(), "after"]


def test_classifier_is_not_joined_with_its_term(tmp_path: Path) -> None:
    (tmp_path / "a.rst").write_text("``width`` : integer\n    In pixels.\n")
    assert read(tmp_path / "a.rst")[0] == ["width", ":", "integer", "In", "pixels."]


def test_figures_and_summaries_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        "<figure class=code><img src=a><pre>x = 1</pre><figcaption>A <b>caption</b></FIGCAPTION></figure>"
        "<details><summary>More</summary>body</details><label>Name</label>"
    )
    words, dropped = read(tmp_path / "a.html")
    assert words == ["x", "=", "1", "A", "caption", "More", "body"]
    assert dropped == {"pictures": 1, "form fields": 1}
    (tmp_path / "a.rst").write_text(".. figure:: a.png\n\n   A caption.\n\n   A legend.\n")
    assert read(tmp_path / "a.rst")[0] == ["A", "caption.", "A", "legend."]


def test_comments_of_restructured_text_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.rst").write_text("text\n\n.. note: a directive with one colon is a comment\n")
    assert read(tmp_path / "a.rst") == (["text"], {"comments": 1})


def test_footnote_of_one_word_is_not_a_link(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("claim[^1] and [link][l]\n\n[^1]: Source\n\n[l]: http://x\n")
    assert read(tmp_path / "a.md")[0] == ["claim[^1]", "and", "link", "[^1]:", "Source"]


def test_fields_of_docx_are_text_and_equations_are_counted(tmp_path: Path) -> None:
    run = "<w:r><w:t>{}</w:t></w:r>"
    body = (
        f"<w:p>{run.format('see')}<w:fldSimple w:instr='REF x'>{run.format('Figure')}</w:fldSimple>"
        f"<w:bdo w:val='rtl'>{run.format('inner')}</w:bdo><m:oMath {M}><m:r><m:t>x</m:t></m:r></m:oMath>"
        f"<w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:strange/></w:p>"
    )
    words, dropped = read(write.write_docx(tmp_path / "a.docx", body))
    assert "".join(words) == "seeFigureinner"
    assert dropped == {
        "equations": 1, "deletions of tracked changes": 1, "kinds of elements that Mammoth cannot read (w:strange)": 1,
    }  # fmt: skip


def test_cells_without_a_value_and_text_boxes_are_counted(tmp_path: Path) -> None:
    path = write.write_xlsx(tmp_path / "a.xlsx", {"S": [["text"]]})
    cells = "<c><f>A1+1</f></c><c><f t='shared' si='0'/><v/></c><c><f>1+1</f><v>2</v></c> <c r='E1'><v>7</v></c>"
    _replace(path, "xl/worksheets/sheet1.xml", "</row>", f"{cells}</row>")
    _replace(path, "xl/drawings/drawing1.xml", "", "<xdr:sp><xdr:txBody>box</xdr:txBody></xdr:sp>")
    words, dropped = read(path)
    assert words == ["text", "2", "7"]
    assert dropped == {"formulas without a stored value": 2, "text boxes": 1}


def _replace(path: Path, member: str, old: str, new: str) -> None:
    """Replace a text in a member of a zip archive; an empty one is the content of a new member."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    members[member] = members[member].replace(old, new) if old else new
    write.write_zip(path, members)


def test_annotations_and_attachments_of_pdf_are_counted(tmp_path: Path) -> None:
    import pypdfium2
    from pypdfium2 import raw

    with pypdfium2.PdfDocument(write.write_pdf(tmp_path / "a.pdf", [["text"]])) as pdf:
        page = pdf[0]
        for kind in (raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_TEXT, raw.FPDF_ANNOT_LINK):
            raw.FPDFPage_CloseAnnot(raw.FPDFPage_CreateAnnot(page, kind))
        pdf.new_attachment("a.txt")
        pdf.save(tmp_path / "b.pdf")
    assert read(tmp_path / "b.pdf") == (["text"], {"comments": 2, "attachments": 1})


def test_plural_without_forms_is_a_pair(tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text('msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d 文件"\n', encoding="utf-8")
    assert read_pairs(tmp_path / "a.po") == ([("%d file", "%d 文件"), ("%d files", "%d 文件")], {})


def test_second_segment_of_a_language_is_counted(tmp_path: Path) -> None:
    path = write.write_tmx(tmp_path / "a.tmx", [{"en": "good", "de": "gut"}])
    path.write_text(path.read_text().replace("</tu>", '<tuv xml:lang="de"><seg>fein</seg></tuv></tu>'))
    assert read_pairs(path) == ([("good", "gut")], {"further segments in the same language": 1})

"""The text of each document format, its provenance, and an account of all parts that are left out."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import document_files as write
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data.extraction import markup
from tercet.data.extraction.extract import Extraction, ExtractionReport, extract_documents
from tercet.data.extraction.readers import DOCUMENT_READERS, PACKAGES, PAIR_READERS
from tercet.data.sources.formats import DOCUMENT_SUFFIXES, TEXT_SUFFIXES, TRANSLATION_SUFFIXES
from tercet.data.sources.tables import SPREADSHEET_ERRORS

for module in PACKAGES:
    pytest.importorskip(module, reason=f"{module} is not installed; pip install 'tercet[documents]'")

WORDS = st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8), min_size=1, max_size=5)
ANY_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


def extract(source: Path, **flags: Any) -> tuple[list[dict[str, str]], ExtractionReport]:
    """Return the records that are extracted from a source, without its path, and the report."""
    out = source.parent / "out.jsonl"
    report = extract_documents(Extraction(sources=(str(source),), **flags), out)
    with out.open(encoding="utf-8") as file:  # `splitlines` would also split at U+0085, which JSON does not escape
        records = [json.loads(line) for line in file]
    assert report.count == len(records)
    return records, report


def read(source: Path, **flags: Any) -> tuple[str, dict[str, int]]:
    """Return the text of the only document of a file, and the number of left out parts by reason."""
    [record], report = extract(source, **flags)
    assert record["source"] == str(source)
    assert report.unreadable == []
    return record["text"], dict(report.totals())


def test_each_format_of_the_messages_has_a_reader() -> None:
    assert {*DOCUMENT_READERS} == {*DOCUMENT_SUFFIXES, *TEXT_SUFFIXES}
    assert {*PAIR_READERS} - {*DOCUMENT_SUFFIXES} == {*TRANSLATION_SUFFIXES}


def test_web_page_becomes_lines_of_text(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(
        "<title>The  title</title><style>x</style><h1>One</h1><p>two <b>three</b><br>four</p><script>y</script>"
        "<ul><li>five</ul><img src=z alt=picture><pre>a\n  b</pre><p hidden>secret</p>"
    )
    text, dropped = read(path)
    assert [line.strip() for line in text.split("\n") if line.strip()] == [
        "One", "two three", "four", "• five", "a", "b",
    ]  # fmt: skip
    assert "\n  b" in text
    assert dropped == {"scripts and styles": 2, "pictures": 1, "hidden elements": 1}
    [record], _ = extract(path)
    assert record["title"] == "The title"


def test_boilerplate_is_removed_on_request_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    words = "This paragraph is the main text of the page and long enough to be one. " * 5
    path.write_text(
        f"<nav><ul><li><a href=x>Home</a></ul></nav><main><article><p>{words}</article></main><footer>legal"
    )
    assert "Home" in read(path)[0]
    text, dropped = read(path, main_text=True)
    assert text == words.strip()
    assert dropped["characters of boilerplate"] > len("Home")


def test_markdown_and_sphinx_lose_their_markup_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(
        "---\ntitle: 'Front'\n---\n# Head *ing*\n\nSome **bold** [link](x).\n\n```\ndef f():\n    pass\n```\n"
    )
    assert read(path) == ("Head ing\n\nSome bold link.\n\ndef f():\n    pass", {"front matter": 1})
    (tmp_path / "secret").write_text("SECRET")
    path = tmp_path / "a.rst"
    path.write_text(
        "Title\n=====\n\n:class:`Foo` and :ref:`bar <baz>`.\n\n.. versionadded:: 3 of :mod:`x`\n   :any: option\n\n"
        f"   inner *text*\n\n.. include:: {tmp_path}/secret\n\n.. raw:: html\n   :file: {tmp_path}/secret\n\n"
        "::\n\n  code\n"
    )
    text, dropped = read(path)
    assert text.split() == "Title Foo and bar . 3 of x inner text code".replace("bar .", "bar.").split()
    assert dropped == {"included files and raw HTML": 2}


def test_pdf_has_pages_headers_and_scans(tmp_path: Path) -> None:
    pages = [[f"Journal {n}", f"text {'abcdefg'[n]} one", f"text {'abcdefg'[n]} two"] for n in range(6)]
    path = write.write_pdf(tmp_path / "a.pdf", [*pages, []], title="On pages")
    text, dropped = read(path)
    assert text.split("\n\n")[1] == "Journal 1\ntext b one\ntext b two"
    assert dropped == {"pages without text, such as scans (they need OCR)": 1}
    records, _ = extract(path, split=True)
    assert [record["place"] for record in records] == [f"page {n}" for n in range(1, 7)]
    assert {record["title"] for record in records} == {"On pages"}
    text, dropped = read(path, main_text=True)
    assert "Journal" not in text
    assert dropped["headers and footers of pages"] == 6
    assert "text a one" in text


def test_docx_has_tables_and_a_title(tmp_path: Path) -> None:
    row = "".join(f"<w:tc>{write.paragraph(cell)}</w:tc>" for cell in ("left", "right"))
    body = f"{write.paragraph('Über & unter')}<w:tbl><w:tr>{row}</w:tr></w:tbl>{write.paragraph('end')}"
    path = write.write_docx(
        tmp_path / "a.docx", body, "A title", **{"word/header1.xml": "<a/>", "word/media/a.png": ""}
    )
    text, dropped = read(path)
    assert text.split("\n") == ["Über & unter", "", "left\t\tright", "", "end"] or text.split() == [
        "Über", "&", "unter", "left", "right", "end",
    ]  # fmt: skip
    assert "left\t\tright" in text
    assert dropped == {"headers and footers of pages": 1, "pictures": 1}
    assert extract(path)[0][0]["title"] == "A title"


def test_spreadsheet_has_sheets_and_hidden_sheets(tmp_path: Path) -> None:
    path = write.write_xlsx(tmp_path / "a.xlsx", {"S": [["a", "b c"], ["", "d"]], "T": [["x"]]}, hidden=["T"])
    assert read(path) == ("a\tb c\n\td", {"hidden sheets": 1})


def test_book_is_read_in_reading_order(tmp_path: Path) -> None:
    path = write.write_epub(tmp_path / "a.epub", ["<p>first", "<p>second &amp; last"], title="Book")
    assert read(path) == ("first\n\nsecond & last", {"pages outside of the reading order": 1})
    records, _ = extract(path, split=True)
    assert [record["place"] for record in records] == ["chapter 1: Chapter 0", "chapter 2: Chapter 1"]


def test_notebook_has_text_and_code_without_outputs(tmp_path: Path) -> None:
    path = write.write_notebook(
        tmp_path / "a.ipynb", [("markdown", "# Head\n\n*text*"), ("code", "x = 1\nx"), ("raw", "")]
    )
    assert read(path) == ("Head\n\ntext\n\nx = 1\nx", {"outputs of cells": 1})


def test_subtitles_have_lines_without_styles(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    path.write_bytes(
        "1\n00:00:01,0 --> 00:00:02,0\n<i>Das süße</i>\nKind\n\n2\n00:00:03,0 --> 00:00:04,0\nB\n".encode("cp1252")
    )
    [record], report = extract(path)
    assert record["text"] == "Das süße Kind\nB"
    assert report.encodings == {record["encoding"]: 1}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_webvtt_has_no_notes_styles_and_times_of_words(tmp_path: Path, line_end: str) -> None:
    lines = [
        "WEBVTT - a film", "", "NOTE", "by Ana", "", "STYLE", "::cue { color: red }", "", "REGION", "id:a", "",
        "1", "00:01.000 --> 00:02.000", "When the <00:01.500>moon", "", "NOTE may not", "translate well", "",
        "00:02.000 --> 00:03.000 align:left", "NOTEBOOK <c.red>pie</c>", "STYLE is a line", "", "NOTE end",
    ]  # fmt: skip
    (tmp_path / "a.vtt").write_bytes(line_end.join(lines).encode())
    [record], report = extract(tmp_path / "a.vtt")
    assert record["text"] == "When the moon\nNOTEBOOK pie STYLE is a line"
    assert [(parts.reason, parts.count) for parts in report.dropped] == [("comments", 3)]


def test_mailbox_has_messages_with_subjects(tmp_path: Path) -> None:
    message = (
        "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n"
        "Content-Type: text/plain; charset=latin-1\nContent-Transfer-Encoding: 8bit\n\nhallö\n>From here\n"
        "On Monday, a wrote:\n> old\n\n-- \nsig\n\n--b\n"
        "Content-Type: image/png\nContent-Disposition: attachment\n\nx\n--b--\n\n"
    )
    path = tmp_path / "a.mbox.gz"
    path.write_bytes(gzip.compress(f"From a@b Thu Jan  1 00:00:00 1970\n{message}".encode("latin-1") * 2))
    records, report = extract(path, main_text=True)
    assert [record["place"] for record in records] == ["message 1", "message 2"]
    assert {record["title"] for record in records} == {"Grüße"}
    assert records[0]["text"].strip() == "hallö\nFrom here"
    assert report.totals()["attachments"] == 2
    assert report.totals()["characters of quoted replies and signatures"] > 0


@pytest.mark.slow
@given(paragraphs=st.lists(WORDS, min_size=1, max_size=4))
@ANY_FOLDER
def test_paragraphs_survive_each_format(paragraphs: list[list[str]], tmp_path: Path) -> None:
    texts = [" ".join(words) for words in paragraphs]
    html = "".join(f"<p>{text}</p>" for text in texts)
    (tmp_path / "a.html").write_text(f"<meta charset=utf-8>{html}", encoding="utf-8")
    write.write_epub(tmp_path / "a.epub", [html])
    write.write_docx(tmp_path / "a.docx", "".join(map(write.paragraph, texts)))
    write.write_xlsx(tmp_path / "a.xlsx", {"S": [[text] for text in texts]})
    write.write_notebook(tmp_path / "a.ipynb", [("code", text) for text in texts])
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    for path in sorted(tmp_path.glob("a.*")):
        assert read(path)[0].split() == " ".join(texts).split(), path


def test_folder_is_read_in_order_without_duplicates_and_reports_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("One, two.")
    (folder / "a.html").write_text("<p>one TWO")
    (folder / "sub" / "c").write_text("three")
    (folder / "sub" / "up").symlink_to(folder)
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "d.pdf").write_bytes(b"%PDF-1.4 damaged")
    (folder / "e.md").write_text(" \n")
    (folder / "f.png").write_bytes(b"\x89PNG")
    (folder / "g.po").write_text('msgid "a"\nmsgstr "b"\n')
    os.mkfifo(folder / "pipe.txt")
    records, report = extract(folder, drop_duplicates=True)
    assert [(record["text"], record["source"]) for record in records] == [
        ("one TWO", f"{folder}/a.html"), ("three", f"{folder}/sub/c"),
    ]  # fmt: skip
    assert [Path(file.path).name for file in report.unreadable] == ["d.pdf", "pipe.txt"]
    assert dict(report.left_out) == {".png": 1, ".po": 1}
    assert report.totals() == {
        "documents that are near duplicates of earlier ones": 1, "documents without text": 1,
    }  # fmt: skip
    first = (tmp_path / "out.jsonl").read_bytes()
    assert extract(folder, drop_duplicates=True)[1] == report
    assert (tmp_path / "out.jsonl").read_bytes() == first


def test_zip_bomb_and_entities_are_rejected(tmp_path: Path) -> None:
    bomb = write.write_docx(tmp_path / "a.docx", "", **{"word/x.xml": "0" * (20 << 20)})
    with pytest.raises(UserError, match="unpack to more than 200 times"):
        extract(bomb)
    (tmp_path / "secret").write_text("SECRET")
    entity = f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e SYSTEM "file://{tmp_path}/secret">]>'
    body = write.paragraph("text").replace("text<", "text&e;<")
    document = f"{entity}<w:document {write.W}><w:body>{body}</w:body></w:document>"
    path = write.write_docx(tmp_path / "b.docx", "", **{"word/document.xml": document})
    path.with_name("c.tmx").write_text(
        f'{entity}<tmx><body><tu><tuv xml:lang="en"><seg>&e;</seg></tuv>'
        '<tuv xml:lang="de"><seg>&e;</seg></tuv></tu></body></tmx>'
    )
    assert read(path) == ("text", {})
    with pytest.raises(UserError, match="no pairs were extracted") as error:
        extract(tmp_path / "c.tmx", pairs=True)
    assert "SECRET" not in str(error.value)


@pytest.mark.slow
@given(data=st.binary(max_size=200), suffix=st.sampled_from(DOCUMENT_SUFFIXES))
@ANY_FOLDER
def test_damaged_file_is_reported_and_stops_nothing(data: bytes, suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    (folder / f"a{suffix}").write_bytes(data)
    (folder / "z.txt").write_text("the end")
    records, report = extract(folder)
    assert records[-1]["text"] == "the end"
    known = len(report.unreadable) + sum(report.files.values())
    assert known == 2


def test_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "no_such_module", "no-such-package")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match=r"requires no-such-package; pip install 'tercet\[documents\]'"):
        extract(tmp_path / "a.txt")


def test_rows_stay_on_one_line() -> None:
    assert markup.keep_rows("<td><p>a</p></td><th x><p class='y'>b</p> </th>") == "<td>a</td><th x>b</th>"


@pytest.mark.parametrize("error", sorted(SPREADSHEET_ERRORS))
def test_error_of_a_formula_is_not_text(error: str, tmp_path: Path) -> None:
    path = write.write_xlsx(tmp_path / "a.xlsx", {"S": [["a", error], ["b", "#1"]]})
    assert read(path) == ("a\nb\t#1", {"errors of formulas in sheet S, first in row 1": 1})

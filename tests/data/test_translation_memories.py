"""Pairs of translation memories, in the form that translation recipes read."""

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import document_files as write
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import PairFiles, PairsSpec
from tercet.data.datasets.recognize import recognize
from tercet.data.extraction.extract import Extraction, ExtractionReport, extract_documents
from tercet.data.extraction.readers import PACKAGES

for module in PACKAGES:
    pytest.importorskip(module, reason=f"{module} is not installed; pip install 'tercet[documents]'")

SIDE = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
PO = """\
# fuzzy header
msgid ""
msgstr ""
"Content-Type: text/plain; charset=ISO-8859-1\\n"
"Language: de\\n"

msgid "sweet"
msgstr "süß"

#, fuzzy
msgid "maybe"
msgstr "vielleicht"

msgid "open"
msgstr ""

msgid "one file"
msgid_plural "%d files"
msgstr[0] "eine Datei"
msgstr[1] "%d Dateien"

#~ msgid "old"
#~ msgstr "alt"
"""


def extract(source: Path, **flags: Any) -> tuple[list[tuple[str, str]], ExtractionReport]:
    """Return the pairs as training reads them, and the report."""
    out = source.parent / "out.jsonl"
    report = extract_documents(Extraction(sources=(str(source),), pairs=True, **flags), out)
    assert isinstance(recognize(str(out)), PairsSpec)
    pairs = [(pair.source, pair.target) for pair in PairFiles(source=out).examples()]
    assert report.count == len(pairs)
    return pairs, report


def test_gettext_messages_are_pairs(tmp_path: Path) -> None:
    path = tmp_path / "a.po"
    path.write_text(PO, encoding="latin-1")
    pairs, report = extract(path)
    assert pairs == [("sweet", "süß"), ("one file", "eine Datei"), ("%d files", "%d Dateien")]
    assert report.totals() == {"fuzzy translations": 1, "messages without a translation": 1, "obsolete translations": 1}
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert first == {
        "source": "sweet", "target": "süß", "file": str(path), "format": "gettext", "place": "message 1",
        "target_language": "de",
    }  # fmt: skip
    with pytest.raises(UserError, match="5 translations into other languages"):
        extract(path, target_language="fr")


def test_translation_memory_has_units_in_two_languages(tmp_path: Path) -> None:
    units = [{"de-DE": "gut", "en-US": 'go<ph>code</ph>od <hi>one</hi> <bpt i="1">b</bpt>'}, {"en-US": "lonely"}]
    path = write.write_tmx(tmp_path / "a.tmx", units)
    pairs, report = extract(path)
    assert pairs == [("good one", "gut")]
    assert report.totals() == {"units without both languages": 1}
    assert extract(path, source_language="de", target_language="en")[0] == [("gut", "good one")]


def test_several_languages_must_be_chosen(tmp_path: Path) -> None:
    path = write.write_tmx(tmp_path / "a.tmx", [{"en": "a", "de": "b", "fr": "c"}])
    with pytest.raises(UserError, match="has the languages en, de, fr; pass --source-language"):
        extract(path)
    pairs, report = extract(path, source_language="fr", target_language="de")
    assert pairs == [("c", "b")]
    assert report.totals() == {"segments in other languages": 1}


def test_sheets_with_two_columns_are_pairs(tmp_path: Path) -> None:
    sheets = {"A": [["a", "b"], ["c", ""]], "B": [["id", "Target", "Source"], ["1", "d", "e"]], "C": [["x", "y", "z"]]}
    pairs, report = extract(write.write_xlsx(tmp_path / "a.xlsx", {**sheets, "D": [["de", "en"], ["f", "g"]]}))
    assert pairs == [("a", "b"), ("e", "d"), ("f", "g")]
    assert report.totals() == {
        "pairs with an empty side": 1, "rows of sheets that have no columns named source and target": 1,
    }  # fmt: skip


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=5, unique_by=lambda pair: pair[0]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
def test_pairs_survive_each_format(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    import polib

    catalog = polib.POFile()
    catalog.metadata = {"Content-Type": "text/plain; charset=utf-8"}
    catalog.extend(polib.POEntry(msgid=source, msgstr=target) for source, target in pairs)
    catalog.save(str(tmp_path / "a.po"))
    write.write_tmx(tmp_path / "a.tmx", [{"en": escape(source), "de": escape(target)} for source, target in pairs])
    write.write_xlsx(tmp_path / "a.xlsx", {"S": [("source", "target"), *pairs]})
    for path in sorted(tmp_path.glob("a.*")):
        assert extract(path)[0] == pairs, path


def test_errors_of_formulas_are_counted_with_their_place_and_left_out(tmp_path: Path) -> None:
    rows = [["source", "target"], ["a", "b"], ["#N/A", "c"], ["d", "#DIV/0!"], ["e", "f"], ["g", "#NAME"]]
    pairs, report = extract(write.write_xlsx(tmp_path / "a.xlsx", {"S": rows, "T": [["x", "y"]]}))
    assert pairs == [("a", "b"), ("e", "f"), ("g", "#NAME"), ("x", "y")]
    assert report.totals() == {"errors of formulas in sheet S, first in row 3": 2, "pairs with an empty side": 2}

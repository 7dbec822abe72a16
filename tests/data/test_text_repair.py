"""The repair of a text changes only what it names, counts it, and changes nothing the second time."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.data.check import text_repair
from tercet.data.check.text_repair import CONTROL, TextRepair

FRAGMENTS = [
    "é",
    "e\u0301",
    "Ã©",
    "â€™",
    "\xc3\xa9",
    "\x85",
    "\ufeff",
    "\x00",
    "\r",
    "\n",
    "\t",
    "\ufffd",
    "Ж",
    "ﬁ",
    "“",
    "x ",
]
CORRECT = ["“naïve”", "Straße", "10 €", "Жизнь", "漢字", "¿señor?", "l’été…", "Über", "Ångström", "ﬁn", "’tis", "«oui»"]
NEEDS_FTFY = pytest.mark.skipif(not text_repair.has_ftfy(), reason="ftfy is not installed")
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3)).map("".join)


@pytest.mark.slow
@settings(max_examples=60)
@given(text=texts)
def test_repaired_text_has_no_faults(text: str) -> None:
    repaired = TextRepair().repair(text)
    assert "\r" not in repaired
    assert not CONTROL.search(repaired)
    assert unicodedata.is_normalized("NFC", repaired)
    repaired.encode()
    second = TextRepair()
    assert second.repair(repaired) == repaired
    assert not +second.changes
    for repair in (TextRepair.join_lines, lambda self, line: "\n".join(self.split_lines(line))):
        line = repair(TextRepair(), text.replace("\n", ""))
        second = TextRepair()
        assert "\n".join(repair(second, part) for part in line.split("\n")) == line
        assert not +second.changes


@pytest.mark.slow
@given(words=st.lists(st.sampled_from([*CORRECT, "\n", "\t", "<b>", "&amp;"]), max_size=12))
def test_correct_text_is_not_changed(words: list[str]) -> None:
    """It has no control characters, is in NFC, and is not mojibake. Quotes and entities stay as they are."""
    text = " ".join(words)
    repair = TextRepair()
    assert repair.repair(text) == text
    assert not +repair.changes


@pytest.mark.parametrize(
    ("text", "repaired", "changes"),
    [
        ("a\r\nb\rc\n", "a\nb\nc\n", {"line_ends": 2}),
        ("a\x00\x08\ufeff\x7fb\tc\x0c", "ab\tc", {"control_characters": 5}),
        ("cafe\u0301 &amp; “so”\nn\u0303", "café &amp; “so”\nñ", {"unicode_nfc": 2}),
        ("e\x00\u0301", "é", {"control_characters": 1, "unicode_nfc": 1}),
    ],
)
def test_each_change_is_counted(text: str, repaired: str, changes: dict[str, int]) -> None:
    repair = TextRepair()
    assert repair.repair(text) == repaired
    assert dict(+repair.changes) == changes


@NEEDS_FTFY
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_text_that_was_decoded_in_a_wrong_encoding(encoding: str) -> None:
    lines = ["Die Straße führt über die Brücke.", "Le café était fermé à l'été.", "plain", "Où est le garçon ?"]
    wrong = [line.encode().decode(encoding, "replace") for line in lines]
    repair = TextRepair()
    assert repair.repair("\n".join(wrong)) == "\n".join(lines)
    assert dict(+repair.changes) == {"mojibake": 3}


def test_without_ftfy_mojibake_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its control characters from 0x80 to 0x9f also stay, since they are needed to decode it later."""
    monkeypatch.setattr(text_repair, "has_ftfy", lambda: False)
    repair = TextRepair()
    assert repair.repair("itâ\x80\x99s\x00") == "itâ\x80\x99s"
    assert dict(+repair.changes) == {"control_characters": 1}


def test_carriage_returns_within_a_line() -> None:
    repair = TextRepair()
    assert repair.split_lines("a\rb\r") == ["a", "b"]
    assert repair.join_lines("a\rb\r") == "a b"
    assert repair.changes["line_ends"] == 4

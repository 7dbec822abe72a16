"""Validation items that equal training items except for case, punctuation and white space are counted."""

import json
import string
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.data import (
    ConversationsSpec,
    Documents,
    HeldOut,
    HeldOutPairs,
    LabelsSpec,
    PairsSpec,
    Tail,
    TextSpec,
    prepare,
    prepare_conversations,
    prepare_labels,
    prepare_pairs,
)
from tercet.data.label_spec import HeldOutLabels
from tercet.data.text_hashes import count_near_duplicates, hash_near_duplicate
from tercet.tokens import Characters, Words

TRAIN = ["The cat sleeps.", "A dog barks", "Hens lay eggs", "12 + 3 = 15", "!?"]
HELD_OUT = ["the cat  SLEEPS", "A dog, barks!\n", "Hens lay 3 eggs", "12+3=15", "!?", "???"]
NEAR = 4  # of these; items of punctuation only must be equal


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def write(name: str, rows: list[dict[str, object]]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


@given(text=st.text(string.ascii_letters + string.digits + " .,-'\n", min_size=1), data=st.data())
def test_case_punctuation_and_white_space_make_no_difference(text: str, data: st.DataObject) -> None:
    if not any(map(str.isalnum, text)):
        return
    place, sign = data.draw(st.integers(0, len(text))), data.draw(st.sampled_from([" ", "\n\n", "!", "_", "\u2014"]))
    variant = text[:place] + sign + data.draw(st.sampled_from([str.upper, str.lower, str.swapcase]))(text[place:])
    assert hash_near_duplicate(variant) == hash_near_duplicate(text)
    assert hash_near_duplicate(text + "x") != hash_near_duplicate(text)


def test_of_documents() -> None:
    texts = (
        write("a.jsonl", [{"text": text} for text in TRAIN]),
        write("b.jsonl", [{"text": text} for text in HELD_OUT]),
    )
    spec = TextSpec(source=texts[0], validation=HeldOut(source=texts[1]), tokenizer=Characters(byte_fallback=True))
    assert prepare(spec).near_duplicates == NEAR
    assert prepare(spec).near_duplicates == NEAR  # from the cache
    assert prepare(TextSpec(source=texts[0], validation=Tail(), tokenizer=Characters())).near_duplicates == 0


def test_of_documents_that_are_drawn() -> None:
    texts = [f"text {['one', 'two', 'three', 'four', 'five'][n % 5]}{'.' * (n // 5)}" for n in range(40)]
    path = write("a.jsonl", [{"text": text} for text in texts])
    spec = TextSpec(source=path, validation=Documents(fraction=0.2), tokenizer=Characters())
    assert prepare(spec).near_duplicates == 8


def test_of_pairs_labels_and_conversations() -> None:
    files = dict[str, tuple[str, str]]()
    for kind, row in {
        "pairs": lambda text: {"source": text, "target": "so"},
        "labels": lambda text: {"text": text, "label": "ab"[len(text) % 2]},
        "chat": lambda text: {"prompt": text, "response": "so"},
    }.items():
        names = [(f"{kind}-train.jsonl", TRAIN), (f"{kind}-held.jsonl", HELD_OUT)]
        first, second = (write(name, [row(text) for text in texts]) for name, texts in names)
        files[kind] = first, second
    words = Words()
    pairs = PairsSpec(source=files["pairs"][0], validation=HeldOutPairs(source=files["pairs"][1]), tokenizer=words)
    assert prepare_pairs(pairs).near_duplicates == NEAR
    labels = LabelsSpec(source=files["labels"][0], validation=HeldOutLabels(source=files["labels"][1]), tokenizer=words)
    assert prepare_labels(labels).near_duplicates == NEAR
    chat = ConversationsSpec(source=files["chat"][0], validation=HeldOut(source=files["chat"][1]), tokenizer=words)
    assert prepare_conversations(chat).near_duplicates == NEAR


def test_each_item_counts_once() -> None:
    assert count_near_duplicates(array("Q", [1, 1, 2, 3]), array("Q", [1, 3, 3, 4])) == 3
    assert count_near_duplicates(array("Q"), array("Q", [1])) == 0

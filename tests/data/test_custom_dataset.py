"""A dataset of another package gives the corpora of a JSONL file with its examples, and its faults are one line."""

import json
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.checkpoint.card import remove_folders
from tercet.config import UserError, parse, to_plain
from tercet.custom_code import ALLOWED
from tercet.data import (
    Conversations,
    ConversationsSpec,
    CustomDataset,
    Documents,
    HeldOut,
    LabelsSpec,
    MixtureSource,
    PairsSpec,
    QueriesSpec,
    TextSpec,
    prepare,
    prepare_conversations,
    prepare_labels,
    prepare_pairs,
    prepare_queries,
    prepare_tokens,
    summarize_data,
)
from tercet.data.cache import ChangedData
from tercet.data.corpora.find_sources import check_sources
from tercet.data.sources import dataset_source
from tercet.data.sources.custom_dataset import name_datasets, plain_source, read_source
from tercet.spec import Name, spec
from tercet.tokens import BPE

WORDS = ["the", "red", "cat", "sleeps", "and", "a", "small", "blue", "mouse", "eats", "all", "of", "it"]


@spec
class Rows(CustomDataset):
    """Lines of a JSONL file, or plain texts."""

    path: Name
    plain: bool = False

    def examples(self) -> Iterator[Any]:
        for line in Path(self.path).read_text().splitlines():
            yield json.loads(line)["text"] if self.plain else json.loads(line)


@spec
class Yielding(CustomDataset):
    """The items of `Yielding.items`; if it is a function, those that it returns."""

    def examples(self) -> Any:
        items = ITEMS["items"]
        return items() if callable(items) else items


ITEMS: dict[str, Any] = {"items": []}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(ALLOWED, "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a JSONL file whose lines are examples of every task."""
    draw = random.Random(1)
    lines = [
        {
            "text": " ".join(draw.choices(WORDS, k=draw.randint(1, 12))) + f" {number}",
            "label": draw.choice(["good", "bad"]),
            "source": f"{draw.choice(WORDS)} {number}",
            "target": f"{number} {draw.choice(WORDS)}",
            "query": f"find {number}",
            "document": " ".join(draw.choices(WORDS, k=5)),
            "prompt": f"what is {number}?",
            "response": " ".join(draw.choices(WORDS, k=4)),
        }
        for number in range(90)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


CASES: dict[str, tuple[Any, Any]] = {
    "text": (prepare, TextSpec(source="x", validation=Documents())),
    "text in groups": (prepare, TextSpec(source="x", validation=Documents(fraction=0.5), group_field="label")),
    "labels": (prepare_labels, LabelsSpec(source="x")),
    "pairs in groups": (prepare_pairs, PairsSpec(source="x", group_field="label")),
    "pairs": (prepare_pairs, PairsSpec(source="x")),
    "queries": (prepare_queries, QueriesSpec(source="x")),
    "conversations": (prepare_conversations, ConversationsSpec(source="x")),
}


def assert_same(one: Any, other: Any) -> None:
    """Compare two corpora by all arrays, labels and texts in them, but not by hashes, names and places of messages."""
    for field in fields(one):
        value, expected = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("name", "hash"):
            continue
        if isinstance(value, np.ndarray):
            assert value.tolist() == expected.tolist(), field.name
        elif hasattr(value, "__dataclass_fields__") and not isinstance(value, Conversations):
            assert_same(value, expected)
        elif field.name.endswith("tokenizer"):
            assert value.hash == expected.hash
        elif isinstance(value, Conversations):
            assert value.ids.tolist() == expected.ids.tolist()
        elif isinstance(value, int | float | str | None):
            assert value == expected, field.name


@pytest.mark.parametrize("kind", CASES)
def test_corpus_equals_that_of_a_file(kind: str, path: Path) -> None:
    function, settings = CASES[kind]
    of_file, of_dataset = (function(replace(settings, source=source)) for source in (str(path), Rows(path=str(path))))
    assert of_dataset.name == "test_custom_dataset:Rows"
    assert len(of_dataset.validation) > 0
    assert_same(of_dataset, of_file)


def test_texts_are_the_documents_of_mappings(path: Path) -> None:
    plain, mappings = (
        prepare(TextSpec(source=Rows(path=str(path), plain=is_plain), validation=Documents()))
        for is_plain in (True, False)
    )
    assert_same(plain, mappings)


def test_held_out_dataset_is_the_validation_part(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "a red mouse", "source": "x", "target": "y"}\n')
    settings = {"source": {"kind": Rows.kind, "path": str(path)}}
    validation = {"kind": "held_out", "source": {"kind": Rows.kind, "path": str(other)}}
    text = prepare(parse(TextSpec, {**settings, "validation": validation}))
    assert text.tokenizer.decode(text.validation.tolist()).startswith("a red mouse")
    pairs = prepare_pairs(parse(PairsSpec, {**settings, "validation": validation}))
    assert pairs.validation_texts == (("x", "y"),)


def test_changed_dataset_is_noticed(path: Path) -> None:
    settings = TextSpec(source=Rows(path=str(path)))
    content = prepare(settings).hash
    assert prepare(settings, expected_hash=content).hash == content
    path.write_text(path.read_text().replace("cat", "dog"))
    with pytest.raises(ChangedData, match="test_custom_dataset:Rows does not have the expected hash"):
        prepare(settings, expected_hash=content)


def test_different_examples_at_each_call_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(1)
    monkeypatch.setitem(ITEMS, "items", lambda: ["the same", f"text {draws.random()}"])
    with pytest.raises(UserError, match=r"does not have the same examples each time .* sort the names of files"):
        check_sources(TextSpec(source=Yielding()))
    monkeypatch.setattr(dataset_source, "FIRST_ROWS", 1)
    check_sources(TextSpec(source=Yielding()))
    with pytest.raises(UserError, match="does not have the same examples each time"):
        prepare(TextSpec(source=Yielding(), tokenizer=BPE(vocab_size=300)))


def fail() -> Iterator[str]:
    yield "one"
    raise KeyError("two")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "Yielding has no examples"),
        ([3], r"example 1 is 3; yield a text, or a mapping"),
        ([{"text": b"raw"}], "example 1 has a value that JSON cannot contain .*bytes"),
        ([{"body": "x"}], "example 1 has no field 'text'.*data.text_field"),
        ([{"text": 3}], "the field 'text' is not text"),
        (["\ud800"], "half a surrogate pair"),
        (fail, "example 2 cannot be read: .*two"),
        (lambda: 3, "example 1 cannot be read: .*not iterable"),
        (["", ""], "Yielding has no text"),
    ],
)
def test_wrong_examples_are_one_line(items: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ITEMS, "items", items)
    with pytest.raises(UserError, match=message) as caught:
        check_sources(TextSpec(source=Yielding()))
    assert "\n" not in str(caught.value)


def test_other_tasks_need_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ITEMS, "items", ["text"])
    for settings in (LabelsSpec, PairsSpec, QueriesSpec, ConversationsSpec):
        with pytest.raises(UserError, match="example 1 is a text; yield a mapping"):
            check_sources(settings(source=Yielding()))


def test_values_of_numpy_and_tuples_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        {"text": np.str_(text), "label": (np.int64(number % 4), "x")[: number % 3]}
        for number, text in enumerate(f"a {n} b" for n in range(90))
    ]
    monkeypatch.setitem(ITEMS, "items", items)
    corpus = prepare_labels(LabelsSpec(source=Yielding(), problem_type="multi_label_classification"))
    assert corpus.labels == ("0", "1", "2", "3", "x")


def test_sources_are_import_paths_paths_or_mappings(path: Path) -> None:
    rows = {"kind": Rows.kind, "path": str(path)}
    assert parse(TextSpec, {"source": rows}).source == Rows(path=str(path))
    assert to_plain(TextSpec(source=Rows(path=str(path))))["source"] == {**rows, "plain": False}
    assert parse(TextSpec, {"source": Yielding.kind}).source == Yielding()
    for name in ("./my_package.reads:Records", "s3://bucket/tokens", "C:\\texts\\a.txt", "a b:c", "shakespeare"):
        assert parse(TextSpec, {"source": name}).source == name
    assert read_source(f"{{kind: {Rows.kind!r}, path: x}}") == Rows(path="x")
    assert plain_source(Rows(path="x")) == {"kind": Rows.kind, "path": "x", "plain": False}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("no_package.reads:Records", "not allowed.*write ./no_package.reads:Records"),
        ({"kind": "no_package.reads:Records"}, "not allowed; if you trust it, pass --allow-code no_package or set"),
        ({"kind": Rows.kind}, "source: the key 'path' is missing"),
        ({"kind": Rows.kind, "path": "x", "plane": True}, "did you mean 'plain'"),
        ({"kind": "shakespeare"}, "source: expected a text, or a mapping whose kind is an import path"),
        (1984, "source: expected a text, or a mapping whose kind is an import path, got 1984"),
    ],
)
def test_invalid_source_has_a_remedy(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(TextSpec, {"source": data})


def test_settings_that_do_not_apply_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ITEMS, "items", [{"text": "one", "label": "x"}])
    with pytest.raises(ValueError, match="yields sentences with their translations; remove target"):
        PairsSpec(source=Yielding(), target="b.txt")
    with pytest.raises(UserError, match=r"has no headers; remove data\.label_pattern"):
        check_sources(LabelsSpec(source=Yielding(), label_pattern="(x)"))
    with pytest.raises(UserError, match=r"has no headers, to which data\.group_pattern applies"):
        prepare(TextSpec(source=Yielding(), validation=Documents(), group_pattern="(x)"))
    monkeypatch.setitem(ITEMS, "items", ["one", "two"])
    with pytest.raises(UserError, match="is a text, which has no group; yield mappings with 'author'"):
        prepare(TextSpec(source=Yielding(), validation=Documents(), group_field="author"))
    with pytest.raises(UserError, match="mixture requires prepared folders"):
        prepare(TextSpec(source=Yielding(), mixture=(MixtureSource(source="tokens", weight=0.5),)))


def test_settings_are_read_without_the_code_of_a_dataset() -> None:
    source = {"kind": "no_package.reads:Records", "path": "/data/x.db", "parts": ["/data/y"], "n": 3}
    settings = {"source": source, "validation": {"kind": "held_out", "source": source}, "text_field": "body"}
    named = parse(TextSpec, name_datasets(settings))
    assert (named.source, named.text_field) == ("no_package.reads.Records", "body")
    assert named.validation == HeldOut(source="no_package.reads.Records")
    assert name_datasets({"source": "a.txt"}) == {"source": "a.txt"}
    assert remove_folders({"data": settings})["data"]["source"] == {
        "kind": "no_package.reads:Records", "path": "./x.db", "parts": ["./y"], "n": 3
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["text", "labels", "pairs", "conversations"])
def test_summary_equals_that_of_a_file(kind: str, path: Path) -> None:
    _, settings = CASES[kind]
    of_file, of_dataset = (
        summarize_data(replace(settings, source=source)) for source in (str(path), Rows(path=str(path)))
    )
    assert of_dataset.format.startswith("a custom dataset")
    assert replace(of_dataset, source=str(path), format=of_file.format) == of_file


def test_first_example_decides_how_a_dataset_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    items = {
        "documents": ["one", "two"], "labeled texts": [{"body": "one", "category": "x"}],
        "pairs": [{"de": "eins", "en": "one"}], "conversations": [{"prompt": "a", "response": "b"}],
    }  # fmt: skip
    for unit, examples in items.items():
        monkeypatch.setitem(ITEMS, "items", examples)
        assert summarize_data(Yielding()).unit == unit
    monkeypatch.setitem(ITEMS, "items", [{"text": "a", "label": 0.5}])
    assert summarize_data(Yielding()).problem_type == "regression"


@pytest.mark.slow
def test_prepared_folder_equals_that_of_a_file(path: Path, tmp_path: Path) -> None:
    contents = [
        prepare_tokens(
            TextSpec(source=source, validation=Documents()), tmp_path / name, shard_tokens=512, workers=2
        ).contents
        for name, source in (("file", str(path)), ("dataset", Rows(path=str(path))))
    ]
    of_file, of_dataset = contents
    assert of_file is not None
    assert of_dataset is not None
    assert (of_dataset.validation.tokens, of_dataset.validation.bytes) == (
        of_file.validation.tokens, of_file.validation.bytes
    )  # fmt: skip
    for name in ("train-00000.bin", "validation.bin", "tokenizer.json"):
        assert (tmp_path / "dataset" / name).read_bytes() == (tmp_path / "file" / name).read_bytes()
    path.write_text(path.read_text().replace("cat", "dog"))
    with pytest.raises(UserError, match="other inputs"):
        prepare_tokens(TextSpec(source=Rows(path=str(path)), validation=Documents()), tmp_path / "dataset")

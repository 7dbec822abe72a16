"""Labeled texts on disk: those of the file, in the right part, with the label of a word on its first token only."""

import json
from collections import Counter
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError, parse, to_plain
from tercet.data import (
    HeldOutLabels,
    LabeledExamples,
    LabelFile,
    LabelsSpec,
    RandomSplit,
    encode_words,
    label_rows,
    prepare_labels,
    read_label_examples,
)
from tercet.data import cache as cache_module
from tercet.data.corpora import label_corpus
from tercet.tokens import BPE, GPT2, Characters, KMers, Tokenizer, Unigram, WordPiece, Words

SMALL = BPE(vocab_size=300)
TEXTS = [(f"text {number} with {number % 7} ü🙂", "odd" if number % 2 else "even") for number in range(53)]


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file(folder: Path, rows: list[tuple[Any, Any]], name: str = "a", **settings: Any) -> LabelsSpec:
    keys = ("tokens", "labels") if settings.get("over") == "tokens" else ("text", "label")
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return LabelsSpec(source=str(path), **{"tokenizer": SMALL, **settings})


def texts(part: LabeledExamples, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    examples = list[tuple[str, str]]()
    for number in range(len(part)):
        ids = part.ids[part.starts[number] : part.starts[number + 1]]
        assert not {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id} & set(ids.tolist())
        examples.append((tokenizer.decode(ids), part.names[part.labels[number]]))
    return examples


@pytest.mark.parametrize(
    "tokenizer",
    [SMALL, BPE(vocab_size=300, prefix_space=True), Characters(byte_fallback=True), Unigram(vocab_size=200)],
)
def test_ids_and_labels_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    monkeypatch.setattr(cache_module, "CHUNK_CHARACTERS", 100)  # many batches
    spec = file(tmp_path, [("", "odd"), *TEXTS, (" \t", "even")], tokenizer=tokenizer)
    corpus = prepare_labels(spec)
    assert corpus.labels == corpus.train.names == corpus.validation.names == ("even", "odd")
    train, validation = (texts(part, corpus.tokenizer) for part in (corpus.train, corpus.validation))
    assert sorted(train + validation) == sorted(TEXTS)
    assert [example for example in TEXTS if example in train] == train, "in the order of the lines"
    assert len(validation) == 5
    assert (corpus.skipped, corpus.lost, corpus.name) == (2, 0, spec.source)
    assert validation == [(example.text, example.labels[0]) for example in read_label_examples(spec, "validation")]
    assert corpus.train.lengths.sum() == len(corpus.train.ids)
    assert isinstance(corpus.train.ids, np.memmap)
    assert (corpus.train.ids.dtype, corpus.train.labels.dtype) == (np.uint16, np.int64)
    assert (corpus.train.over, corpus.train.starts.dtype) == ("texts", np.int64)


@given(
    rows=st.lists(st.tuples(st.sampled_from("abcdefghijklmn"), st.sampled_from("xy")), min_size=3, max_size=80),
    count=st.integers(1, 9),
    seed=st.randoms(),
)
def test_equal_texts_are_in_one_part_in_any_order(
    rows: list[tuple[str, str]], count: int, seed: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    spec = file(folder, rows, validation=RandomSplit(count=count))
    if len({text for text, _ in rows}) == 1:
        with pytest.raises(UserError, match=r"has only one text, which cannot be divided; set data\.validation"):
            read_label_examples(spec, "train")
        return
    train, validation = read_label_examples(spec, "train"), read_label_examples(spec, "validation")
    assert train
    assert validation
    assert sorted((example.text, *example.labels) for example in train + validation) == sorted(rows)
    assert not {example.text for example in train} & {example.text for example in validation}
    seed.shuffle(rows)
    file(folder, rows)
    assert sorted(read_label_examples(spec, "validation")) == sorted(validation)


@pytest.mark.parametrize("validation", ["drawn", "held_out"])
def test_vocabulary_is_trained_on_training_texts_only(tmp_path: Path, validation: str) -> None:
    spec = file(tmp_path, TEXTS, tokenizer=Words())
    if validation == "held_out":
        held_out = file(tmp_path, [("a coelacanth swims", "odd")] * 9, "b")
        spec = file(tmp_path, TEXTS, tokenizer=Words(), validation=HeldOutLabels(source=held_out.source))
    corpus = prepare_labels(spec)
    validation_words = {
        word for example in read_label_examples(spec, "validation") for word in example.text.split()[1:]
    }
    validation_words -= {word for example in read_label_examples(spec, "train") for word in example.text.split()}
    assert validation_words
    vocabulary = {token.strip() for token in corpus.tokenizer.tokens(range(corpus.tokenizer.vocab_size))}
    assert not validation_words & vocabulary
    assert corpus.tokenizer.unk_id in corpus.validation.ids
    assert len(corpus.validation) == (9 if validation == "held_out" else 5)


def test_a_label_that_only_validation_has_is_named(tmp_path: Path, cache_folder: Path) -> None:
    held_out = file(tmp_path, [("a", "odd"), ("b", "strange"), ("c", "strange")], "b")
    spec = file(tmp_path, TEXTS, validation=HeldOutLabels(source=held_out.source))
    with pytest.raises(
        UserError, match=r"only the validation part has the label 'strange' \(2 times\); add training texts"
    ):
        prepare_labels(spec)
    assert not cache_folder.exists()
    validation_text = read_label_examples(file(tmp_path, TEXTS), "validation")[0].text
    rows = [(text, "strange" if text == validation_text else label) for text, label in TEXTS]
    with pytest.raises(UserError, match=r"only the validation part has the label 'strange' \(1 times\)"):
        prepare_labels(file(tmp_path, rows))
    with pytest.raises(UserError, match="every training text has the label 'x'; use data with at least two"):
        prepare_labels(file(tmp_path, [("a", "x"), ("b", "x")]))


def test_label_only_in_training_is_allowed(tmp_path: Path) -> None:
    held_out = file(tmp_path, [("a", "odd")], "b")
    corpus = prepare_labels(file(tmp_path, TEXTS, validation=HeldOutLabels(source=held_out.source)))
    assert corpus.labels == ("even", "odd")
    assert corpus.validation.labels.tolist() == [1]


WORDS = [
    (["Tom", "unbelievably", "sees", "üüü", ","], ["N", "A", "V", "N", "P"]),
    (["a", "dog"], ["D", "N"]),
    (["Unbelievably", "late", "!"], ["A", "A", "P"]),
]
SENTENCES = [([*words, f"x{n}"], [*labels, "N"]) for n in range(11) for words, labels in WORDS]
KINDS = [SMALL, BPE(vocab_size=300, prefix_space=True), Characters(), Words(), Unigram(vocab_size=60)]


@pytest.mark.parametrize("tokenizer", [*KINDS, WordPiece(vocab_size=60)])
def test_label_is_on_the_first_token_of_its_word(tmp_path: Path, tokenizer: Any) -> None:
    spec = file(tmp_path, SENTENCES, over="tokens", tokenizer=tokenizer, validation=RandomSplit(count=3))
    corpus = prepare_labels(spec)
    trained_tokenizer = corpus.tokenizer
    for part, name in ((corpus.train, "train"), (corpus.validation, "validation")):
        for number, example in enumerate(read_label_examples(spec, name)):  # pyright: ignore[reportArgumentType]
            ids, labels = (x[part.starts[number] : part.starts[number + 1]] for x in (part.ids, part.labels))
            assert ids.tolist() == trained_tokenizer.encode(" ".join(example.texts))
            firsts = np.flatnonzero(labels >= 0)
            assert [corpus.labels[label] for label in labels[firsts]] == list(example.labels)
            assert (labels[labels < 0] == label_corpus.IGNORE_INDEX).all()
            pieces = trained_tokenizer.tokens(ids)
            for word, first, end in zip(example.texts, firsts, [*firsts[1:], len(ids)], strict=True):
                piece = pieces[first].strip()
                begins = normalize("NFD", word).lower().startswith(normalize("NFD", piece).lower())
                assert begins or piece == "<unk>" or "\\x" in piece, (word, pieces[first:end])
    assert corpus.train.over == "tokens"
    assert len(corpus.train.labels) == len(corpus.train.ids)


def test_words_without_tokens_keep_no_label(tmp_path: Path) -> None:
    rows = [(["a", "", "b"], ["X", "Y", "Z"]), (["\u200b", "c"], ["Y", "X"]), (["\u200b"], ["Y"])] * 7
    corpus = prepare_labels(file(tmp_path, rows, over="tokens", tokenizer=WordPiece(vocab_size=60)))
    labels = [label for part in (corpus.train, corpus.validation) for label in part.labels.tolist()]
    assert corpus.labels == ("X", "Y", "Z")
    assert Counter(labels) == {0: 14, 2: 7}
    assert corpus.lost == 21
    characters = Tokenizer.train(Characters(alphabet="a b"), [])
    assert [firsts.tolist() for _, firsts in encode_words(characters, [("", "a"), ("b", "", "a"), ()])] == [
        [-1, 1],
        [0, 1, 3],  # a space is a token
        [],
    ]


@pytest.mark.parametrize("over", ["texts", "tokens"])
@given(data=st.data())
def test_rows_are_the_texts_between_bos_and_eos(over: Any, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    max_len = data.draw(st.integers(3, 11))
    ids = np.arange(10, 10 + sum(lengths), dtype=np.uint16)
    starts = np.cumsum([0, *lengths])
    signed = ids.astype(np.int64)
    word_labels = np.where(signed % 2, signed % 3, label_corpus.IGNORE_INDEX)
    labels = np.arange(len(lengths)) % 3 if over == "texts" else word_labels
    part = LabeledExamples(ids=ids, starts=starts, labels=labels.astype(np.int64), names=("x", "y", "z"), over=over)
    numbers = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5)))
    rows = label_rows(part, numbers, max_len=max_len, bos=1, eos=2, pad=0)
    assert rows.tokens.shape == rows.mask.shape
    assert rows.tokens.shape[1] == min(max_len, 2 + max(lengths[number] for number in numbers))
    for row, number in enumerate(numbers):
        text_ids = ids[starts[number] : starts[number + 1]][: max_len - 2].tolist()
        real = len(text_ids) + 2
        assert rows.tokens[row].tolist() == [1, *text_ids, 2] + [0] * (rows.tokens.shape[1] - real)
        assert rows.mask[row].tolist() == [True] * real + [False] * (rows.tokens.shape[1] - real)
        if over == "texts":
            assert rows.targets[row] == labels[number]
        else:
            expected = labels[starts[number] :][: len(text_ids)].tolist()
            assert rows.targets[row].tolist() == [-100, *expected] + [-100] * (rows.tokens.shape[1] - len(text_ids) - 1)


def test_rows_need_a_minimum_length(tmp_path: Path) -> None:
    part = prepare_labels(file(tmp_path, TEXTS)).train
    with pytest.raises(ValueError, match="max_len=2 leaves no room between bos and eos"):
        label_rows(part, np.arange(2), max_len=2, bos=1, eos=2, pad=0)


def test_second_preparation_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    spec = file(tmp_path, TEXTS)
    first = prepare_labels(spec)
    with monkeypatch.context() as patch:
        patch.setattr(LabelFile, "examples", None)
        second = prepare_labels(spec)
    assert (second.hash, second.tokenizer.hash, second.labels) == (first.hash, first.tokenizer.hash, first.labels)
    np.testing.assert_array_equal(second.train.ids, first.train.ids)
    np.testing.assert_array_equal(second.validation.labels, first.validation.labels)
    assert not list(cache_folder.rglob(".*")), "temporary files left behind"
    expected = first.train.labels.tolist()
    next(cache_folder.rglob("train_labels.bin")).write_bytes(b"xx")
    assert prepare_labels(spec).train.labels.tolist() == expected, "the damage is repaired"


def test_every_change_has_separate_ids(tmp_path: Path, cache_folder: Path) -> None:
    spec = file(tmp_path, TEXTS)
    hashes = {prepare_labels(spec).hash}
    hashes.add(prepare_labels(file(tmp_path, TEXTS, validation=RandomSplit(count=2))).hash)
    hashes.add(prepare_labels(file(tmp_path, [*TEXTS, ("new", "odd")])).hash)
    hashes.add(prepare_labels(file(tmp_path, [*TEXTS, ("new", "even")])).hash)
    assert len(hashes) == len(list((cache_folder / "labeled").iterdir())) == 4
    assert prepare_labels(file(tmp_path, TEXTS, tokenizer=Characters())).hash in hashes
    assert len(list((cache_folder / "labeled").iterdir())) == 5


def test_other_fields_are_other_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": text, "label": label, "title": text[::-1], "sort": label[0]} for text, label in TEXTS]
    path.write_text("\n".join(map(json.dumps, rows)))
    spec = LabelsSpec(source=str(path), text_field="title", label_field="sort", tokenizer=SMALL)
    corpus = prepare_labels(spec)
    assert corpus.labels == ("e", "o")
    assert corpus.hash != prepare_labels(LabelsSpec(source=str(path), tokenizer=SMALL)).hash


def test_a_given_tokenizer_is_used(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(BPE(vocab_size=259, pad=True, bos=True), [])
    assert prepare_labels(file(tmp_path, TEXTS), tokenizer=tokenizer).tokenizer is tokenizer
    lacking = Tokenizer.train(Words(), ["a b"])
    with pytest.raises(UserError, match=r"data\.tokenizer \(words\) has no bos token, required for labeled"):
        prepare_labels(file(tmp_path, TEXTS), tokenizer=lacking)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoding": "utf-9"}, "unknown encoding 'utf-9'"),
        ({"validation": {"kind": "drawn", "count": 0}}, "validation.count=0 must be at least 1"),
        ({"validation": {"kind": "drawn", "pairs": 9}}, "unknown key 'pairs'"),
        ({"validation": "tail"}, "unknown kind 'tail'"),
        ({"over": "words"}, "over: input should be 'texts' or 'tokens'"),
        ({"text_field": "label"}, "are both 'label'"),
        ({"tokenizer": "gpt2"}, "gpt2 has no pad"),
    ],
)
def test_impossible_settings_are_rejected_with_reason(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(LabelsSpec, {"source": "a.csv", **settings})


def test_settings_round_trip_through_plain_data() -> None:
    spec = LabelsSpec(source="a.csv", over="tokens", validation=HeldOutLabels(source="b.csv"), tokenizer=Unigram())
    assert parse(LabelsSpec, to_plain(spec)) == spec
    assert LabelsSpec(source="a.csv").tokenizer == WordPiece()
    with pytest.raises(ValueError, match="gpt2 has no pad"):
        LabelsSpec(source="a.csv", tokenizer=GPT2())


def test_sequences_of_one_unknown_word_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "dna.csv"
    rows = [(f"{'ACGT' * (20 + n)}{'ACGT'[n % 4]}", ("promoter", "other")[n % 2]) for n in range(40)]
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    with pytest.raises(UserError, match=r"tokenizer \(wordpiece\) turns 31 of 36 texts into one unknown token each"):
        prepare_labels(LabelsSpec(source=str(path), tokenizer=WordPiece(vocab_size=100)))
    corpus = prepare_labels(LabelsSpec(source=str(path), tokenizer=KMers(k=3)))
    assert len(corpus.train) + len(corpus.validation) == 40


def test_a_letter_that_the_tokenizer_lacks_names_its_text(tmp_path: Path) -> None:
    rows = [("ACGT" * n, "ab"[n % 2]) for n in range(1, 40)]
    spec = file(tmp_path, [*rows, ("ACNT", "a")], tokenizer=Characters(alphabet="ACGT"))
    with pytest.raises(UserError, match=r"a\.jsonl, (train|validation) text \d+: the vocabulary has no 'N'"):
        prepare_labels(spec)

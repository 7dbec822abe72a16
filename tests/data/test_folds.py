"""Folds of cross-validation: each example is held out once, groups are whole, sizes and labels are balanced."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from divided_documents import documents_of
from hypothesis import example, given
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data import (
    ConversationsSpec,
    Fold,
    LabelsSpec,
    PairsSpec,
    QueriesSpec,
    TextSpec,
    prepare,
    prepare_conversations,
    prepare_queries,
    prepare_tokens,
)
from tercet.data.corpora.folds import assign_folds
from tercet.data.corpora.label_corpus import read_label_examples
from tercet.data.corpora.pair_corpus import read_pairs
from tercet.tokens import Characters

LABELS = st.sampled_from(["a", "b", "c", "a rare one"])


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def fold_sizes(assigned: dict[int, int], identities: list[int], folds: int) -> list[int]:
    sizes = Counter(assigned[identity] for identity in identities)
    return [sizes[fold] for fold in range(1, folds + 1)]


@pytest.mark.slow
@given(
    units=st.lists(st.tuples(st.integers(1, 9), st.lists(LABELS, max_size=2)), min_size=2, max_size=60),
    folds=st.integers(2, 12),
    seed=st.integers(0, 3),
    order=st.randoms(),
)
@example(  # sizes of 13 and 6 if only the labels were considered
    units=[(2, ["a"]), (1, ["b"]), (5, ["d"]), (1, ["d"]), (4, ["d"]), (1, ["b", "a", "c"]), (5, ["d", "d", "a"])],
    folds=2,
    seed=0,
    order=random.Random(1),
)
def test_folds_are_balanced_and_independent_of_the_order(
    units: list[tuple[int, list[str]]], folds: int, seed: int, order: random.Random
) -> None:
    examples = [(identity, labels) for identity, (size, labels) in enumerate(units) for _ in range(size)]
    identities, labels = [identity for identity, _ in examples], [labels for _, labels in examples]
    assigned = assign_folds(identities, folds=folds, seed=seed, labels=labels)
    assert assigned.keys() == set(identities)
    sizes = fold_sizes(assigned, identities, folds)
    has_several = any(len(set(labels)) > 1 for _, labels in units)
    assert max(sizes) - min(sizes) <= max(size for size, _ in units) + has_several
    assert (min(sizes) > 0) == (len(units) >= folds)
    order.shuffle(examples)
    shuffled_ids, shuffled_labels = [identity for identity, _ in examples], [labels for _, labels in examples]
    assert assign_folds(shuffled_ids, folds=folds, seed=seed, labels=shuffled_labels) == assigned


@given(labels=st.lists(LABELS, min_size=2, max_size=80), folds=st.integers(2, 9), seed=st.integers(0, 3))
def test_each_label_is_spread_evenly(labels: list[str], folds: int, seed: int) -> None:
    """This is the rule of scikit-learn's StratifiedKFold."""
    identities = list(range(len(labels)))
    assigned = assign_folds(identities, folds=folds, seed=seed, labels=[[label] for label in labels])
    for label in set(labels):
        sizes = fold_sizes(assigned, [number for number in identities if labels[number] == label], folds)
        assert max(sizes) - min(sizes) <= 1
    sizes = fold_sizes(assigned, identities, folds)
    assert max(sizes) - min(sizes) <= 1


@given(groups=st.lists(LABELS, min_size=2, max_size=40), size=st.integers(1, 5), folds=st.integers(2, 5))
def test_label_of_several_groups_is_not_in_one_fold_only(groups: list[str], size: int, folds: int) -> None:
    """Otherwise no training text of the fold would have the label."""
    identities = [identity for identity in range(len(groups)) for _ in range(size)]
    assigned = assign_folds(identities, folds=folds, labels=[[groups[identity]] for identity in identities])
    for label in set(groups):
        members = [identity for identity, other in enumerate(groups) if other == label]
        assert len({assigned[identity] for identity in members}) == min(folds, len(members))


def test_several_labels_of_a_text_are_spread() -> None:
    draw = random.Random(5)
    sets = [draw.sample("abcdef", draw.randint(0, 4)) for _ in range(200)]
    assigned = assign_folds(range(200), folds=5, labels=sets)
    for label in "abcdef":
        sizes = fold_sizes(assigned, [number for number in range(200) if label in sets[number]], 5)
        assert max(sizes) - min(sizes) <= 1


def test_seed_draws_another_division() -> None:
    divisions = [assign_folds(range(50), folds=5, seed=seed) for seed in (0, 0, 1)]
    assert divisions[0] == divisions[1] != divisions[2]
    neighbors = sum(divisions[0][n] == divisions[0][n + 1] for n in range(49))
    assert neighbors < 25  # drawn, not cut into blocks


ROWS = [
    {"text": f"text {number % 31}", "label": "odd" if number % 3 else "even", "patient": f"p{number % 7}"}
    for number in range(60)
]


def label_folds(path: str, folds: int, **settings: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return the training and the validation examples of each fold."""
    specs = [
        LabelsSpec(source=path, validation=Fold(folds=folds, fold=fold), **settings) for fold in range(1, folds + 1)
    ]
    return [(read_label_examples(spec, "train"), read_label_examples(spec, "validation")) for spec in specs]


@pytest.mark.parametrize("group", [None, "patient"])
def test_each_labeled_text_is_held_out_once(tmp_path: Path, group: str | None) -> None:
    path = write_jsonl(tmp_path / "texts.jsonl", ROWS)
    parts = label_folds(path, 4, group_field=group)
    everything = sorted((row["text"], row["label"]) for row in ROWS)
    assert sorted((example.text, *example.labels) for _, held_out in parts for example in held_out) == everything
    for train, held_out in parts:
        assert sorted((example.text, *example.labels) for example in train + held_out) == everything
        assert not {example.identity for example in train} & {example.identity for example in held_out}
    sizes = [len(held_out) for _, held_out in parts]
    largest = max(Counter(row["patient" if group else "text"] for row in ROWS).values())
    assert max(sizes) - min(sizes) <= largest
    write_jsonl(tmp_path / "texts.jsonl", ROWS[::-1])
    assert [sorted(part) for _, part in label_folds(path, 4, group_field=group)] == [sorted(p) for _, p in parts]


def test_labels_of_a_file_are_spread_evenly(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": "rare" if n < 6 else "common"} for n in range(50)]
    parts = label_folds(write_jsonl(tmp_path / "texts.jsonl", rows), 3)
    assert [sum(example.labels == ("rare",) for example in held_out) for _, held_out in parts] == [2, 2, 2]
    numbers = [{**row, "label": float(number)} for number, row in enumerate(rows)]
    path = write_jsonl(tmp_path / "numbers.jsonl", numbers)
    assert [len(held_out) for _, held_out in label_folds(path, 3, problem_type="regression")] == [17, 17, 16]


@pytest.mark.slow
def test_each_pair_conversation_and_query_is_held_out_once(tmp_path: Path) -> None:
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [{"source": f"s{n % 20}", "target": f"t{n}"} for n in range(30)])
    chats = write_jsonl(tmp_path / "chats.jsonl", [{"prompt": f"q{n}", "response": "yes"} for n in range(9)])
    queries = write_jsonl(tmp_path / "queries.jsonl", [{"query": f"q{n % 9}", "document": f"d{n}"} for n in range(20)])
    targets, n_chats, documents = list[str](), list[int](), list[str]()
    for fold in (1, 2, 3):
        validation, tokenizer = Fold(folds=3, fold=fold), Characters()
        targets += [pair.target for pair in read_pairs(PairsSpec(source=pairs, validation=validation), "validation")]
        chat_corpus = prepare_conversations(
            ConversationsSpec(source=chats, validation=validation, tokenizer=Characters(byte_fallback=True))
        )
        n_chats.append(len(chat_corpus.validation))
        query_corpus = prepare_queries(QueriesSpec(source=queries, validation=validation, tokenizer=tokenizer))
        documents += [pair.document for pair in query_corpus.validation_texts]
    assert sorted(targets) == sorted(f"t{n}" for n in range(30))
    assert n_chats == [3, 3, 3]
    assert sorted(documents) == sorted(f"d{n}" for n in range(20))


def test_each_document_is_held_out_once(tmp_path: Path) -> None:
    texts = [f"document {number % 17}" for number in range(20)]
    path = write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    held_out = list[str]()
    for fold in (1, 2, 3):
        corpus = prepare(TextSpec(source=path, tokenizer=Characters(), validation=Fold(folds=3, fold=fold)))
        train, validation = documents_of(corpus)
        assert sorted(train + validation) == sorted(texts)
        assert not set(train) & set(validation)
        held_out += validation
    assert sorted(held_out) == sorted(texts)


def test_each_group_of_texts_and_pairs_is_held_out_once(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "source": f"s{n}", "target": f"t{n}", "author": f"a{n % 5}"} for n in range(20)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    texts, targets = list[str](), list[str]()
    for fold in (1, 2, 3, 4, 5):
        split: dict[str, Any] = {"source": path, "group_field": "author", "validation": Fold(folds=5, fold=fold)}
        corpus = prepare(TextSpec(tokenizer=Characters(), **split))
        _, held_out = documents_of(corpus)
        assert len({int(text.split()[1]) % 5 for text in held_out}) == 1
        texts += held_out
        held_out_pairs = [pair.target for pair in read_pairs(PairsSpec(**split), "validation")]
        assert len({int(target[1:]) % 5 for target in held_out_pairs}) == 1
        targets += held_out_pairs
    assert sorted(texts) == sorted(f"text {n}" for n in range(20))
    assert sorted(targets) == sorted(f"t{n}" for n in range(20))


def test_too_few_examples_are_reported(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "texts.jsonl", ROWS)
    with pytest.raises(UserError, match=r"8 folds, but only 7 distinct groups; pass --folds 7 or fewer \(data\.valid"):
        label_folds(path, 8, group_field="patient")
    one = write_jsonl(tmp_path / "one.jsonl", [{"text": "a", "label": "x"}] * 5)
    with pytest.raises(UserError, match=r"2 folds, but only 1 distinct texts; add texts"):
        label_folds(one, 2)
    groups = write_jsonl(tmp_path / "groups.jsonl", [{"text": f"text {n}", "author": n % 3} for n in range(9)])
    with pytest.raises(UserError, match=r"5 folds, but only 3 distinct groups; pass --folds 3 or fewer"):
        prepare(TextSpec(source=groups, tokenizer=Characters(), validation=Fold(), group_field="author"))
    book = tmp_path / "book.txt"
    book.write_text("one text\n" * 40)
    with pytest.raises(UserError, match=r"only 1 distinct documents; set data\.documents to line or blank_line"):
        prepare(TextSpec(source=str(book), tokenizer=Characters(), validation=Fold()))


def test_prepared_folder_has_no_folds(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("one text\n" * 400)
    spec = TextSpec(source=str(tmp_path / "book.txt"), tokenizer=Characters())
    with pytest.raises(UserError, match=r"a prepared folder has one validation part, and no folds; set data\.valid"):
        prepare_tokens(parse(TextSpec, {"source": spec.source, "validation": "fold"}), tmp_path / "out", workers=1)
    prepare_tokens(spec, tmp_path / "tokens", workers=1)
    with pytest.raises(UserError, match=r"is a prepared folder, whose validation part is fixed"):
        prepare(TextSpec(source=str(tmp_path / "tokens"), validation=Fold()))


def test_fold_is_one_of_the_folds() -> None:
    with pytest.raises(ValueError, match=r"fold=6 must be from 1 to folds=5"):
        Fold(fold=6)
    with pytest.raises(ValueError, match=r"fold=0 must be from 1"):
        Fold(fold=0)
    with pytest.raises(ValueError, match=r"folds=1 must be at least 2"):
        Fold(folds=1)

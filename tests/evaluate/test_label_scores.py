"""Accuracy, F1 and the confusion matrix match counting by hand and do not depend on batching."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tercet.config import UserError
from tercet.data import LabeledExamples
from tercet.evaluate import label_scores, score_labels
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.tokens import BPE, Tokenizer

TOKENIZER = Tokenizer.train(BPE(vocab_size=259, pad=True, bos=True), [])
NAMES = ("cat", "dog", "owl")


def test_scores_match_counting_by_hand() -> None:
    # Correct: cat 2, dog 1, owl 0; one owl is labeled dog, one dog cat.
    scores = label_scores([0, 0, 0, 1, 1], [0, 0, 1, 1, 2], NAMES)
    assert scores.accuracy == pytest.approx(3 / 5)
    assert scores.majority == pytest.approx(2 / 5)
    assert (scores.count, scores.labels) == (5, NAMES)
    assert scores.confusion == ((2, 0, 0), (1, 1, 0), (0, 1, 0))
    assert scores.per_label["cat"] == pytest.approx({"precision": 2 / 3, "recall": 1, "f1": 4 / 5, "count": 2})
    assert scores.per_label["dog"] == pytest.approx({"precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2, "count": 2})
    assert scores.per_label["owl"] == {"precision": 0, "recall": 0, "f1": 0, "count": 1}
    assert scores.f1 == pytest.approx((4 / 5 + 1 / 2 + 0) / 3)


def test_labels_that_never_occur_have_no_weight() -> None:
    assert label_scores([0, 1], [0, 1], NAMES).f1 == 1
    only_said = label_scores([0, 2], [0, 1], NAMES)
    assert only_said.f1 == pytest.approx((1 + 0 + 0) / 3)
    assert only_said.majority == 0.5


@given(pairs=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_scores_match_counting_one_by_one(pairs: list[tuple[int, int]]) -> None:
    scores = label_scores([said for said, _ in pairs], [expected for _, expected in pairs], NAMES)
    f1 = list[float]()
    for number, name in enumerate(NAMES):
        hits = sum(said == expected == number for said, expected in pairs)
        false = sum(said == number != expected for said, expected in pairs)
        missed = sum(expected == number != said for said, expected in pairs)
        assert scores.per_label[name]["count"] == hits + missed
        if hits + false + missed:
            f1.append(2 * hits / (2 * hits + false + missed))
            assert scores.per_label[name]["f1"] == pytest.approx(f1[-1])
        precision, recall = scores.per_label[name]["precision"], scores.per_label[name]["recall"]
        assert precision * (hits + false) == pytest.approx(hits)
        assert recall * (hits + missed) == pytest.approx(hits)
        assert [scores.confusion[number][other] for other in range(3)] == [
            pairs.count((other, number)) for other in range(3)
        ]
    assert scores.f1 == pytest.approx(np.mean(f1))
    assert scores.accuracy == pytest.approx(np.mean([said == expected for said, expected in pairs]))


def test_scores_match_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    draws = np.random.default_rng(5)
    said, expected = draws.integers(0, 3, (2, 97))
    scores = label_scores(said, expected, NAMES)
    assert scores.f1 == pytest.approx(metrics.f1_score(expected, said, average="macro"))
    assert np.array_equal(scores.confusion, metrics.confusion_matrix(expected, said))


@pytest.mark.parametrize(
    ("said", "wanted", "words"),
    [
        ([], [], "nothing to score"),
        ([0], [0, 1], r"one prediction per label, got shapes \(1,\) and \(2,\)"),
        ([3], [0], "are 0 to 3, but there are 3 labels"),
        ([0], [-100], "are -100 to 0"),
    ],
)
def test_invalid_labels_are_rejected(said: list[int], wanted: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        label_scores(said, wanted, NAMES)


def test_text_and_json_output() -> None:
    scores = replace(label_scores([0, 0, 0, 1, 1], [0, 0, 1, 1, 2], ("[red]", "dog", "owl")), truncated=4)
    told = scores.to_dict()
    assert (told["accuracy"], told["f1"], told["truncated"]) == (scores.accuracy, scores.f1, 4)
    console = Console(file=io.StringIO(), width=100)
    console.print(scores.view())
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "accuracy 60.0%; macro F1 43.3%; most frequent label 40.0%; 5 labels; 4 texts cut" in text
    assert "dog for [red] 1; owl for dog 1" in text
    assert "[red]" in text.splitlines()[1]
    console.print(label_scores([0], [0], ("a", "b")).view())
    assert text.count("most frequent mistakes") == 1


def classifier(over: Any = "texts", labels: tuple[str, ...] = NAMES, max_len: int = 19) -> EncoderOnly:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=2, d_ff=29)
    spec = EncoderOnlySpec(
        vocab_size=TOKENIZER.vocab_size, max_len=max_len, stack=stack, classifier=Classifier(labels=labels, over=over)
    )
    model = EncoderOnly(spec, seed=3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.5)
        drawn = torch.randint(3, TOKENIZER.vocab_size, (200, 9), generator=torch.Generator().manual_seed(4))
        scores = model.eval().classify(model.hidden(drawn))  # so that no label is always the likeliest
        model.classifier.bias -= scores.flatten(0, -2).mean(0)
    return model


def examples(over: Any = "texts", names: tuple[str, ...] = NAMES, seed: int = 2) -> LabeledExamples:
    draws = np.random.default_rng(seed)
    lengths = draws.integers(1, 23, 37)
    ids = draws.integers(3, TOKENIZER.vocab_size, lengths.sum()).astype(np.uint16)
    labels = draws.integers(0, len(names), len(lengths) if over == "texts" else len(ids))
    if over == "tokens":
        labels[draws.random(len(ids)) < 0.4] = -100
    starts = np.cumsum([0, *lengths])
    return LabeledExamples(ids=ids, starts=starts, labels=labels.astype(np.int64), names=names, over=over)


def said_alone(model: EncoderOnly, labelled: LabeledExamples, number: int) -> torch.Tensor:
    ids = labelled.ids[labelled.starts[number] : labelled.starts[number + 1]][: model.max_len - 2].tolist()
    with torch.no_grad():
        tokens = torch.tensor([[TOKENIZER.bos_id, *ids, TOKENIZER.eos_id]])
        return model.eval().classify(model.hidden(tokens)).argmax(-1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("over", ["texts", "tokens"])
def test_prediction_matches_that_of_the_text_alone(over: Any) -> None:
    model, labeled = classifier(over).train(), examples(over)
    found = [score_labels(model, TOKENIZER, labeled, batch_tokens=most) for most in (1, 50, 10_000)]
    assert model.training
    assert found[0] == found[1] == found[2]
    said, expected = list[int](), list[int]()
    for number in range(len(labeled)):
        separate = said_alone(model, labeled, number)
        if over == "texts":
            said.append(int(separate))
            expected.append(int(labeled.labels[number]))
            continue
        own = labeled.labels[labeled.starts[number] : labeled.starts[number + 1]][: model.max_len - 2]
        said += separate[1 : 1 + len(own)][torch.from_numpy(own >= 0)].tolist()
        expected += own[own >= 0].tolist()
    assert len(set(said)) == 3
    assert replace(found[0], truncated=0) == label_scores(said, expected, NAMES)
    assert found[0].truncated == int((labeled.lengths > 17).sum()) > 0


def test_labels_are_matched_by_name_not_by_number() -> None:
    model, labeled = classifier(), examples()
    turned = tuple(reversed(NAMES))
    other = replace(labeled, names=turned, labels=2 - labeled.labels)
    assert score_labels(model, TOKENIZER, other) == score_labels(model, TOKENIZER, labeled)
    more = replace(labeled, names=(*NAMES, "emu"))
    assert score_labels(model, TOKENIZER, more) == score_labels(model, TOKENIZER, labeled), "no example is an emu"
    with pytest.raises(UserError, match="has no label 'emu', only 'cat', 'dog', 'owl'; correct"):
        score_labels(model, TOKENIZER, replace(labeled, names=("cat", "dog", "emu")))


def test_invalid_inputs_are_rejected_with_a_reason() -> None:
    with pytest.raises(ValueError, match="classifies texts, but the labels are of tokens"):
        score_labels(classifier(), TOKENIZER, examples("tokens"))
    bare = EncoderOnly(replace(classifier().spec, classifier=None))
    with pytest.raises(ValueError, match="has no classifier; train one on labeled texts"):
        score_labels(bare, TOKENIZER, examples())
    model, labeled = classifier("tokens"), examples("tokens")
    with pytest.raises(UserError, match="no labels to score"):
        score_labels(model, TOKENIZER, replace(labeled, labels=np.full_like(labeled.labels, -100)))
    with torch.no_grad():
        next(model.stack.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="training diverged"):
        score_labels(model, TOKENIZER, labeled)

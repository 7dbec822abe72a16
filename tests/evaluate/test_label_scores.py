"""Accuracy, F1 and the confusion matrix match counting by hand and do not depend on batching."""

import io
import re
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
from tercet.evaluate.labels import predict_labels
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
    scores_with_unused_label = label_scores([0, 2], [0, 1], NAMES)
    assert scores_with_unused_label.f1 == pytest.approx((1 + 0 + 0) / 3)
    assert scores_with_unused_label.majority == 0.5


@given(pairs=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_scores_equal_manual_counts(pairs: list[tuple[int, int]]) -> None:
    scores = label_scores(
        [prediction for prediction, _ in pairs], [expected for _, expected in pairs], NAMES, resamples=0
    )
    f1 = list[float]()
    for number, name in enumerate(NAMES):
        hits = sum(prediction == expected == number for prediction, expected in pairs)
        false_positives = sum(prediction == number != expected for prediction, expected in pairs)
        false_negatives = sum(expected == number != prediction for prediction, expected in pairs)
        assert scores.per_label[name]["count"] == hits + false_negatives
        if hits + false_positives + false_negatives:
            f1.append(2 * hits / (2 * hits + false_positives + false_negatives))
            assert scores.per_label[name]["f1"] == pytest.approx(f1[-1])
        precision, recall = scores.per_label[name]["precision"], scores.per_label[name]["recall"]
        assert precision * (hits + false_positives) == pytest.approx(hits)
        assert recall * (hits + false_negatives) == pytest.approx(hits)
        assert [scores.confusion[number][predicted_label] for predicted_label in range(3)] == [
            pairs.count((predicted_label, number)) for predicted_label in range(3)
        ]
    assert scores.f1 == pytest.approx(np.mean(f1))
    assert scores.accuracy == pytest.approx(np.mean([prediction == expected for prediction, expected in pairs]))


def test_scores_match_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    draws = np.random.default_rng(5)
    predictions, expected = draws.integers(0, 3, (2, 97))
    scores = label_scores(predictions, expected, NAMES)
    assert scores.f1 == pytest.approx(metrics.f1_score(expected, predictions, average="macro"))
    assert np.array_equal(scores.confusion, metrics.confusion_matrix(expected, predictions))


@pytest.mark.parametrize(
    ("predictions", "expected", "words"),
    [
        ([], [], "nothing to score"),
        ([0], [0, 1], r"one prediction per label, got shapes \(1,\) and \(2,\)"),
        ([3], [0], "are 0 to 3, but there are 3 labels"),
        ([0], [-100], "are -100 to 0"),
    ],
)
def test_invalid_labels_are_rejected(predictions: list[int], expected: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        label_scores(predictions, expected, NAMES)


def test_text_and_json_output() -> None:
    scores = replace(label_scores([0, 0, 0, 1, 1], [0, 0, 1, 1, 2], ("[red]", "dog", "owl")), truncated=4)
    json_scores = scores.to_dict()
    assert (json_scores["accuracy"], json_scores["f1"], json_scores["truncated"]) == (scores.accuracy, scores.f1, 4)
    console = Console(file=io.StringIO(), width=100)
    console.print(scores.view())
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert any(re.fullmatch(r"accuracy 60.0% \S+ to \S+ 40.0%", row) for row in rows)
    assert any(row.startswith("macro F1 43.3%") for row in rows)
    assert "5 predictions; 4 texts cut" in text
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
        random_ids = torch.randint(3, TOKENIZER.vocab_size, (200, 9), generator=torch.Generator().manual_seed(4))
        scores = model.eval().classify(model.hidden(random_ids))  # so that no label is always the likeliest
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


def predict_alone(model: EncoderOnly, labeled: LabeledExamples, number: int) -> torch.Tensor:
    ids = labeled.ids[labeled.starts[number] : labeled.starts[number + 1]][: model.max_len - 2].tolist()
    with torch.no_grad():
        tokens = torch.tensor([[TOKENIZER.bos_id, *ids, TOKENIZER.eos_id]])
        return model.eval().classify(model.hidden(tokens)).argmax(-1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("over", ["texts", "tokens"])
def test_predictions_do_not_depend_on_batches(over: Any) -> None:
    model, labeled = classifier(over).train(), examples(over)
    answers = [predict_labels(model, TOKENIZER, labeled, batch_tokens=batch_tokens) for batch_tokens in (1, 50, 10_000)]
    assert model.training
    for answer in answers:
        assert np.array_equal(answer.predicted, answers[0].predicted)
        assert np.array_equal(answer.targets, answers[0].targets)
        assert answer.probabilities == pytest.approx(answers[0].probabilities, abs=1e-5)
    predictions, expected = list[int](), list[int]()
    for number in range(len(labeled)):
        separate = predict_alone(model, labeled, number)
        if over == "texts":
            predictions.append(int(separate))
            expected.append(int(labeled.labels[number]))
            continue
        text_labels = labeled.labels[labeled.starts[number] : labeled.starts[number + 1]][: model.max_len - 2]
        predictions += separate[1 : 1 + len(text_labels)][torch.from_numpy(text_labels >= 0)].tolist()
        expected += text_labels[text_labels >= 0].tolist()
    assert len(set(predictions)) == 3
    assert answers[0].predicted.tolist() == predictions
    assert answers[0].targets.tolist() == expected
    scores = score_labels(model, TOKENIZER, labeled, batch_tokens=50, resamples=9)
    assert (scores.accuracy, scores.f1) == (
        label_scores(predictions, expected, NAMES).accuracy, label_scores(predictions, expected, NAMES).f1,
    )  # fmt: skip
    assert scores.truncated == int((labeled.lengths > 17).sum()) > 0
    assert answers[0].weighted.documents <= len(labeled)  # words of one text are resampled together


def test_labels_are_matched_by_name_not_by_number() -> None:
    model, labeled = classifier(), examples()
    scores = score_labels(model, TOKENIZER, labeled, resamples=9)
    reversed_names = tuple(reversed(NAMES))
    reversed_examples = replace(labeled, names=reversed_names, labels=2 - labeled.labels)
    assert score_labels(model, TOKENIZER, reversed_examples, resamples=9) == scores
    extended_examples = replace(labeled, names=(*NAMES, "emu"))
    assert score_labels(model, TOKENIZER, extended_examples, resamples=9) == scores, "no example is an emu"
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

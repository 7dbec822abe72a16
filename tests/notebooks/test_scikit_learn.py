"""The classifier and the vectorizer follow scikit-learn's API: clone, search, cross-validation and pipelines."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from tercet.config import UserError
from tercet.sklearn import TercetClassifier, TercetVectorizer, _hold_out

TEXTS = [f"{animal} {verb} {n}" for n in range(8) for animal in ("cat", "dog") for verb in ("sat", "ran")]
LABELS = np.array([text.split()[0] for text in TEXTS])
TINY: dict[str, Any] = {
    "model__stack__d_model": 16, "model__stack__n_layers": 1, "model__stack__n_heads": 2, "model__stack__d_ff": 32,
    "model__max_len": 8, "training__max_steps": 60, "training__max_epochs": None, "training__warmup_steps": 0,
    "training__optimizer__lr": 0.02, "training__precision": "fp32", "training__compile": "never",
    "training__validate_every": 20, "training__save_every": 60, "data__tokenizer": {"kind": "words"},
    "task__batch_size": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def classifier() -> TercetClassifier:
    return TercetClassifier(random_state=3, **TINY).fit(TEXTS, LABELS)


@pytest.mark.slow
def test_the_classifier_learns_and_predicts_probabilities(classifier: TercetClassifier) -> None:
    assert classifier.classes_.tolist() == ["cat", "dog"]
    assert classifier.score(TEXTS, LABELS) == 1.0
    table = classifier.predict_proba(np.array(TEXTS))
    assert table.shape == (32, 2)
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-5)
    assert (classifier.classes_[table.argmax(1)] == classifier.predict(TEXTS)).all()
    assert classifier.history_["step"][-1] == 60


@pytest.mark.slow
def test_labels_keep_their_type() -> None:
    numbers = np.where(LABELS == "cat", 7, 3)
    model = TercetClassifier(random_state=3, **TINY).fit(TEXTS, numbers)
    assert model.classes_.tolist() == [3, 7]
    assert model.predict(["cat sat 1"]).dtype == numbers.dtype
    assert model.score(TEXTS, numbers) == 1.0


def test_the_classifier_is_pickled_with_its_model(classifier: TercetClassifier) -> None:
    unpickled = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(unpickled.predict_proba(TEXTS[:5]), classifier.predict_proba(TEXTS[:5]))


def test_settings_are_parameters(classifier: TercetClassifier) -> None:
    model = TercetClassifier(training__max_steps=5)
    assert model.get_params()["training__max_steps"] == 5
    assert clone(model).set_params(training__max_steps=7, quiet=False).get_params()["training__max_steps"] == 7
    assert model.get_params()["training__max_steps"] == 5
    assert repr(model) == "TercetClassifier(training__max_steps=5)"
    with pytest.raises(ValueError, match="Invalid parameter 'color'"):
        model.set_params(color=1)
    with pytest.raises(UserError, match="max_step"):
        TercetClassifier(training__max_step=5).fit(TEXTS, LABELS)
    assert clone(classifier).get_params() == classifier.get_params()


@pytest.mark.slow
def test_the_classifier_is_cross_validated_and_searched() -> None:
    model = TercetClassifier(random_state=3, **TINY)
    assert cross_val_score(model, TEXTS, LABELS, cv=2).min() > 0.9
    split, steps = ShuffleSplit(1, random_state=3), "tercetclassifier__training__max_steps"
    search = GridSearchCV(make_pipeline(model), {steps: [1, 60]}, cv=split)
    assert search.fit(TEXTS, LABELS).best_params_ == {steps: 60}


@pytest.mark.slow
def test_vectors_equal_those_of_the_encoder(classifier: TercetClassifier, tmp_path: Path) -> None:
    saved = TercetClassifier(random_state=3, out=str(tmp_path / "run"), **TINY).fit(TEXTS, LABELS)
    vectorizer = TercetVectorizer(tmp_path / "run")
    vectors = vectorizer.fit_transform(TEXTS)
    assert vectors.shape == (32, 16)
    np.testing.assert_array_equal(vectors, saved.run_.embed(TEXTS))
    assert vectorizer.get_feature_names_out()[[0, -1]].tolist() == ["tercetvectorizer0", "tercetvectorizer15"]
    pipeline = make_pipeline(clone(vectorizer), LogisticRegression())
    assert cross_val_score(pipeline, TEXTS, LABELS, cv=2).min() > 0.9
    np.testing.assert_array_equal(saved.predict_proba(TEXTS), classifier.predict_proba(TEXTS))  # reproducible


CHECKS = [
    "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_get_params_invariance",
    "check_set_params", "check_estimator_tags_renamed", "check_estimator_cloneable", "check_estimator_repr",
    "check_valid_tag_types", "check_mixin_order",
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("estimator", [TercetClassifier(), TercetVectorizer("runs/bert")], ids=["labels", "vectors"])
def test_the_checks_of_scikit_learn_that_need_no_numbers(check: str, estimator: Any) -> None:
    if check == "check_no_attributes_set_in_init" and isinstance(estimator, TercetClassifier):
        assert set(vars(estimator)) - set(estimator.get_params()) == {"settings"}  # the recipe's settings
        return
    getattr(estimator_checks, check)(type(estimator).__name__, estimator)


def test_unsuitable_data_is_rejected_in_one_line() -> None:
    model = TercetClassifier()
    for texts, labels, message in (
        ("one", ["a"], "is a single text; pass a list of texts"),
        ([1.5, 2.5], ["a", "b"], "1.5 is not a text"),
        ([], [], "there are no texts"),
        (["a", "b"], ["x"], "2 texts require as many labels"),
        (["a", "b"], ["x", "x"], "pass texts with at least two labels"),
    ):
        with pytest.raises(UserError, match=message):
            model.fit(texts, labels)
    assert "TercetClassifier" in model._repr_html_()
    with pytest.raises(NotFittedError):
        model.predict(TEXTS)


def test_each_label_keeps_a_training_text() -> None:
    labels = [0] * 40 + [1] * 20 + [2]
    held_out = _hold_out(labels, 0.1)
    assert [sum(labels[place] == label for place in held_out) for label in range(3)] == [4, 2, 0]
    assert _hold_out([0, 1, 0, 1], 0.9).isdisjoint({0, 1})


@pytest.mark.slow
def test_without_scikit_learn_the_error_names_the_package() -> None:
    program = "import sys; sys.modules['sklearn'] = None\ntry: import tercet.sklearn\nexcept Exception as e: print(e)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "tercet.sklearn requires scikit-learn; pip install 'tercet[sklearn]'"

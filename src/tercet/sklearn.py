"""A text classifier and a text vectorizer that work in scikit-learn's pipelines, searches and cross-validation.

    model = TercetClassifier(training__max_epochs=2).fit(texts, labels)
    cross_val_score(model, texts, labels, cv=3)
    make_pipeline(TercetVectorizer("runs/bert"), LogisticRegression()).fit(texts, labels)

A setting of the recipe is a keyword argument with two underscores for each dot: training__max_epochs is
training.max_epochs. scikit-learn's searches can vary these settings.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tercet.api import load, train
from tercet.config import UserError
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.messages import show
from tercet.nn.specs import Pooling
from tercet.run import Run
from tercet.training.run_folder.choices import Restart

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise UserError("tercet.sklearn requires scikit-learn; pip install 'tercet[sklearn]'") from None

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Texts = Sequence[str] | np.ndarray


class _TextEstimator(BaseEstimator):
    """An estimator whose input is texts, not numbers."""

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.no_validation = True  # input is not an array of numbers
        return tags


class TercetClassifier(ClassifierMixin, _TextEstimator):
    """A classifier of texts, trained from a recipe, from scratch or from a pretrained model.

    Args:
        recipe: Name of a packaged recipe for labeled texts, or path of a YAML file.
        pretrained: Folder of a trained encoder to start from, or None to train from scratch.
        out: Run folder. `fit` deletes a run that it contains. By default, the model is kept only in memory.
        validation_fraction: Fraction of the texts of each label to hold out for selecting the best checkpoint, rounded
            down. If no text is held out, the checkpoint is selected by its score on the training texts.
        random_state: Seed of initial weights, data order and dropout; by default that of the recipe.
        quiet: If True, print no progress.
        settings: Keys of the recipe, such as training__max_steps=200 for training.max_steps.

    Attributes:
        classes_: Labels in sorted order, which is also the order of the columns of `predict_proba`.
        run_: The trained model.
        history_: Metrics of the training by column, in the form of `Run.history`.
    """

    classes_: np.ndarray
    run_: Run
    history_: dict[str, list[float]]

    def __init__(
        self,
        recipe: str = "classify-docstrings",
        *,
        pretrained: str | None = None,
        out: str | None = None,
        validation_fraction: float = 0.1,
        random_state: int | None = None,
        quiet: bool = True,
        **settings: Any,
    ) -> None:
        self.recipe, self.pretrained, self.out = recipe, pretrained, out
        self.validation_fraction, self.random_state, self.quiet = validation_fraction, random_state, quiet
        self.settings = settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, including the settings of the recipe."""
        return {**super().get_params(deep), **self.settings}

    def set_params(self, **params: Any) -> "TercetClassifier":
        """Set parameters, including settings of the recipe."""
        settings = {name: value for name, value in params.items() if "__" in name}
        super().set_params(**{name: value for name, value in params.items() if name not in settings})
        self.settings = {**self.settings, **settings}
        return self

    def fit(self, X: Texts, y: "ArrayLike") -> "TercetClassifier":
        """Train on texts with one label each, and return this classifier.

        Args:
            X: Texts.
            y: Label of each text, of any type that can be sorted.

        Raises:
            UserError: If the numbers of texts and labels differ, all labels are the same, or a setting is invalid.
        """
        texts = _check_texts(X)
        labels = np.asarray(y)
        if labels.shape != (len(texts),):
            raise UserError(
                f"{len(texts)} texts require as many labels, got {labels.shape}; pass one label for each text"
            )
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(
                f"all texts have the label {show(self.classes_.tolist())}; pass texts with at least two labels"
            )
        names = self._names()
        with TemporaryDirectory() as folder:
            examples = [{"text": text, "label": names[n]} for text, n in zip(texts, numbers.tolist(), strict=True)]
            held_out = _hold_out(numbers.tolist(), self.validation_fraction)
            files = {"train": Path(folder, "train.jsonl"), "validation": Path(folder, "validation.jsonl")}
            _write(files["train"], (example for n, example in enumerate(examples) if n not in held_out))
            _write(
                files["validation"], (example for n, example in enumerate(examples) if n in held_out or not held_out)
            )
            changes = {name.replace("__", "."): value for name, value in self.settings.items()}
            changes["data.validation"] = {"kind": "held_out", "source": str(files["validation"])}
            if self.random_state is not None:
                changes["training.seed"] = self.random_state
            self.run_ = train(
                self.recipe, data=files["train"], pretrained=self.pretrained, changes=changes, quiet=self.quiet,
                out=Path(folder, "run") if self.out is None else self.out, start=Restart(),
            )  # fmt: skip
            self.history_ = self.run_.history
        return self

    def predict_proba(self, X: Texts) -> np.ndarray:
        """Return the probability of each label (N, L), in the order of `classes_`."""
        check_is_fitted(self, "run_")
        columns = {name: place for place, name in enumerate(self._names())}
        table = np.zeros((len(texts := _check_texts(X)), len(self.classes_)))
        for row, classified in zip(table, self.run_.classify(texts), strict=True):
            for name, probability in classified.scores.items():
                row[columns[name]] = probability
        return table

    def predict(self, X: Texts) -> np.ndarray:
        """Return the most likely label of each text (N,)."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def _names(self) -> list[str]:
        """Return the names of the labels in the run.

        These are the labels as text, or the numbers of the labels if a text is empty or the same for two labels.
        """
        names = [str(label) for label in self.classes_.tolist()]
        return names if len({*names}) == len(names) and all(names) else [f"{n}" for n in range(len(names))]


class TercetVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _TextEstimator):
    """A vectorizer that computes embeddings of texts with a trained encoder; `fit` only loads the encoder.

    Args:
        model: Folder of the encoder or of its run.
        pooling: "mean" for the mean of all token vectors, "first" for the vector of the first token, bos, or "max" for
            the maximum of each number (default: the pooling defined by the model folder, or "mean").
        normalize: If True, scale vectors to length 1.
        batch_tokens: Maximum tokens per batch, including padding.
    """

    pooling: Pooling | None
    run_: Run

    def __init__(
        self,
        model: str | Path,
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.model, self.pooling, self.normalize, self.batch_tokens = model, pooling, normalize, batch_tokens

    def fit(self, X: Texts | None = None, y: Any = None) -> "TercetVectorizer":
        """Load the encoder and return this vectorizer; the texts are not used.

        Raises:
            UserError: If there is no encoder in the folder.
        """
        self.run_ = load(self.model)
        self._n_features_out = self.run_.trained_model.require("embed").model.spec.stack.d_model
        return self

    def transform(self, X: Texts) -> np.ndarray:
        """Return the embeddings of N texts (N, D) in float32."""
        check_is_fitted(self, "run_")
        return self.run_.embed(
            _check_texts(X), pooling=self.pooling, normalize=self.normalize, batch_tokens=self.batch_tokens
        )


def _check_texts(inputs: Texts) -> list[str]:
    """Return the texts as a list.

    Raises:
        UserError: If the input is a single text, is empty, or contains something other than text.
    """
    if isinstance(inputs, str):
        raise UserError(f"{show(inputs)} is a single text; pass a list of texts")
    texts = [*cast("Iterable[Any]", inputs)]
    invalid = next((text for text in texts if not isinstance(text, str)), None)
    if invalid is not None or not texts:
        problem = "there are no texts" if not texts else f"{show(invalid)} is not a text"
        raise UserError(f"{problem}; pass a list of texts, or one column of a table")
    return [str(text) for text in texts]


def _hold_out(labels: Sequence[int], fraction: float) -> set[int]:
    """Return the indices of the texts to hold out: of each label the same fraction, evenly spaced, never the first."""
    remaining = {label: math.floor(count * fraction) for label, count in Counter(labels).items()}
    interval = {label: count // max(1, remaining[label]) for label, count in Counter(labels).items()}
    count, held_out = Counter[int](), set[int]()
    for place, label in enumerate(labels):
        count[label] += 1
        if remaining[label] and count[label] > 1 and count[label] % interval[label] == 0:
            held_out.add(place)
            remaining[label] -= 1
    return held_out


def _write(path: Path, examples: Iterable[Mapping[str, str]]) -> None:
    path.write_text("".join(f"{json.dumps(example)}\n" for example in examples), encoding="utf-8")

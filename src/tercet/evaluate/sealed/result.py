"""Scores of one call on a sealed test part, with the differences between its models."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tercet.evaluate.bootstrap import Difference, difference_table
from tercet.evaluate.comparison import Comparison
from tercet.evaluate.score_summary import finite
from tercet.evaluate.tasks.evaluation import Scores
from tercet.messages import counted
from tercet.notebook import Summary, Table, View, format_count, format_value

MAIN_SCORES = (  # scores that are shown for several models, if they have them
    "bits_per_byte", "loss_nats_per_token", "masked_loss", "masked_accuracy", "accuracy", "f1", "micro_f1",
    "exact_match", "rmse", "pearson", "nats_per_answer_token", "bleu", "chrf", "nll_nats_per_token",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SealedModel:
    """One model of a call.

    Attributes:
        model: Path of the model.
        kind: Kind of model in words, such as "a language model".
        parameters: Number of parameters; tied ones count once.
        recipe_sha256: SHA-256 of its recipe; None if Tercet did not train it.
        weights_sha256: SHA-256 of its weights.
        leaked: Number of test items that are exactly in its training data; None if it could not be compared.
        notes: Remarks about its training data and its comparison with the first model.
    """

    model: str
    kind: str
    parameters: int
    recipe_sha256: str | None
    weights_sha256: str
    leaked: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SealedScores:
    """Scores of one model of a call.

    Attributes:
        facts: The model.
        scores: Its scores, as in `evaluate`.
        compared: Differences to the first model of the call, this model minus the first; empty for the first one, and
            if the scores cannot be compared.
        translation: Differences of BLEU and chrF to the first translator; None for the first one and other models.
    """

    facts: SealedModel
    scores: Scores
    compared: Mapping[str, Difference]
    translation: Comparison | None = None

    def to_dict(self) -> dict[str, Any]:
        compared = {name: difference.to_dict() for name, difference in self.compared.items()}
        translation = None if self.translation is None else asdict(self.translation)
        return {**asdict(self.facts), "scores": self.scores.to_dict(), "compared": compared, "translation": translation}


@dataclass(frozen=True, kw_only=True, repr=False)
class SealedEvaluation(Summary):
    """Result of one call.

    Attributes:
        folder: Folder of the sealed part.
        items: Number of items in the test part.
        unit: Name of the items.
        call: Number of the call, from 1.
        allowed_calls: Number of calls that are allowed.
        models_scored: Number of models in all calls so far, including this one.
        models: Scores of each model, in the order of the call.
    """

    folder: str
    items: int
    unit: str
    call: int
    allowed_calls: int
    models_scored: int
    models: tuple[SealedScores, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON."""
        names = ("folder", "items", "unit", "call", "allowed_calls", "models_scored")
        return {**{name: getattr(self, name) for name in names}, "models": [model.to_dict() for model in self.models]}

    def view(self) -> View:
        """Return the scores, a table of the differences to the first model, and the number of calls."""
        if len(self.models) == 1:
            return View((*self.models[0].scores.view().parts, "", self.describe_calls()))
        first, *others = self.models
        parts: list[Table | str] = [self._table()]
        for other in others:
            if other.compared:
                title = f"{other.facts.model} (model) compared with {first.facts.model}"
                parts += ["", title, difference_table(dict(other.compared), other="first")]
            if (translation := other.translation) is not None:
                text = f"BLEU {translation.bleu:+.2f}, chrF {translation.chrf:+.2f}; p = {translation.p_value:.3f}"
                parts += ["", f"{other.facts.model} compared with {first.facts.model}: {text} by paired bootstrap"]
        return View((*parts, "", self.describe_calls()))

    def describe_calls(self) -> str:
        """Return the number of calls and models so far, in one line."""
        models = counted(self.models_scored, "model", "models")
        return f"call {self.call} of {self.allowed_calls}; {models} scored on this part so far"

    def _table(self) -> Table:
        scores = [numbers(model.scores) for model in self.models]
        names = [name for name in MAIN_SCORES if name in scores[0]]
        rows = [
            (
                model.facts.model,
                *(format_value(values.get(name)) for name in names),
                format_count(model.facts.parameters),
                "" if model.facts.leaked is None else f"{model.facts.leaked:,}",
            )
            for model, values in zip(self.models, scores, strict=True)
        ]
        header = ("", *(name.replace("_", " ") for name in names), "parameters", "leaked")
        return Table(header=header, rows=rows, folded={0: 12})


def numbers(scores: Scores) -> dict[str, float | None]:
    """Return the scores that are numbers, by name; None for NaN and infinity."""
    values = scores.to_dict()
    return {name: finite(value) for name, value in values.items() if isinstance(value, int | float)}

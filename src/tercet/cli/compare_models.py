"""`tercet evaluate --compare`: the significance of the difference to another model, or to an earlier result."""

import argparse
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.device import place_model
from tercet.cli.texts import READING_FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tercet.evaluate import CustomMetric, Difference, Evaluation, TranslationResult


def is_result_file(path: str) -> bool:
    """Return whether the argument of --compare is the file of an earlier result, and not a model."""
    return path.endswith(".json") or (Path(path).is_file() and not path.endswith(".gguf"))


def check_same_task(first: Any, second: Any) -> None:
    """Check that two evaluations are of models with the same task.

    Raises:
        UserError: If they have different tasks.
    """
    from tercet.config import UserError

    if type(first) is not type(second):
        kinds = " and ".join(evaluation.trained_model.kind for evaluation in (first, second))
        raise UserError(f"cannot compare {kinds}; compare models of the same task")


def load_other(args: argparse.Namespace, evaluation: "Evaluation[Any]", device: "torch.device") -> "Evaluation[Any]":
    """Load the run of --compare, which must have the task of `evaluation`."""
    from tercet.api import load
    from tercet.evaluate import evaluation_of

    other_model = load(args.compare).trained_model
    other = evaluation_of(other_model)
    check_same_task(evaluation, other)
    place_model(other_model.model, device, args.quantize or "none")
    return other


def compare_models(
    args: argparse.Namespace, first: Any, second: Any, metrics: "Sequence[CustomMetric]"
) -> "dict[str, Difference]":
    """Return the differences of the scores of two models on the same data, from their evaluations.

    Args:
        args: Parsed command line.
        first, second: Evaluations of the models.
        metrics: Metrics of other packages, for models of text, classifiers and regressions.

    Raises:
        UserError: If the models cannot be scored on the same data.
    """
    from tercet.evaluate import LabelsEvaluation, paired_differences
    from tercet.evaluate.tasks.evaluation import TextEvaluation

    evaluations: tuple[Any, Any] = (first, second)
    names = ["encoding"]
    if isinstance(first, TextEvaluation):
        names = [*READING_FLAGS]
    elif isinstance(first, LabelsEvaluation):
        names.append("text_field")
    settings = {name: getattr(args, name) for name in names}
    data = [evaluation.load(args.data, **settings) for evaluation in evaluations]
    pairs = list(zip(evaluations, data, strict=True))
    options: dict[str, Any] = {"metrics": metrics} if metrics and isinstance(first, LabelsEvaluation) else {}
    differences = paired_differences(*(evaluation.weighted(part, **options) for evaluation, part in pairs))
    if metrics and isinstance(first, TextEvaluation):  # other documents may be resampled than those of `weighted`
        weighted = [evaluation.weighted_metrics(part, metrics) for evaluation, part in pairs]
        differences |= paired_differences(*weighted)
    return differences


def compare_metrics(
    metrics: "Sequence[CustomMetric]", first: "TranslationResult", second: "TranslationResult"
) -> "dict[str, Difference]":
    """Return the differences of metrics of other packages between two translators on the same pairs."""
    from tercet.evaluate import paired_differences
    from tercet.evaluate.custom_metrics import weigh_metrics

    if not metrics:
        return {}
    references = [reference for _, reference in first.pairs]
    scores = [weigh_metrics(metrics, result.translations, references) for result in (first, second)]
    return paired_differences(*scores)


def read_result(path: Path) -> dict[str, Any]:
    """Return the result that `tercet evaluate --json` has written to a file.

    Raises:
        UserError: If the file cannot be read, or contains something else.
    """
    from tercet.config import UserError

    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--compare {path}: cannot read it: {error.strerror}") from None
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise UserError(f"--compare {path} is not a result; write one with `tercet evaluate RUN --json > {path}`")

    from tercet.evaluate.comparison import check_result

    try:
        check_result(result)  # before the translations are computed
    except UserError as error:
        raise UserError(f"--compare {path}: {error}") from None
    return result


def compare_results(result: dict[str, Any], previous: dict[str, Any], evaluated: "TranslationResult") -> dict[str, Any]:
    """Return the differences of BLEU and chrF to an earlier result, and the p-value of the difference.

    The p-value is None unless the file with the earlier translations (--output) still exists unchanged.
    """
    from tercet.evaluate import compare, paired_bootstrap

    difference = compare(result, previous)
    p_value, path = None, Path(previous.get("output") or "")
    if path.is_file() and hashlib.sha256(lines := path.read_bytes()).hexdigest() == previous.get("output_sha256"):
        texts = lines.decode().split("\n")[:-1]
        references = [reference for _, reference in evaluated.pairs]
        protocol = evaluated.scores.protocol
        p_value = paired_bootstrap(
            evaluated.translations, texts, references, protocol=protocol, language=evaluated.language
        )
    return {"bleu": difference.bleu, "chrf": difference.chrf, "p_value": p_value}

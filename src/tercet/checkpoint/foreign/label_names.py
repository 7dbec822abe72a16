"""Labels of a classifier and its `problem_type` in a config.json."""

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from tercet.config import Plain, UserError
from tercet.messages import shorten
from tercet.models import Classifier
from tercet.spec import ProblemType


def read_labels(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the names of the labels in a config.json, in the order of the classifier's outputs.

    Args:
        config: Content of config.json.
        count: Number of outputs of the classifier.

    Raises:
        UserError: If `id2label` does not contain one name for each output.
    """
    id2label: Any = config.get("id2label") or {}
    if not isinstance(id2label, dict):
        raise UserError(f"config.json has {shorten(repr(id2label))} as id2label; put back the label of each number")
    names = cast("dict[Any, Any]", id2label)
    default_labels = [f"LABEL_{number}" for number in range(count)]  # default of transformers
    labels = [str(names.get(str(number), names.get(number, ""))) for number in range(len(names))]
    # As in `transformers`, default names are used if there are no names for two outputs, or if num_labels was changed
    # without changing the names.
    if len(labels) != count and (config.get("num_labels") == count or (not labels and count == 2)):
        labels = default_labels
    if len(labels) != count or not all(labels):
        raise UserError(f"the classifier has {count} labels, but id2label has {len(names)} names; name all labels")
    return tuple(labels)


def read_problem_type(config: Mapping[str, Any], count: int, over: Literal["texts", "tokens"]) -> ProblemType:
    """Return the problem type of a classifier with `count` outputs.

    If the config has none, one output means regression, as in `transformers`, and several outputs mean one label per
    text. A classifier over tokens always has one label per token.

    Raises:
        UserError: If the type is unknown, or is regression with several outputs.
    """
    problem_type = config.get("problem_type")
    if over == "tokens":
        return "single_label_classification"
    if problem_type is None:
        return "regression" if count == 1 else "single_label_classification"
    if problem_type not in get_args(ProblemType):
        raise UserError(f"problem_type is {shorten(repr(problem_type))}; supported: {', '.join(get_args(ProblemType))}")
    if problem_type == "regression" and count > 1:
        raise UserError(f"problem_type is regression with {count} outputs; Tercet supports only one")
    return problem_type


def write_labels(classifier: Classifier) -> Plain:
    """Return the keys of a config.json for the labels, and for a classifier over texts the problem type."""
    config: Plain = {
        "id2label": {str(number): label for number, label in enumerate(classifier.labels)},
        "label2id": {label: number for number, label in enumerate(classifier.labels)},
    }
    return config | ({"problem_type": classifier.problem_type} if classifier.over == "texts" else {})

"""The labels of a classifier, as a config.json names them."""

from collections.abc import Mapping
from typing import Any, cast

from tercet.config import Plain, UserError
from tercet.messages import shorten
from tercet.models import Classifier


def read_labels(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """The names of `count` labels, in the order of their scores.

    Raises:
        UserError: where some have none.
    """
    named: Any = config.get("id2label") or {}
    if not isinstance(named, dict):
        raise UserError(f"config.json has {shorten(repr(named))} as id2label; put back the label of each number")
    names = cast("dict[Any, Any]", named)
    numbered = [f"LABEL_{number}" for number in range(count)]  # what transformers writes where nobody gave names
    labels = [str(names.get(str(number), names.get(number, ""))) for number in range(len(names))]
    # A file may keep the two names of a default beside a num_labels that was given later.
    if len(labels) != count and (config.get("num_labels") == count or (not labels and count == 2)):
        labels = numbered
    if len(labels) != count or not all(labels):
        raise UserError(f"the classifier scores {count} labels and id2label names {len(names)}; name them all")
    return tuple(labels)


def write_labels(classifier: Classifier) -> Plain:
    """The keys that name them, and that a text has one of them."""
    config: Plain = {
        "id2label": {str(number): label for number, label in enumerate(classifier.labels)},
        "label2id": {label: number for number, label in enumerate(classifier.labels)},
    }
    return config | ({"problem_type": "single_label_classification"} if classifier.over == "texts" else {})

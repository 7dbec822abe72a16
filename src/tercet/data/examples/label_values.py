"""Values of a label's field, as text: one label, several labels, or a number.

A number is formatted as a float64, so that parsing the text returns exactly the same number.
"""

import json
import re
from collections.abc import Sequence
from typing import cast

from tercet import limits
from tercet.config import UserError
from tercet.data.sources.files import get_text

# Numbers as in JSON and C. Python's 1_000, nan and infinity are not accepted.
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
YES, NO = ("1", "true"), ("0", "false")


def read_label(value: object, location: str, field: str) -> str:
    """Return a single label: text, or an integer or boolean as text.

    Args:
        value: Value of the field.
        location: Location of the value in messages.
        field: Name of the field in messages.

    Raises:
        UserError: If the value is something else or blank, or longer than `limits.LABEL_CHARACTERS`.
    """
    match value:
        case bool():
            return str(value).lower()
        case int():
            label = str(value)
        case str() if value.strip():
            label = get_text({field: value}, field, location, "data.label_field").strip()
        case _:
            remedy = ""
            if isinstance(value, list):
                remedy = "; for texts with several labels set data.problem_type: multi_label_classification"
            elif isinstance(value, float):
                remedy = "; for labels that are numbers set data.problem_type: regression"
            raise UserError(
                f"{location} has {_show(value)} as its {field!r}; a label is text, an integer or true or false: "
                f"write one, or remove the line{remedy}"
            )
    if len(label) > limits.LABEL_CHARACTERS:
        raise UserError(
            f"{location} has a label of {len(label):,} characters, the maximum is {limits.LABEL_CHARACTERS:,}; "
            "check that data.label_field names the field with the labels"
        )
    return label


def read_label_list(value: object, location: str, field: str) -> tuple[str, ...]:
    """Return the distinct labels of a JSON value: a list of labels, possibly empty, or one label.

    Raises:
        UserError: If the value is neither, or has more than `limits.LABELS_OF_A_TEXT` labels.
    """
    if value is None:
        raise UserError(f"{location} has nothing as its {field!r}; write [] for a text without a label")
    values = cast("Sequence[object]", value) if isinstance(value, list) else (value,)
    return _deduplicate([read_label(label, location, field) for label in values], location, field)


def split_labels(text: str, separator: str, location: str, field: str) -> tuple[str, ...]:
    """Return the distinct labels in a table's field, split at `separator`; none if the field is blank.

    A separator of white space stands for any amount of white space.

    Raises:
        UserError: If a label before, after or between separators is blank, or there are more than
            `limits.LABELS_OF_A_TEXT` labels.
    """
    if not text.strip():
        return ()
    labels = text.split() if separator.isspace() else text.split(separator)
    if not all(label.strip() for label in labels):
        raise UserError(
            f"{location} has {_show(text)} as its {field!r}, with an empty label next to {separator!r}; remove the "
            "extra separator, or set data.label_separator"
        )
    return _deduplicate([read_label(label, location, field) for label in labels], location, field)


def read_indicators(
    values: dict[str, object] | dict[str, str], fields: Sequence[str], location: str
) -> tuple[str, ...]:
    """Return the names of those `fields` whose value is 1 or true; the others must be 0 or false.

    Raises:
        UserError: If a field has another value.
    """
    labels = list[str]()
    for field in fields:
        value = values[field]
        text = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
        if text not in (*YES, *NO):
            raise UserError(
                f"{location} has {_show(value)} as its {field!r}; a field of data.label_fields must be 0 or 1"
            )
        if text in YES:
            labels.append(field)
    return tuple(labels)


def read_number(value: object, location: str, field: str) -> str:
    """Return a JSON number as text.

    Raises:
        UserError: If the value is not a number, is NaN or infinite, or is larger than `limits.LABEL_NUMBER` in absolute
            value.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    else:
        raise UserError(_no_number(value, location, field))
    if not abs(number) <= limits.LABEL_NUMBER:  # also true for NaN
        if number != number or number in (float("inf"), -float("inf")):
            raise UserError(_no_number(value, location, field))
        raise UserError(
            f"{location} has a number as its {field!r} that is larger than {limits.LABEL_NUMBER:,}; "
            "use a larger unit for all of them"
        )
    return repr(float(number))


def parse_number(text: str, location: str, field: str) -> str:
    """Return the number in a table's field as text.

    Raises:
        UserError: If the text is not a number (see `NUMBER`), or `read_number` raises it.
    """
    if not NUMBER.fullmatch(text.strip()):
        raise UserError(_no_number(text, location, field))
    return read_number(float(text), location, field)


def _deduplicate(labels: Sequence[str], location: str, field: str) -> tuple[str, ...]:
    if len(labels) > limits.LABELS_OF_A_TEXT:
        raise UserError(
            f"{location} has {len(labels):,} labels in {field!r}, the maximum is {limits.LABELS_OF_A_TEXT:,}; "
            "check that data.label_field names the field with the labels"
        )
    return tuple(dict.fromkeys(labels))


def _no_number(value: object, location: str, field: str) -> str:
    return (
        f"{location} has {_show(value)} as its {field!r}; with data.problem_type: regression a label must be a finite "
        "number: write one, or remove the line"
    )


def _show(value: object) -> str:
    return "nothing" if value == "" or value is None else json.dumps(value)[:40]

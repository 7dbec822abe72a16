"""What stands in a label's field, as text: one label, several in a list or between separators, or a number.

A number's text is that of the float64 that it is, so that reading it again gives the number to the last bit.
"""

import json
import re
from collections.abc import Sequence
from typing import cast

from tercet import limits
from tercet.config import UserError
from tercet.data.sources.files import get_text

# As JSON and C write them, and no word of Python's for them: 1_000, nan, infinity.
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
YES, NO = ("1", "true"), ("0", "false")


def read_label(value: object, location: str, field: str) -> str:
    """The one label: text, or a whole number or a truth value as text.

    Raises:
        UserError: where the value is none.
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
                remedy = "; a text with several labels needs data.problem_type: multi_label_classification"
            elif isinstance(value, float):
                remedy = "; a label that is a number needs data.problem_type: regression"
            raise UserError(
                f"{location} has {_show(value)} as its {field!r}; a label is text, a whole number or true or false: "
                f"give this text one, or leave its line out{remedy}"
            )
    if len(label) > limits.LABEL_CHARACTERS:
        raise UserError(
            f"{location} has a label of {len(label):,} characters, and {limits.LABEL_CHARACTERS:,} is the most; "
            "set data.label_field to a field of labels"
        )
    return label


def read_label_list(value: object, location: str, field: str) -> tuple[str, ...]:
    """The labels of a JSON value, each once: those of a list, which may be empty, or the only one.

    Raises:
        UserError: where the value is neither.
    """
    if value is None:
        raise UserError(f"{location} has nothing as its {field!r}; give [] to a text without a label")
    values = cast("Sequence[object]", value) if isinstance(value, list) else (value,)
    return _deduplicate([read_label(label, location, field) for label in values], location, field)


def split_labels(text: str, separator: str, location: str, field: str) -> tuple[str, ...]:
    """The labels of a table's field, each once: what stands between separators; none of an empty field.

    Raises:
        UserError: where nothing stands between two of them.
    """
    if not text.strip():
        return ()
    labels = text.split() if separator.isspace() else text.split(separator)
    if not all(label.strip() for label in labels):
        raise UserError(
            f"{location} has {_show(text)} as its {field!r}, where nothing stands beside {separator!r}: write each "
            "label once between separators, or set data.label_separator"
        )
    return _deduplicate([read_label(label, location, field) for label in labels], location, field)


def read_indicators(
    values: dict[str, object] | dict[str, str], fields: Sequence[str], location: str
) -> tuple[str, ...]:
    """Those of `fields` that hold a 1; the others hold a 0.

    Raises:
        UserError: where one holds something else.
    """
    labels = list[str]()
    for field in fields:
        value = values[field]
        text = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
        if text not in (*YES, *NO):
            raise UserError(f"{location} has {_show(value)} as its {field!r}; a field of data.label_fields is 0 or 1")
        if text in YES:
            labels.append(field)
    return tuple(labels)


def read_number(value: object, location: str, field: str) -> str:
    """A JSON number, or the text of one in a table, as text.

    Raises:
        UserError: for what is no number, NaN and infinity among them, or is too large.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    else:
        raise UserError(_no_number(value, location, field))
    if not abs(number) <= limits.LABEL_NUMBER:  # NaN is not, either
        if number != number or number in (float("inf"), -float("inf")):
            raise UserError(_no_number(value, location, field))
        raise UserError(
            f"{location} has a number as its {field!r} that is larger than {limits.LABEL_NUMBER:,}; "
            "give all of them in a larger unit"
        )
    return repr(float(number))


def parse_number(text: str, location: str, field: str) -> str:
    """The same of a table's field."""
    if not NUMBER.fullmatch(text.strip()):
        raise UserError(_no_number(text, location, field))
    return read_number(float(text), location, field)


def _deduplicate(labels: Sequence[str], location: str, field: str) -> tuple[str, ...]:
    if len(labels) > limits.LABELS_OF_A_TEXT:
        raise UserError(
            f"{location} has {len(labels):,} labels in {field!r}, and {limits.LABELS_OF_A_TEXT:,} is the most; "
            "set data.label_field to a field of labels"
        )
    return tuple(dict.fromkeys(labels))


def _no_number(value: object, location: str, field: str) -> str:
    return (
        f"{location} has {_show(value)} as its {field!r}; with data.problem_type: regression a label is a finite "
        "number: give this text one, or leave its line out"
    )


def _show(value: object) -> str:
    return "nothing" if value == "" or value is None else json.dumps(value)[:40]

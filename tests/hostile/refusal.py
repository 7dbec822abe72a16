"""Checks of rejections: an error of one class with one line of limited length."""

from typing import Any

from report import count_inputs

from tercet.config import UserError

MAX_CHARACTERS = 2000  # characters of a message
TOO_LARGE = 10**400
HUGE = int("f" * 5000, 16)  # Python raises an error when it converts this to text


def check_error(error: BaseException | None) -> None:
    """Check that the error is one line of limited length and printable characters."""
    if error is not None:
        text = str(error)
        assert text
        assert len(text) <= MAX_CHARACTERS
        assert text.isprintable(), ascii(text)


def refusal(work: Any) -> UserError | None:
    """Return the `UserError` that `work` raises, or None. Other exceptions propagate."""
    try:
        work()
    except UserError as error:
        check_error(error)
        count_inputs(refused=1)
        return error
    count_inputs(taken=1)
    return None

"""What a refusal is: one bounded line, and an error of one kind."""

from typing import Any

from report import count_inputs

from tercet.config import UserError

MOST = 2000  # characters of a message
TOO_LARGE = 10**400
HUGE = int("f" * 5000, 16)  # Python refuses to write it down


def refused(error: BaseException | None) -> None:
    """In one bounded line that a terminal shows as it is."""
    if error is not None:
        text = str(error)
        assert text
        assert len(text) <= MOST
        assert text.isprintable(), ascii(text)


def refusal(work: Any) -> UserError | None:
    """What `work` was refused with; anything but a `UserError` is raised."""
    try:
        work()
    except UserError as error:
        refused(error)
        count_inputs(refused=1)
        return error
    count_inputs(taken=1)
    return None

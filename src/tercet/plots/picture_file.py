"""A picture's file and its words: where it may go, the same bytes each time, and labels drawn as they are."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.config import UserError
from tercet.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
DPI = 120


class NothingToDraw(UserError):
    """The model, or its folder, has not what this picture shows."""


def check_picture(path: Path, flag: str) -> None:
    """UserError where no picture can be drawn there: told before the work."""
    if path.suffix not in PICTURES:
        raise UserError(f"{flag} {path}: a picture's name ends in {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise UserError(f"{flag} {path}: there is no folder {path.parent}; make it first")


def save(figure: "Figure", path: Path, *, flag: str = "--out", dpi: int = DPI, as_text: bool = False) -> None:
    """Write a picture of the kind that the name says, whole or not at all; the same figure gives the same bytes.

    Args:
        as_text: whether words in an SVG stay words, which can be searched and copied, and not the outlines of letters.

    Raises:
        UserError: for a path that is no picture's, or cannot be written.
    """
    import matplotlib as mpl

    check_picture(path, flag)
    settings: Any = {"svg.hashsalt": "tercet", **({"svg.fonttype": "none"} if as_text else {})}
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {"Software": None})
    with ignore_missing_glyphs(), mpl.rc_context(settings):
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=dpi, metadata=metadata))


@contextmanager
def ignore_missing_glyphs() -> Generator[None]:
    """A box stands for a character that the font does not have; nothing is said about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        yield


def thin_labels(texts: Sequence[str], count: int) -> tuple[list[int], list[str]]:
    """The places of at most `count` labels, evenly apart, and what they say; numbered where some are left out."""
    stride = max(1, -(-len(texts) // count))
    places = list(range(0, len(texts), stride))
    return places, [texts[place] if stride == 1 else f"{place} {texts[place]}" for place in places]


def disable_mathtext(labels: Sequence[Any]) -> None:
    """Texts of matplotlib that are tokens: a $ is a $."""
    for label in labels:
        label.set_parse_math(False)

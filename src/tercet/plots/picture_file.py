"""Picture files: checks of the path, reproducible bytes, and labels without markup."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.config import UserError
from tercet.storage import check_output_file, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
DPI = 120


class NothingToDraw(UserError):
    """The model or folder lacks the data for a picture."""


def check_picture(path: Path, flag: str) -> None:
    """Check the path of a picture, before any work is done.

    Raises:
        UserError: If the suffix is not that of a picture, or `check_output_file` rejects the path. The message begins
            with `flag`.
    """
    if path.suffix not in PICTURES:
        raise UserError(f"{flag} {path}: a picture's name ends in {', '.join(PICTURES)}")
    check_output_file(path, flag, example="picture.png")


def save(figure: "Figure", path: Path, *, flag: str = "--out", dpi: int = DPI, as_text: bool = False) -> None:
    """Write a figure in the format of the path's suffix, atomically; the same figure gives the same bytes.

    Args:
        figure: Figure to write.
        path: Path with the suffix .png, .svg or .pdf.
        flag: Option of the command line with the path, for error messages.
        dpi: Resolution of a PNG in dots per inch.
        as_text: If True, keep the words in an SVG as text, which can be searched and copied, instead of outlines.

    Raises:
        UserError: If the suffix is not that of a picture, or the file cannot be written.
    """
    import matplotlib as mpl

    check_picture(path, flag)
    settings: Any = {"svg.hashsalt": "tercet", **({"svg.fonttype": "none"} if as_text else {})}
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {"Software": None})
    with ignore_missing_glyphs(), mpl.rc_context(settings):
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=dpi, metadata=metadata))


@contextmanager
def ignore_missing_glyphs() -> Generator[None]:
    """Suppress warnings about characters that the font lacks; a box is drawn for them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        yield


def thin_labels(texts: Sequence[str], count: int) -> tuple[list[int], list[str]]:
    """Return positions and texts of at most `count` evenly spaced labels, numbered if some are left out."""
    stride = max(1, -(-len(texts) // count))
    places = list(range(0, len(texts), stride))
    return places, [texts[place] if stride == 1 else f"{place} {texts[place]}" for place in places]


def disable_mathtext(labels: Sequence[Any]) -> None:
    """Disable math mode in labels that contain tokens, so that $ is drawn as $."""
    for label in labels:
        label.set_parse_math(False)

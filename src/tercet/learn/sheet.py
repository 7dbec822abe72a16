"""Copies of the exercise sheets, which students complete."""

from importlib import resources
from pathlib import Path

from tercet.config import UserError
from tercet.learn.exercises import find_exercise
from tercet.storage import report_write_errors, write_atomically


def sheet_text(number: int) -> str:
    """Return the sheet of an exercise: Python code with the task, and without the answer.

    Raises:
        UserError: If there is no exercise with this number.
    """
    return (resources.files("tercet.learn") / "sheets" / find_exercise(number).sheet).read_text(encoding="utf-8")


def write_sheet(number: int, folder: Path | str = ".") -> Path:
    """Write the sheet of an exercise to a folder, which is created if it does not exist, and return its path.

    Args:
        number: Number of the exercise, from 1.
        folder: Folder of the new file.

    Raises:
        UserError: If there is no exercise with this number, if the folder already contains the file, which may be a
            student's work, or if the file cannot be written.
    """
    text = sheet_text(number)
    path = Path(folder) / find_exercise(number).sheet
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"not a folder: {path.parent}; pass the name of a folder")
    if path.exists():
        raise UserError(f"{path} exists already; rename it, or pass another folder with --to")
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path

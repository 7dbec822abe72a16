"""Restart a run: keep its files until the data and the model of the new run are ready."""

import shutil
from pathlib import Path
from types import TracebackType

from tercet.checkpoint.run_record import RECIPE, RECORD
from tercet.config import UserError
from tercet.messages import print_note
from tercet.storage import report_write_errors
from tercet.training.recipe.recipe import Recipe
from tercet.training.run_folder.folder import BEFORE_RUN, PARTS, check_recipe

ASIDE = ".restarted"  # hidden, so that the run folder counts as empty


class FormerRun:
    """The run in a folder that is restarted. Its files are in the hidden folder `.restarted` until they are deleted.

    As a context manager, it moves the files there, and moves them back if the block ends before `delete` is called.
    Other files in the folder are not touched.

    Args:
        out: Folder of the run; need not exist.
        recipe: Recipe of the run that will be started there.

    Raises:
        UserError: On entering, if `out` contains other files but no run, if the pretrained model of `recipe` is in
            `out`, or if files cannot be moved.
    """

    def __init__(self, out: Path, recipe: Recipe) -> None:
        self._out, self._recipe, self._aside = out, recipe, out / ASIDE
        self._is_set_aside = False

    def __enter__(self) -> "FormerRun":
        out, pretrained = self._out, self._recipe.pretrained
        if not any((out / name).exists() for name in (RECIPE, RECORD, *BEFORE_RUN)):
            if out.exists():
                check_recipe(out, self._recipe, None)
            return self
        if pretrained is not None and Path(pretrained).resolve().is_relative_to(out.resolve()):
            raise UserError(f"--restart would delete the pretrained model {pretrained}; pass another --out")
        self.delete()  # a run that was set aside by a process that was killed
        try:
            with report_write_errors(self._aside):
                self._aside.mkdir()
                self._is_set_aside = True
                _move(out, self._aside, PARTS)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def delete(self) -> None:
        """Delete the files that were set aside, if there are any.

        Raises:
            UserError: If they cannot be deleted.
        """
        self._is_set_aside = False
        if self._aside.exists():
            with report_write_errors(self._aside):
                shutil.rmtree(self._aside)

    def _restore(self) -> None:
        if not self._is_set_aside:
            return
        self._is_set_aside = False
        try:
            _move(self._aside, self._out, PARTS[::-1])
            self._aside.rmdir()
        except OSError as error:
            print_note(f"the former run is in {self._aside}, and cannot be moved back: {error.strerror}")


def _move(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (source / name).exists() or (source / name).is_symlink():
            (source / name).rename(target / name)

"""`train`: from a recipe to a run folder. The same call on the same folder resumes the run.

User errors are reported as early as possible: those that need no tensor before torch is imported, the others before
Lightning is imported.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tercet.training.recipe.recipe import Recipe
from tercet.training.request import ResolvedRecipe
from tercet.training.run.finish import describe_finished, finish_run
from tercet.training.run.fit import train_run
from tercet.training.run.lock import lock_run
from tercet.training.run.open import open_run
from tercet.training.run.start import start_run
from tercet.training.run_folder.choices import Resume, Start


def train_resolved(
    resolved_recipe: ResolvedRecipe,
    start: Start | None = None,
    *,
    quiet: bool = False,
    arithmetic: Mapping[str, Any] | None = None,
    pause_at: int | None = None,
) -> Path:
    """Train a resolved recipe, and return the run folder.

    Args:
        resolved_recipe: Recipe and run folder.
        start: Start point and length; None for `Resume()`.
        quiet: If True, do not show progress on stderr.
        arithmetic: `precision` and `matmul` of a new run, if they were chosen for several runs together; None to choose
            them for this run.
        pause_at: Number of steps after which the run is saved and this function returns. The same call continues the
            run; None for no pause.

    Raises:
        UserError: If data or settings do not fit, the folder contains a run with other settings or is in use by
            another process, or no usable checkpoint is left.
        RunDiverged: If the loss or a gradient is not finite.
        RankLost: If another rank is lost.
        Interrupted: If Ctrl-C, SIGTERM or SIGHUP stopped the run, after it was saved.
    """
    with ExitStack() as resources:
        opened_run = open_run(
            resolved_recipe, start or Resume(), quiet=quiet, arithmetic=arithmetic, resources=resources,
            pause_at=pause_at,
        )  # fmt: skip
        locked_run = lock_run(opened_run)
        started_run = start_run(locked_run)
        if started_run.record.finished and not locked_run.is_extended:
            return describe_finished(started_run).folder
        if pause_at is not None and locked_run.point.step >= pause_at:
            return opened_run.folder
        return finish_run(train_run(started_run)).folder


def train(
    recipe: Recipe,
    out: Path | str,
    start: Start | None = None,
    *,
    quiet: bool = False,
    arithmetic: Mapping[str, Any] | None = None,
    pause_at: int | None = None,
) -> Path:
    """Train a recipe in the folder `out`, and return this folder.

    The other arguments and the errors are those of `train_resolved`.
    """
    return train_resolved(
        ResolvedRecipe(recipe=recipe, folder=Path(out)), start, quiet=quiet, arithmetic=arithmetic, pause_at=pause_at
    )

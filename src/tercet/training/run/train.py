"""`train`: from a recipe to a run folder. The same call on the same folder goes on where the last one stopped.

What a user can have got wrong is looked at first: what needs no tensor before torch is imported, the rest before
Lightning is.
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
) -> Path:
    """Train as a recipe says, in its folder; return the folder.

    Args:
        resolved_recipe: The recipe and the folder.
        start: Where the run starts; `Resume()` by default.
        quiet: No progress on stderr.
        arithmetic: `precision` and `matmul` of a run that begins, if they were chosen for several runs together;
            measured by default.

    Raises:
        UserError: If data or settings do not fit, the folder holds a run with other settings or another process owns
            it, or what the run would go on from is lost.
        RunDiverged: If the loss is no longer a number.
        RankLost: If another of the run's processes is gone.
        Interrupted: After a Ctrl-C or SIGTERM, when everything is saved.
    """
    with ExitStack() as resources:
        opened_run = open_run(
            resolved_recipe, start or Resume(), quiet=quiet, arithmetic=arithmetic, resources=resources
        )
        locked_run = lock_run(opened_run)
        started_run = start_run(locked_run)
        if started_run.record.finished and not locked_run.is_extended:
            return describe_finished(started_run).folder
        return finish_run(train_run(started_run)).folder


def train(
    recipe: Recipe,
    out: Path | str,
    start: Start | None = None,
    *,
    quiet: bool = False,
    arithmetic: Mapping[str, Any] | None = None,
) -> Path:
    """Train a recipe that is there as an object; arguments as in `train_resolved`."""
    return train_resolved(ResolvedRecipe(recipe=recipe, folder=Path(out)), start, quiet=quiet, arithmetic=arithmetic)

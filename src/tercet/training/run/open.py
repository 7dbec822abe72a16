"""First stage of a run: adapt its recipe to the processes, and report errors without importing torch."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from tercet.checkpoint.run_record import RECIPE, RECORD
from tercet.data.corpora.find_sources import check_sources
from tercet.memory import keep_memory
from tercet.storage import check_output_folder
from tercet.training.distributed.launch import adapt_to_launch
from tercet.training.loop.loggers import check_loggers
from tercet.training.recipe.recipe import Recipe
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.request import ResolvedRecipe
from tercet.training.run.states import OpenedRun
from tercet.training.run_folder.choices import Start


def open_run(
    resolved_recipe: ResolvedRecipe,
    start: Start,
    *,
    quiet: bool,
    arithmetic: Mapping[str, Any] | None,
    resources: ExitStack,
    pause_at: int | None = None,
) -> OpenedRun:
    """Check a requested run and adapt its recipe to the processes, without writing anything.

    Args:
        resolved_recipe: Recipe and run folder.
        start: Requested start point.
        quiet: If True, do not show progress on stderr.
        arithmetic: `precision` and `matmul` of a new run; None to choose them when the run starts.
        pause_at: Number of steps after which the run is saved and pauses; None for no pause.
        resources: Stack on which later stages put resources, such as the lock of the folder. The caller closes it.

    Raises:
        UserError: If data or loggers are not available, the recipe does not fit the processes of the launcher, or the
            run folder cannot be written.
    """
    recipe, folder = adapt_to_launch(resolved_recipe.recipe), resolved_recipe.folder
    check_sources(recipe.data)
    check_loggers(recipe.logging)
    keep_memory()
    primary = is_primary(recipe.training)
    if primary:
        check_output_folder(folder, "--out")
    return OpenedRun(
        folder=folder,
        recipe=recipe,
        from_run=resolved_recipe.from_run,
        start=start,
        exists=(folder / RECIPE).exists() or (folder / RECORD).exists(),
        primary=primary,
        quiet=quiet or not primary,
        arithmetic=arithmetic,
        pause_at=pause_at,
        notes=resolved_recipe.notes,
        resources=resources,
    )


def is_first(recipe: Recipe) -> bool:
    """Return whether this process is rank 0 among those that a launcher has started for a recipe."""
    return is_primary(adapt_to_launch(recipe).training)


def is_primary(spec: TrainingSpec) -> bool:
    """Return whether this process is rank 0 or the only process of the run."""
    if spec.world_size == 1:
        return True
    from tercet.training.distributed.devices import rank  # imports torch

    return not rank(spec)

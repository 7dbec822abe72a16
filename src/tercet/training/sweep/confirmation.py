"""Confirmation of the best trial of a search: a comparison with the unchanged recipe, with seeds that are new to both.

The best of many trials is chosen partly for its luck, so its loss in the search is too good. With new seeds it has no
such advantage. Both variants are trained with the same seeds, so with the same order of the data, and the paired t-test
is applied to the differences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.evaluate.bootstrap import Difference
from tercet.evaluate.measures import MEASURES
from tercet.evaluate.spreads import seed_difference
from tercet.training.recipe.recipe import load_recipe
from tercet.training.sweep.compare_runs import ComparedRuns, compare_sweep
from tercet.training.sweep.grid import GridPoint
from tercet.training.sweep.sealed_scores import SealedDifference, score_sealed
from tercet.training.sweep.sweep import Sweep, plan_variants
from tercet.training.sweep.sweep_folder import CONFIRMATION

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The best trial of a search compared with the unchanged recipe.

    Attributes:
        runs: Comparison of the two variants.
        measure: Score that is compared, such as "nats_per_token".
        difference: Score of the trial minus that of the recipe; None if a run diverged or the scores are not
            comparable.
        seeds: Seeds of both variants.
        sealed: The same difference on a sealed test part; None without one.
    """

    runs: ComparedRuns
    measure: str
    difference: Difference | None
    seeds: tuple[int, ...]
    sealed: SealedDifference | None = None

    @property
    def is_better(self) -> bool:
        """True if the settings of the trial are better: the interval of the difference excludes 0."""
        return self._excludes_zero(better=True)

    @property
    def is_worse(self) -> bool:
        return self._excludes_zero(better=False)

    def _excludes_zero(self, *, better: bool) -> bool:
        if self.difference is None:
            return False
        low, high = self.difference.interval
        return low > 0 if MEASURES[self.measure].higher_is_better == better else high < 0


def plan_confirmation(
    recipe: str, unchanged: GridPoint, changed: GridPoint, *, seeds: Sequence[int], out: Path
) -> Sweep | None:
    """Return the sweep that confirms a variant of a recipe; None if the variant has the recipe's own settings.

    Args:
        recipe: Name of the recipe.
        unchanged, changed: The recipe's own settings, and those of the variant.
        seeds: Seeds of both.
        out: Folder of the search.

    Raises:
        UserError: If the folder contains another confirmation.
    """
    if load_recipe(recipe, unchanged.changes) == load_recipe(recipe, changed.changes):
        return None
    requested = {"recipe": recipe, "changes": [dict(unchanged.changes), dict(changed.changes)], "seeds": list(seeds)}
    return plan_variants(
        [recipe], [unchanged, changed], seeds=seeds, out=out / CONFIRMATION, requested=requested, what="confirmation"
    )


def confirm(
    sweep: Sweep, *, sealed: Path | None = None, device: "str | torch.device" = "cpu", quiet: bool = False
) -> Confirmation:
    """Train and compare the two variants of a planned confirmation.

    Args:
        sweep: Result of `plan_confirmation`.
        sealed: Folder of a sealed test part on which all runs are scored too, in one call; None for none.
        device: PyTorch device on which all runs are scored.
        quiet: If True, report nothing on stderr.

    Raises:
        UserError: If a run cannot be resumed or scored, or the call on the sealed part is not allowed.
        Interrupted: If a signal stopped training, after the run was saved.
    """
    compared = compare_sweep(sweep, device=device, quiet=quiet)
    rows = {row.name: row for row in compared.rows}
    unchanged, changed = (rows[name] for name in dict.fromkeys(run.variant for run in sweep.runs))
    kind = changed.kind or unchanged.kind
    measure = None if kind is None else compared.leaderboard.ranked_by[kind]
    difference = on_sealed = None
    if measure is not None and not changed.diverged and not unchanged.diverged:
        scores = [
            [run.scores.scores[measure] for run in sorted(row.runs, key=lambda run: run.seed or 0) if run.scores]
            for row in (changed, unchanged)
        ]
        if all(map(math.isfinite, (*scores[0], *scores[1]))):
            difference = seed_difference(*scores)
    if sealed is not None and difference is not None and kind is not None:
        tried, own = ([run.folder for run in sweep.runs if run.variant == row.name] for row in (changed, unchanged))
        place = tried[0].parent
        on_sealed = score_sealed(tried, own, sealed, place, kind=kind, measure=measure or "", device=device)
    seeds = tuple(sorted({run.seed for run in sweep.runs if run.seed is not None}))
    return Confirmation(runs=compared, measure=measure or "", difference=difference, seeds=seeds, sealed=on_sealed)

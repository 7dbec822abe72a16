"""Planning of a search of settings: its arguments are checked before torch is imported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.config import Plain, UserError, suggest
from tercet.data.sealing.seal_record import read_seal
from tercet.training.recipe.recipe import load_recipe
from tercet.training.sweep.grid import MAX_RUNS, check_seeds, folder_names
from tercet.training.sweep.proposals import SAMPLERS, Sampler, require_optuna
from tercet.training.sweep.space import SearchKey, SearchSpace
from tercet.training.sweep.sweep import Sweep, is_run, plan_variants
from tercet.training.sweep.sweep_folder import CONFIRMATION, SEALED

TRIALS = 20  # by default
SEEDS = 3  # of the confirmation, by default


@dataclass(frozen=True, kw_only=True)
class Search:
    """A planned search.

    Attributes:
        recipe: Name of the recipe.
        space: Settings that trials may have.
        sampler: Method that proposes settings.
        trials: Maximum number of trials; None for as many as the hours allow.
        hours: Hours of search and confirmation together; None for no limit.
        seed: Seed of the search and of all its trials.
        seeds: Seeds of the confirmation.
        out: Folder of the search.
        sealed: Folder of a sealed test part; None for none.
        requested: Requested settings, for `settings.json`.
        corners: Sweep of the corners of the space, which are checked before the first training.
    """

    recipe: str
    space: SearchSpace
    sampler: Sampler
    trials: int | None
    hours: float | None
    seed: int
    seeds: tuple[int, ...]
    out: Path
    sealed: Path | None
    requested: Plain
    corners: Sweep


def plan_search(
    recipe: str,
    keys: Sequence[SearchKey],
    *,
    trials: int | None = None,
    hours: float | None = None,
    seeds: int | Sequence[int] = SEEDS,
    sampler: Sampler = "tpe",
    changes: Mapping[str, Any] | None = None,
    out: Path | None = None,
    sealed: Path | None = None,
) -> Search:
    """Plan a search, without reading data or writing anything.

    Args:
        recipe: Packaged recipe, or path of a YAML file.
        keys: Keys to vary.
        trials: Number of trials; by default 20, or with `hours` as many as they allow.
        hours: Hours of search and confirmation together.
        seeds: Seeds of the confirmation, or their number.
        sampler: Method that proposes settings.
        changes: Changes to the recipe in all trials, as nested mappings.
        out: Folder of the search; None for `swept/` and the name of the recipe.
        sealed: Folder of a sealed test part, on which the runs of the confirmation are scored; None for none.

    Raises:
        UserError: If the recipe, a key or a value is invalid, Optuna is required and not installed, `out` contains
            something else, or no call is left on the sealed part.
    """
    if is_run(recipe):
        raise UserError(f"{recipe} is a run; pass its recipe, {recipe}/recipe.yaml")
    if sampler not in SAMPLERS:
        raise UserError(f"unknown sampler {sampler!r}{suggest(sampler, SAMPLERS)}")
    space = SearchSpace(tuple(keys), changes or {})
    if not keys:
        raise UserError("nothing to vary; pass --vary, such as --vary training.optimizer.lr=0.001..0.1")
    space.check()
    base = load_recipe(recipe, space.fixed_changes)
    if base.training.max_hours is not None:
        raise UserError("a sweep requires a length in steps or epochs; pass --set training.max_steps=1000")
    trials = _number_of_trials(trials, hours, space, sampler)
    if sampler == "tpe":
        require_optuna()
    seed, out = base.training.seed, default_search_folder(recipe) if out is None else out
    checked_seeds = confirmation_seeds(seeds, search_seed=seed)
    requested: Plain = {
        "recipe": recipe, "vary": space.to_plain(), "set": dict(space.fixed_changes), "sampler": sampler,
        "trials": trials, "hours": hours, "seed": seed, "seeds": list(checked_seeds),
        **({} if sealed is None else {"sealed": str(sealed)}),
    }  # fmt: skip
    if sealed is not None and not (out / CONFIRMATION / SEALED).exists():
        read_seal(sealed).check_calls(sealed)
    corners = plan_variants(
        [recipe], [space.point(corner) for corner in space.corners()], seeds=[seed], out=out, requested=requested,
        what="sweep",
    )  # fmt: skip
    return Search(
        recipe=recipe, space=space, sampler=sampler, trials=trials, hours=hours, seed=seed, seeds=checked_seeds,
        out=out, sealed=sealed, requested=requested, corners=corners,
    )  # fmt: skip


def _number_of_trials(trials: int | None, hours: float | None, space: SearchSpace, sampler: Sampler) -> int | None:
    """Return the maximum number of trials; None if only the hours limit it.

    Raises:
        UserError: If the limits conflict.
    """
    if trials is not None and hours is not None:
        raise UserError("--trials and --hours exclude each other; leave out one of them")
    if sampler == "grid":
        if trials is not None or hours is not None:
            raise UserError("--sampler grid tries all combinations; leave out --trials and --hours")
        return len(space.grid())
    if trials is not None and not 2 <= trials <= MAX_RUNS:
        raise UserError(f"--trials: expected a number from 2 to {MAX_RUNS:,}, got {trials}")
    if trials is None and hours is None:
        trials = TRIALS
    return trials if trials is None or space.size is None else min(trials, space.size)


def default_search_folder(recipe: str) -> Path:
    """Return the default folder of a search: `swept/` and the name of the recipe."""
    return Path("swept", folder_names([Path(recipe).stem])[0])


def confirmation_seeds(seeds: int | Sequence[int], *, search_seed: int) -> tuple[int, ...]:
    """Return the seeds of a confirmation.

    Args:
        seeds: List of seeds, or their number.
        search_seed: Seed of the search, which is left out.

    Raises:
        UserError: If there are fewer than two, or one is that of the search.
    """
    checked = check_seeds(seeds)
    if len(checked) < 2:
        raise UserError("--seeds: the confirmation compares at least two seeds; pass --seeds 3")
    if isinstance(seeds, int):
        return tuple(seed for seed in range(1, seeds + 2) if seed != search_seed)[:seeds]
    if search_seed in checked:
        raise UserError(
            f"--seeds: {search_seed} is the seed of the search (training.seed); pass seeds that the search has not used"
        )
    return checked

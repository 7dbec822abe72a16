"""`sweep`: search settings of a recipe, and confirm the best trial on new seeds.

It writes into the folder of the search, in addition to the files in `search.py`:

    sweep.json    all trials, the confirmation and the verdict
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.config import Plain, merge, nest
from tercet.custom_code import allow_code as allow_packages
from tercet.storage import lock_folder, write_atomically
from tercet.training.recipe.recipe import load_recipe
from tercet.training.sweep.confirmation import confirm, plan_confirmation
from tercet.training.sweep.grid import GridPoint
from tercet.training.sweep.plan_search import SEEDS, Search, plan_search
from tercet.training.sweep.proposals import Sampler
from tercet.training.sweep.search import TRIALS, TrialRuns
from tercet.training.sweep.space import search_key
from tercet.training.sweep.sweep import check_sweep
from tercet.training.sweep.sweep_folder import settle_arithmetic
from tercet.training.sweep.sweep_result import RESULT, SweepResult

if TYPE_CHECKING:
    import torch


def run_search(search: Search, *, device: "str | torch.device" = "cpu", quiet: bool = False) -> SweepResult:
    """Train the trials of a planned search, and confirm the best one. The same call resumes an interrupted search.

    Args:
        search: Planned search.
        device: PyTorch device on which the runs of the confirmation are scored.
        quiet: If True, report nothing on stderr.

    Raises:
        UserError: If settings do not fit the data, another process works in the folder, or all trials failed. The
            corners of the space are checked before training starts.
        Interrupted: If a signal stopped training, after the run was saved.
    """
    if not (search.out / TRIALS).exists():
        check_sweep(search.corners, quiet=quiet)
    base = load_recipe(search.recipe, search.space.fixed_changes)
    arithmetic = settle_arithmetic(search.out, search.requested, [base])
    with lock_folder(search.out):
        runs = TrialRuns(search, arithmetic, quiet)
        best = runs.run()
        unchanged, changed = GridPoint(settings={}, changes=dict(search.space.fixed_changes)), runs.point(best)
        sweep = plan_confirmation(search.recipe, unchanged, changed, seeds=search.seeds, out=search.out)
        result = SweepResult(
            recipe=search.recipe, folder=search.out, seed=search.seed, trials=tuple(runs.trials),
            settings=tuple(runs.point(trial).settings for trial in runs.trials), best=best, changes=changed.changes,
            confirmation=None
            if sweep is None
            else confirm(sweep, sealed=search.sealed, device=device, quiet=quiet),
        )  # fmt: skip
        text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n"
        write_atomically(search.out / RESULT, text.encode())
    return result


def sweep(
    recipe: str | Path,
    *,
    vary: Mapping[str, str | Sequence[Any]],
    trials: int | None = None,
    hours: float | None = None,
    seeds: int | Sequence[int] = SEEDS,
    sampler: Sampler = "tpe",
    data: str | Path | None = None,
    sealed: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    device: "str | torch.device" = "cpu",
    quiet: bool = False,
    allow_code: str | Iterable[str] = (),
) -> SweepResult:
    """Search settings of a recipe, and confirm the best ones on new seeds, as `tercet sweep` does.

    The trials are trained by successive halving with one seed. The best trial and the recipe's own settings are then
    trained with other seeds. The best settings are called better only if the 95 % interval of the paired t-test
    excludes 0.

    Args:
        recipe: Packaged recipe, or path of a YAML file.
        vary: Keys to vary, with a list of values, or a range as text: {"training.optimizer.lr": "0.001..0.1"}.
        trials: Number of trials; by default 20, or with `hours` as many as they allow.
        hours: Hours of search and confirmation together; None for no limit.
        seeds: Number of new seeds, or a list of them.
        sampler: "tpe" (Optuna), "random" or "grid".
        data: File, folder or named dataset to use instead of the data of the recipe.
        sealed: Folder of a sealed test part, on which the runs of the confirmation are scored in one call.
        changes: Changed keys of the recipe in all trials, such as {"training.max_steps": 500}.
        out: Folder of the search; by default `swept/` and the name of the recipe. A search in it is resumed.
        device: PyTorch device on which the runs of the confirmation are scored.
        quiet: If True, do not show progress on stderr.
        allow_code: Packages that this process may import for custom parts of the recipe, such as "my_package".

    Raises:
        UserError: If the recipe or a setting is invalid, or `tpe` is requested without Optuna.
        Interrupted: If a signal stopped training, after the run was saved.
    """
    allow_packages(allow_code)
    nested_changes: Plain = {} if data is None else nest("data.source", str(data))
    for path, value in (changes or {}).items():
        nested_changes = merge(nested_changes, nest(path, value))
    search = plan_search(
        str(recipe), [search_key(key, values) for key, values in vary.items()], trials=trials, hours=hours, seeds=seeds,
        sampler=sampler, changes=nested_changes, out=None if out is None else Path(out),
        sealed=None if sealed is None else Path(sealed),
    )  # fmt: skip
    return run_search(search, device=device, quiet=quiet)

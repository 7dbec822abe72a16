"""Proposals of settings: the next trial of a search, as a function of the seed and of the results so far.

The tree-structured Parzen estimator (Bergstra et al. 2011) of Optuna draws where good results are dense and bad ones
are not; its first ten trials are random. Optuna keeps no state between two proposals: each is that of a new study to
which all results are added, with a new random generator. The same results therefore always lead to the same proposal,
and a search that was killed continues with the trial that it would have tried.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any, Literal

from tercet.config import UserError
from tercet.training.sweep.grid import VariedKey
from tercet.training.sweep.space import Coordinates, SearchKey, SearchSpace

Sampler = Literal["tpe", "random", "grid"]
SAMPLERS: tuple[Sampler, ...] = ("tpe", "random", "grid")
ATTEMPTS = 20  # draws until one was not tried before
MAX_LISTED = 10_000  # points of a space among which the untried are listed

Result = tuple[Coordinates, float | None]  # a point and its validation loss; None if the trial failed


def propose(space: SearchSpace, results: Sequence[Result], *, sampler: Sampler, seed: int) -> Coordinates | None:
    """Return the settings of the next trial; None if all were tried.

    Args:
        space: Search space.
        results: Results of all earlier trials, in order.
        sampler: Method; "grid" proposes all points in order.
        seed: Seed of the search.

    Raises:
        UserError: If Optuna is required and not installed, or a grid has a range.
    """
    tried = {coordinates for coordinates, _ in results}
    if sampler == "grid":
        return next((point for point in space.grid() if point not in tried), None)
    rng = Random(f"{seed} {len(results)}")
    for _ in range(ATTEMPTS):
        point = space.draw(rng) if sampler == "random" else _ask(space, results, rng.getrandbits(32))
        if point not in tried:
            return point
    if space.size is None or space.size > MAX_LISTED:
        return None
    untried = [point for point in space.points() if point not in tried]
    return rng.choice(untried) if untried else None


def require_optuna() -> None:
    """Check that Optuna is installed, without importing it.

    Raises:
        UserError: If it is not installed.
    """
    if find_spec("optuna") is None:
        raise UserError("--sampler tpe needs the package optuna; pip install 'tercet[sweep]', or pass --sampler random")


def _ask(space: SearchSpace, results: Sequence[Result], seed: int) -> Coordinates:
    require_optuna()
    optuna: Any = import_module("optuna")
    distributions = {one.key: _distribution(optuna, one) for one in space.keys}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it reports each study on stderr
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        for coordinates, loss in results:
            state = optuna.trial.TrialState.FAIL if loss is None else optuna.trial.TrialState.COMPLETE
            params = dict(zip(distributions, coordinates, strict=True))
            study.add_trial(
                optuna.trial.create_trial(state=state, params=params, distributions=distributions, value=loss)
            )
        params = study.ask(distributions).params
    finally:
        optuna.logging.set_verbosity(verbosity)
    return tuple(params[one.key] if isinstance(one, VariedKey) else one.round(params[one.key]) for one in space.keys)


def _distribution(optuna: Any, key: SearchKey) -> Any:
    if isinstance(key, VariedKey):
        return optuna.distributions.CategoricalDistribution(range(len(key.values)))
    kind = optuna.distributions.IntDistribution if key.is_whole else optuna.distributions.FloatDistribution
    return kind(key.low, key.high, log=key.log)

"""`train --hours`: pilot runs, a forecast that is registered, and a run that ends within the hours.

The run folder contains the results of the pilot runs and the forecast before the run starts in it. The same call
resumes an interrupted one at any point.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tercet.checkpoint.forecast import Forecast, SizeForecast, format_passes, read_forecast, register
from tercet.checkpoint.metrics import read_metrics
from tercet.checkpoint.run_record import METRICS, RECIPE, read_record
from tercet.config import UserError
from tercet.messages import counted, print_note
from tercet.storage import check_output_folder, lock_folder
from tercet.training.budget.choose import MIN_STEPS, VALIDATIONS, Work, best_of, candidates, neighbor, pilot_of
from tercet.training.budget.law import Prior
from tercet.training.budget.pilots import PilotRuns, fixed_sizes
from tercet.training.budget.priors import read_prior
from tercet.training.budget.work import measure_work
from tercet.training.distributed.launch import adapt_to_launch
from tercet.training.planning.gpus import Cluster
from tercet.training.planning.throughput import Throughput
from tercet.training.recipe.files import LENGTHS, change_settings, read_settings
from tercet.training.recipe.recipe import task_kind
from tercet.training.request import RunRequest, choose_folder, name_recipe
from tercet.training.run.train import train_resolved
from tercet.training.run_folder.choices import Resume, Until
from tercet.training.run_folder.restart import FormerRun

PILOT_SHARE = 0.15  # of the time, for pilot runs
FIRST_SIZE, FIRST_STEPS = 64, 60
LOCAL_HOURS = 0.25  # on which the lengths of pilot runs depend, if the run is planned for another machine
# Lengths of the pilot runs as shares of the time, by the distance of their size from the size that seems best.
PILOT_SHARES = ((0, 0.01), (0, 0.025), (-1, 0.02), (1, 0.035), (0, 0.05))
RESERVE = 0.02  # of the time, for the end of the run
EARLY = 0.95  # share of the time below which a run ends early, because the text is read often enough
SIZE_KEYS = ("d_model", "n_layers", "n_heads")
LAWS = {"language": "gpt"}  # recipe whose law applies, by task
REPLANNING = 0.02  # smallest relative change of the length for which the run is planned again


def forecast_hours(request: RunRequest, hours: float, *, restart: bool = False) -> Forecast:
    """Return the forecast of a run within `hours`, after pilot runs; it is registered in the run folder.

    Args:
        request: Recipe with the key `model.size`, or data of a kind for which there is one.
        hours: Hours that pilot runs and run may take together.
        restart: If True, delete the run, the forecast and the pilot runs in the folder, and start again.

    Raises:
        UserError: If the recipe has no `model.size`, sets a length, or does not fit the data; if the folder contains a
            run without a forecast, or a forecast for other hours; or if the hours are too few for a run.
        Interrupted: If a signal stopped a pilot run. The same call resumes it.
    """
    started = time.perf_counter()
    folder = choose_folder(request)
    if not restart and (forecast := read_forecast(folder)) is not None:
        if forecast.hours != hours:
            raise UserError(
                f"{folder} has a forecast for {forecast.hours:g} hours; pass --hours {forecast.hours:g} to resume the "
                "run, or another --out"
            )
        return forecast
    if not restart and (folder / RECIPE).exists():
        raise UserError(f"{folder} contains a run without a forecast; pass another --out, or --restart")
    named = name_recipe(replace(request, chooses_size=True))
    _check_request(named)
    check_output_folder(folder, "--out")
    recipe = PilotRuns(named, folder).resolve(FIRST_SIZE, FIRST_STEPS, folder, validations=1).recipe
    if adapt_to_launch(recipe).training.world_size > 1:
        raise UserError("--hours supports one device; set training.max_hours to train on several")
    if restart:
        with lock_folder(folder), FormerRun(folder, recipe) as former:
            former.delete()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        pilots = PilotRuns(named, folder, quiet=request.quiet)
        before = pilots.seconds
        forecast = _forecast(pilots, hours, lambda: before + time.perf_counter() - started)
        register(forecast, folder)
    return forecast


def train_hours(request: RunRequest, hours: float, *, restart: bool = False) -> Path:
    """Train a run within `hours`, and return its folder; the arguments and errors are those of `forecast_hours`.

    The run is planned again, from its measured speed, before the learning rate starts to fall.
    """
    forecast = forecast_hours(request, hours, restart=restart)
    folder = choose_folder(request)
    if not request.quiet:
        print_note(f"forecast: {forecast.describe()}")
    pilots = PilotRuns(name_recipe(replace(request, chooses_size=True, quiet=True)), folder)
    resolved = pilots.resolve(forecast.chosen.size, forecast.chosen.steps, folder, validations=VALIDATIONS)
    arithmetic = pilots.arithmetic
    chosen, record = forecast.chosen, read_record(folder)
    cooldown = getattr(resolved.recipe.training.schedule, "cooldown", 0.0)
    pause = int((1 - cooldown) * chosen.steps)
    if pause > 0 and (record is None or (record.total_steps == chosen.steps and record.saved < pause)):
        train_resolved(resolved, quiet=request.quiet, arithmetic=arithmetic, pause_at=pause)
        resume = _plan_again(forecast, folder, pause)
        return train_resolved(resolved, resume, quiet=request.quiet)
    return train_resolved(resolved, quiet=request.quiet, arithmetic=arithmetic)


def _check_request(request: RunRequest) -> None:
    """Check that the size and length of a request can be chosen.

    Raises:
        UserError: If the recipe has no `model.size` or no law, the request sets a length, or starts from a model.
    """
    settings = change_settings(read_settings(request.recipe), request.changes)
    model, changed = settings.get("model"), request.changes.get("training")
    recipes = " or ".join(LAWS.values())
    if request.pretrained is not None or settings.get("pretrained") is not None:
        raise UserError(
            "--hours trains a model from scratch; leave out the pretrained model, or set training.max_hours"
        )
    if not isinstance(model, Mapping) or model.get("size") is None:
        raise UserError(
            f"--hours chooses model.size, which the recipe {request.recipe} does not have; pass {recipes}, or set "
            "training.max_hours to train this recipe for a time"
        )
    stack = model.get("stack")
    if isinstance(stack, Mapping) and (key := next((key for key in SIZE_KEYS if stack.get(key)), None)):
        raise UserError(f"--hours chooses model.size, from which model.stack.{key} follows; leave it out")
    if isinstance(changed, Mapping) and (length := next((key for key in LENGTHS if changed.get(key)), None)):
        raise UserError(f"--hours and training.{length} both set the length; leave out one of them")
    if task_kind(settings, name=f"recipe {request.recipe}") not in LAWS:
        raise UserError(f"--hours supports {recipes}; set training.max_hours to train {request.recipe} for a time")


def forecast_elsewhere(request: RunRequest, hours: float, cluster: Cluster, throughput: Throughput) -> Forecast:
    """Return the forecast of a run on another machine; it is not registered.

    The pilot runs are trained on this machine, as for at most `LOCAL_HOURS`, and give the law of the text. The speed of
    a step is that of its FLOPs.

    Args:
        request: As in `forecast_hours`.
        hours: Hours of the run on the other machine.
        cluster: GPUs of the other machine.
        throughput: Speed of one of them.

    Raises:
        UserError: As in `forecast_hours`.
        Interrupted: If a signal stopped a pilot run. The same call resumes it.
    """
    named, folder = name_recipe(replace(request, chooses_size=True)), choose_folder(request)
    _check_request(named)
    check_output_folder(folder, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        pilots = PilotRuns(named, folder, quiet=request.quiet)
        work, prior = _train_pilots(pilots, 3600 * min(hours, LOCAL_HOURS))
    left = (1 - RESERVE) * 3600 * hours
    found = candidates(work, pilots.results, prior, left, flops_per_second=cluster.count * throughput.flops_per_second)
    forecast = _choose(pilots, work, found, hours=hours, left=left, cluster=cluster)
    return replace(forecast, machine=f"{cluster.describe()} at {throughput.described}")


def _forecast(pilots: PilotRuns, hours: float, spent: Callable[[], float]) -> Forecast:
    """Train the pilot runs that have no result yet, and return the forecast.

    Args:
        pilots: Pilot runs, which may have results.
        hours: Hours of pilot runs and run together.
        spent: Function that returns the seconds that have passed.
    """
    work, prior = _train_pilots(pilots, 3600 * hours)
    left = (1 - RESERVE) * 3600 * hours - spent()
    return _choose(pilots, work, candidates(work, pilots.results, prior, left), hours=hours, left=left)


def _train_pilots(pilots: PilotRuns, total: float) -> tuple[Work, Prior]:
    """Train the pilot runs that have no result yet.

    Args:
        pilots: Pilot runs, which may have results.
        total: Seconds of pilot runs and run together.

    Returns:
        The work of each size, and the prior distribution of the law.
    """
    sizes = fixed_sizes(pilots.request)
    first = pilots.train(FIRST_SIZE if FIRST_SIZE in sizes else sizes[0], FIRST_STEPS)
    work = measure_work(pilots, first, sizes)
    pilots.text = work.text
    prior = read_prior(LAWS[work.task])
    for number, (distance, share) in enumerate(PILOT_SHARES, start=1):
        if number <= pilots.decided:
            continue
        spent_on_pilots = sum(pilot.seconds for pilot in pilots.results[1:])  # the first also reads the text
        found = candidates(work, pilots.results, prior, (1 - PILOT_SHARE) * total)
        size = neighbor(best_of(found).size, distance, sizes) if found else None
        pilot = None if size is None else pilot_of(work, pilots.results, size, share * total)
        if pilot is not None and spent_on_pilots + share * total <= PILOT_SHARE * total:
            pilots.train(*pilot)
        pilots.decided = number
        pilots.save()
    return work, prior


def _choose(
    pilots: PilotRuns,
    work: Work,
    found: Sequence[SizeForecast],
    *,
    hours: float,
    left: float,
    cluster: Cluster | None = None,
) -> Forecast:
    """Return the forecast with the best of the sizes that were found, on this machine or on a cluster.

    Raises:
        UserError: If there are none.
    """
    if not found:
        raise UserError(f"--hours {hours:g} leaves no time for {MIN_STEPS} steps of any size; pass more hours")
    from tercet.training.planning.plan_run import step_bytes

    chosen = best_of(found)
    recipe = pilots.resolve(chosen.size, chosen.steps, pilots.folder, validations=VALIDATIONS).recipe
    return Forecast(
        hours=hours, chosen=chosen, candidates=tuple(found), pilots=tuple(pilots.results),
        unique_tokens=work.text.unique_tokens, unigram_loss=work.unigram_loss, unit=work.unit, seconds_left=left,
        memory_bytes=step_bytes(recipe.with_vocabulary(work.text.vocab_size), cluster),
        reasons=tuple(_reasons(chosen, found, pilots, is_limited_by_text=_is_limited_by_text(chosen, left))),
    )  # fmt: skip


def _is_limited_by_text(chosen: SizeForecast, seconds_left: float) -> bool:
    return chosen.seconds < EARLY * seconds_left


def _reasons(
    chosen: SizeForecast, found: Sequence[SizeForecast], pilots: PilotRuns, *, is_limited_by_text: bool
) -> Iterator[str]:
    """Yield the reasons for a choice, in three sentences."""
    others = [other for other in found if abs(found.index(other) - found.index(chosen)) == 1]
    worse = " and ".join(f"size {other.size} {other.loss:.3f}" for other in others)
    yield f"In this time, size {chosen.size} is expected to reach {chosen.loss:.3f}" + (
        f", and {worse}." if worse else "."
    )
    yield f"The run reads the text in {format_passes(chosen.passes)}" + (
        ", after which more training would make the model worse, so it ends early." if is_limited_by_text else "."
    )
    runs = counted(len(pilots.results), "pilot run", "pilot runs")
    yield f"The interval is from {runs} of {pilots.seconds:.0f} s and from trainings on other texts."


def _plan_again(forecast: Forecast, folder: Path, step: int) -> Resume:
    """Return the start of the rest of a run, with another length if its speed is not the expected one."""
    seconds = read_metrics(folder / METRICS)["seconds"][-1][1]
    left = (1 - RESERVE) * forecast.seconds_left - seconds
    steps = step + int(left / (seconds / step))
    planned = forecast.chosen.steps
    if _is_limited_by_text(forecast.chosen, forecast.seconds_left):
        steps = min(steps, planned)
    if abs(steps - planned) <= REPLANNING * planned or steps <= step:
        return Resume()
    return Resume(Until(steps))

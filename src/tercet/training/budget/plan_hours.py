"""Forecast a run for this machine or another one; arguments are checked before torch is imported."""

from pathlib import Path

from tercet.checkpoint.forecast import Forecast
from tercet.config import UserError
from tercet.training.planning.gpus import parse_cluster
from tercet.training.planning.plan_recipe import check_speed
from tercet.training.request import RunRequest


def plan_hours(
    request: RunRequest,
    hours: float,
    *,
    gpus: str | None = None,
    mfu: float | None = None,
    measured: str | None = None,
    restart: bool = False,
) -> Forecast:
    """Return the forecast of a run within `hours`, on this machine or on a cluster.

    Args:
        request: Recipe with the key `model.size`, or data of a kind for which there is one.
        hours: Hours of the run; on this machine, with the pilot runs.
        gpus: GPUs of another machine, such as "1xH100"; None for this machine, whose forecast is registered.
        mfu: Assumed share of the peak of the GPUs.
        measured: Folder of a run on such a GPU, whose speed is assumed.
        restart: If True, delete the run, the forecast and the pilot runs in the folder, and start again.

    Raises:
        UserError: If the arguments do not fit together, and as in `forecast_hours`.
        Interrupted: If a signal stopped a pilot run. The same call resumes it.
    """
    if gpus is None:
        if flag := "--mfu" if mfu is not None else "--measured" if measured is not None else None:
            raise UserError(f"{flag} with --hours is for another machine; pass --gpus, such as --gpus 1xH100")

        from tercet.training.budget.train_hours import forecast_hours

        return forecast_hours(request, hours, restart=restart)
    cluster = parse_cluster(gpus)
    if mfu is None and measured is None:
        raise UserError("--gpus with --hours requires the speed of a GPU; pass --mfu SHARE or --measured RUN")
    if restart:
        raise UserError("--restart has no effect with --gpus, whose forecast is not registered; leave it out")
    check_speed(mfu=mfu, measured=measured)

    from tercet.training.budget.train_hours import forecast_elsewhere
    from tercet.training.planning.throughput import assume, measure_run

    throughput = measure_run(Path(measured), cluster.gpu) if measured is not None else assume(mfu or 0.0, cluster.gpu)
    return forecast_elsewhere(request, hours, cluster, throughput)

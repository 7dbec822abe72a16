"""Plan a recipe given by name and flags; arguments are checked before torch is imported."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tercet.config import UserError
from tercet.spec import Interval, ShareAboveZero, check_range
from tercet.training.planning.gpus import parse_cluster
from tercet.training.request import RunRequest, find_run, resolve

if TYPE_CHECKING:
    from tercet.training.planning.run_plan import RunPlan

Price = Annotated[float, Interval(ge=0, le=10**6)]  # per GPU and hour


def plan_recipe(
    request: RunRequest,
    *,
    gpus: str | None = None,
    mfu: float | None = None,
    measured: str | None = None,
    here: bool = False,
    price: float | None = None,
    progress: bool = False,
) -> "RunPlan":
    """Return the memory, time and cost that a run requires.

    The arguments after `request` are those of `tercet.plan`.

    Raises:
        UserError: If the recipe or GPU does not exist, a number is out of range, or arguments do not fit together.
    """
    if price is not None:
        _check("--price", price, Price)
    check_speed(mfu=mfu, measured=measured, here=here)
    if price is not None and not (mfu or measured or here):
        raise UserError("--price requires the duration; also pass --mfu SHARE, --measured RUN or --here")
    cluster = None if gpus is None else parse_cluster(gpus)
    if mfu is not None and cluster is None:
        raise UserError("--mfu requires the peak of a GPU; pass --gpus, such as --gpus 8xH100")
    recipe = resolve(request).recipe

    from tercet.training.planning.plan_run import plan_run

    return plan_run(
        request.recipe, recipe, cluster=cluster, mfu=mfu, measured=None if measured is None else Path(measured),
        here=here, price=price, progress=progress,
    )  # fmt: skip


def check_speed(*, mfu: float | None = None, measured: str | None = None, here: bool = False) -> None:
    """Check the arguments that set the speed of a device; see `tercet.plan`.

    Raises:
        UserError: If the MFU is out of range, two of them are set, or `measured` is not a run folder.
    """
    if mfu is not None:
        _check("--mfu", mfu, ShareAboveZero)
    flags = [flag for flag, has in (("--mfu", mfu), ("--measured", measured), ("--here", here)) if has]
    if len(flags) > 1:
        raise UserError(f"{flags[0]} and {flags[1]} both set the speed of a device; leave out one of them")
    if measured is not None and (not Path(measured).is_dir() or find_run(measured) is None):
        raise UserError(f"--measured {measured}: not a run folder; pass one such as runs/mine")


def _check(flag: str, value: float, annotation: object) -> None:
    try:
        check_range(flag, value, annotation)
    except ValueError as error:
        raise UserError(str(error)) from None

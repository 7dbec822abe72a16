"""A run is finished: its picture is drawn, and what it has kept is compared with what was written."""

from contextlib import suppress
from dataclasses import replace

from tercet.training.run.reports import log, report_changes
from tercet.training.run.states import FinishedRun, StartedRun, TrainedRun
from tercet.training.run_folder.changes import describe_end
from tercet.training.run_folder.checkpoints import METRICS
from tercet.training.run_folder.folder import check_finished


class Interrupted(Exception):
    """The run was stopped by a signal, after it was saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


def finish_run(trained_model: TrainedRun) -> FinishedRun:
    """Finish a run after its last step.

    Raises:
        Interrupted: If a signal has stopped it.
        UserError: If what it has kept is damaged.
    """
    opened = trained_model.started.locked.opened
    if opened.primary:
        _close(trained_model)
    if trained_model.signal is not None:
        raise Interrupted(trained_model.signal, f"saved in {opened.folder}; the same command goes on from there")
    hours = opened.recipe.training.max_hours
    if opened.primary and hours is not None:
        from tercet.checkpoint.metrics import read_metrics

        took = read_metrics(opened.folder / METRICS)["seconds"][-1][1] / 3600
        log(f"{took:.2f} of {hours:g} hours", opened.quiet)
    return FinishedRun(opened.folder)


def describe_finished(started: StartedRun) -> FinishedRun:
    """Report that a run was at its end already.

    Raises:
        UserError: If what it has kept is damaged.
    """
    opened, former, record = started.locked.opened, started.locked.former, started.record
    check_finished(opened.folder, record)
    if opened.primary and started.changes:
        report_changes(started.changes, opened.quiet)
        record.write(opened.folder)
    choices = "--more STEPS goes on, another --out trains again, --restart begins anew"
    log(f"{opened.folder} is already finished: {describe_end(record, former.training)}; {choices}", opened.quiet)
    return FinishedRun(opened.folder)


def _close(trained_model: TrainedRun) -> None:
    from tercet.plots import NothingToDraw, plot_loss, save

    started, opened = trained_model.started, trained_model.started.locked.opened
    out = opened.folder
    started.locked.checkpoints.remove_old()  # also of one that was killed before it could
    with suppress(NothingToDraw):  # a loss of 0 from the first step on, as over a vocabulary of one
        if (out / METRICS).exists():
            save(plot_loss(out / METRICS, title=out.name), out / "loss.png")
    record = replace(
        trained_model.record.update_saved(out, trained_model.record.saved), finished=trained_model.signal is None
    )
    record.write(out)
    if record.finished:
        check_finished(out, record)  # what was saved before it was resumed may have been damaged since
        if record.saved < started.task.plan.steps:
            more = "--more STEPS or a larger training.patience goes on"
            log(f"{describe_end(record, opened.recipe.training)}; {more}", opened.quiet)

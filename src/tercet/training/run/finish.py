"""Last stage of a run: plot the loss, write the final record, and verify the saved files."""

from contextlib import suppress
from dataclasses import replace

from tercet.training.run.reports import log, report_changes
from tercet.training.run.states import FinishedRun, StartedRun, TrainedRun
from tercet.training.run_folder.changes import describe_end
from tercet.training.run_folder.checkpoints import METRICS
from tercet.training.run_folder.folder import check_finished


class Interrupted(Exception):
    """The run was saved, and then stopped because the process received a signal.

    Attributes:
        signal: Number of the signal.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


def finish_run(trained_run: TrainedRun) -> FinishedRun:
    """Remove old checkpoints, plot the loss, write the record, and verify the files of a run whose training has ended.

    Only the first process does this.

    Raises:
        Interrupted: If a signal stopped the run; its loss is plotted and its record is written before.
        UserError: If a saved file is damaged.
    """
    opened_run = trained_run.started_run.locked_run.opened_run
    if opened_run.primary:
        _close(trained_run)
    if trained_run.signal is not None:
        raise Interrupted(trained_run.signal, f"saved in {opened_run.folder}; run the same command again to resume")
    hours = opened_run.recipe.training.max_hours
    if opened_run.primary and hours is not None:
        from tercet.checkpoint.metrics import read_metrics

        took = read_metrics(opened_run.folder / METRICS)["seconds"][-1][1] / 3600
        log(f"trained for {took:.2f} of {hours:g} hours", opened_run.quiet)
    return FinishedRun(opened_run.folder)


def describe_finished(started_run: StartedRun) -> FinishedRun:
    """Verify a run that was already finished, record its changes, and report how to train it further.

    Raises:
        UserError: If a saved file is damaged.
    """
    opened_run, former, record = started_run.locked_run.opened_run, started_run.locked_run.former, started_run.record
    check_finished(opened_run.folder, record)
    if opened_run.primary and started_run.changes:
        report_changes(started_run.changes, opened_run.quiet)
        record.write(opened_run.folder)
    choices = "pass --more STEPS to train longer, another --out for a second run, or --restart to start again"
    log(
        f"{opened_run.folder} is already finished: {describe_end(record, former.training)}; {choices}", opened_run.quiet
    )
    return FinishedRun(opened_run.folder)


def _close(trained_run: TrainedRun) -> None:
    from tercet.plots import NothingToDraw, plot_loss, save

    started_run, opened_run = trained_run.started_run, trained_run.started_run.locked_run.opened_run
    out = opened_run.folder
    started_run.locked_run.checkpoints.remove_old()  # also those of a process that was killed before it removed them
    with suppress(NothingToDraw):  # a loss that is always 0, such as with a vocabulary of one token
        if (out / METRICS).exists():
            save(plot_loss(out / METRICS, title=out.name), out / "loss.png")
    record = replace(
        trained_run.record.update_saved(out, trained_run.record.saved),
        finished=trained_run.signal is None and not trained_run.is_paused,
    )
    record.write(out)
    if record.finished:
        check_finished(out, record)  # older files may have been damaged since they were saved
        if record.saved < started_run.task.plan.steps:
            hint = "to continue, pass --more STEPS or a larger training.patience"
            log(f"{describe_end(record, opened_run.recipe.training)}; {hint}", opened_run.quiet)

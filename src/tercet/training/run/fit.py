"""A run is trained, from where it starts until its end, a signal, or patience runs out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tercet.checkpoint.run_record import RunRecord, read_record
from tercet.config import UserError
from tercet.storage import refusal
from tercet.training.run.export import export_to
from tercet.training.run.reports import explain_length, log, report_arithmetic, report_changes, report_start
from tercet.training.run.states import StartedRun, TrainedRun
from tercet.training.run_folder.choices import Resume
from tercet.training.run_folder.folder import check_checkpoint, restore_metrics


class RunNotes:
    """What the run notes of itself, in `run.json`, while it is trained."""

    def __init__(self, started: StartedRun) -> None:
        self.record, self._started, self._folder = started.record, started, started.locked.opened.folder

    def begin(self) -> None:
        """Make the folder that of the run that goes on, in its record first, and then in its figures."""
        from tercet.kernel import kernel_threads

        point = self._started.locked.point
        if self._started.changes or self.record.finished:
            self._write(replace(self.record, finished=False))
        restore_metrics(self._folder, point)
        self._write(replace(self.record, threads=kernel_threads()).update_saved(self._folder, point.step))

    def save(self, step: int) -> None:
        """Note that `step` steps are saved."""
        self._write(self.record.update_saved(self._folder, step))
        self._started.locked.checkpoints.remove_old()

    def save_micro_batch(self, step: int, micro: int) -> None:
        """Note that from `step` on, counted from 0, a device holds `micro` rows at once."""
        self.record = read_record(self._folder) or self.record  # as another process may have written it
        if self.record.micro_batch is None or self.record.micro_batch > micro:
            self._write(replace(self.record, micro_batches=(*self.record.micro_batches, (step, micro))))

    def _write(self, record: RunRecord) -> None:
        self.record = record
        record.write(self._folder)


class RunDiverged(UserError):
    """The loss or a gradient is no longer a number: this recipe does not learn."""


def train_run(started: StartedRun) -> TrainedRun:
    """Train a run that is not at its end.

    Raises:
        RunDiverged: If the loss is no longer a number.
        RankLost: If another of the run's processes is gone.
        UserError: If the checkpoint is not that of the model, an exact end cannot be had, or a device is too small.
    """
    from tercet.training.compute.auto_arithmetic import matmul_precision
    from tercet.training.loop.fit import TrainingLoop
    from tercet.training.loop.module import NonFiniteLoss
    from tercet.training.loop.out_of_memory import OutOfMemory, is_out_of_memory, remedies

    opened, checkpoints, point = started.locked.opened, started.locked.checkpoints, started.locked.point
    out, recipe, exact = opened.folder, started.task.recipe, _is_exact(started)
    arithmetic = _describe_arithmetic(started)
    if point.checkpoint is not None:
        check_checkpoint(point.checkpoint, started.model, recipe, fp16=started.record.precision == "fp16")
    notes = RunNotes(started)
    if opened.primary:
        _report(started, arithmetic, exact=exact)
        notes.begin()
    loop = TrainingLoop(
        task=started.task, model=started.model, out=out, start=point, checkpoints=checkpoints,
        arithmetic=arithmetic, precision=started.record.precision, compiled=started.record.compile,
        export=export_to(started.task, out, started.record.changes),
        save_record=notes.save, save_micro_batch=notes.save_micro_batch, exact=exact, quiet=opened.quiet,
    )  # fmt: skip
    try:
        with matmul_precision(started.record.matmul):
            signal = loop.run()
    except NonFiniteLoss as error:
        step = notes.record.saved
        saved = f"the checkpoint of step {step} is kept in {out}" if step else "nothing was saved yet"
        raise RunDiverged(f"{error}; {saved}: try a smaller training.optimizer.lr, or clip_norm") from None
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"out of memory outside of a step's passes: {remedies(recipe)}") from None
        raise
    except OSError as error:
        raise refusal(Path(error.filename or out), error) from None
    return TrainedRun(started=started, record=notes.record, signal=signal)


def _is_exact(started: StartedRun) -> bool:
    start = started.locked.opened.start
    return isinstance(start, Resume) and start.exact


def _describe_arithmetic(started: StartedRun) -> Mapping[str, str]:
    from tercet.training.distributed.devices import accelerator
    from tercet.training.run_folder.arithmetic import describe_arithmetic

    spec, record = started.task.recipe.training, started.record
    return describe_arithmetic(
        accelerator=accelerator(spec), precision=record.precision, matmul=record.matmul, micro=record.micro_batch,
        compiled=record.compile != "never", ranks=1 if spec.exact else spec.world_size,
    )  # fmt: skip


def _report(started: StartedRun, arithmetic: Mapping[str, str], *, exact: bool) -> None:
    """Raises:
    UserError: If an exact end is requested and cannot be had.
    """
    opened, point, task = started.locked.opened, started.locked.point, started.task
    length = explain_length(opened.folder, task, started.changes, exact=exact)
    report_changes(started.changes, opened.quiet)
    report_start(opened.folder, point, started.locked.checkpoints, task.plan.steps, opened.quiet)
    report_arithmetic(opened.folder, point, arithmetic, exact=exact)
    if length is not None:
        log(length, opened.quiet)

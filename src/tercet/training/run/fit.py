"""Fourth stage of a run: train until its last step, a signal, or the end of patience."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tercet.checkpoint.run_record import RunRecord, read_record
from tercet.config import UserError
from tercet.storage import write_failure
from tercet.training.run.export import export_to
from tercet.training.run.reports import explain_length, log, report_arithmetic, report_changes, report_start
from tercet.training.run.states import StartedRun, TrainedRun
from tercet.training.run_folder.choices import Resume
from tercet.training.run_folder.folder import check_checkpoint, restore_metrics


class RecordWriter:
    """Keeps the record of a run, `run.json`, up to date while the run trains."""

    def __init__(self, started_run: StartedRun) -> None:
        self.record, self._started_run, self._folder = (
            started_run.record,
            started_run,
            started_run.locked_run.opened_run.folder,
        )

    def begin(self) -> None:
        """Set the record and the metrics in the run folder to the step at which training starts."""
        from tercet.kernel import kernel_threads

        point = self._started_run.locked_run.point
        if self._started_run.changes or self.record.finished:
            self._write(replace(self.record, finished=False))
        restore_metrics(self._folder, point)
        self._write(replace(self.record, threads=kernel_threads()).update_saved(self._folder, point.step))

    def save(self, step: int) -> None:
        """Record that `step` steps are saved, and remove old checkpoints."""
        self._write(self.record.update_saved(self._folder, step))
        self._started_run.locked_run.checkpoints.remove_old()

    def save_micro_batch(self, step: int, micro: int) -> None:
        """Record a smaller micro-batch size, unless the record already has one as small.

        Args:
            step: First step with this size, counted from 0.
            micro: Rows per micro-batch, or tokens per side for translation.
        """
        self.record = read_record(self._folder) or self.record  # another process may have written it
        if self.record.micro_batch is None or self.record.micro_batch > micro:
            self._write(replace(self.record, micro_batches=(*self.record.micro_batches, (step, micro))))

    def _write(self, record: RunRecord) -> None:
        self.record = record
        record.write(self._folder)


class RunDiverged(UserError):
    """The loss or a gradient is not finite: training with this recipe diverged."""


def train_run(started_run: StartedRun) -> TrainedRun:
    """Train a run that is not finished, from its start point.

    Raises:
        RunDiverged: If the loss or a gradient is not finite.
        RankLost: If another rank is lost.
        UserError: If the checkpoint does not match the model, the run cannot be resumed exactly, or a device does not
            have enough memory.
    """
    from tercet.training.compute.auto_arithmetic import matmul_precision
    from tercet.training.loop.fit import TrainingLoop
    from tercet.training.loop.module import NonFiniteLoss
    from tercet.training.loop.out_of_memory import OutOfMemory, is_out_of_memory, remedies

    opened_run, checkpoints, point = (
        started_run.locked_run.opened_run,
        started_run.locked_run.checkpoints,
        started_run.locked_run.point,
    )
    out, recipe, exact = opened_run.folder, started_run.task.recipe, _is_exact(started_run)
    arithmetic = _describe_arithmetic(started_run)
    if point.checkpoint is not None:
        check_checkpoint(point.checkpoint, started_run.model, recipe, fp16=started_run.record.precision == "fp16")
    record_writer = RecordWriter(started_run)
    if opened_run.primary:
        _report(started_run, arithmetic, exact=exact)
        record_writer.begin()
    loop = TrainingLoop(
        task=started_run.task, model=started_run.model, out=out, start=point, checkpoints=checkpoints,
        arithmetic=arithmetic, precision=started_run.record.precision, compile_mode=started_run.record.compile,
        export=export_to(started_run.task, out, started_run.record.changes),
        save_record=record_writer.save, save_micro_batch=record_writer.save_micro_batch, exact=exact,
        pause_at=opened_run.pause_at, quiet=opened_run.quiet,
    )  # fmt: skip
    try:
        with matmul_precision(started_run.record.matmul):
            signal = loop.run()
    except NonFiniteLoss as error:
        step = record_writer.record.saved
        checkpoint = f"the checkpoint of step {step} is kept in {out}" if step else "nothing was saved"
        raise RunDiverged(f"{error}; {checkpoint}: reduce training.optimizer.lr, or set training.clip_norm") from None
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"out of memory outside of the forward and backward passes: {remedies(recipe)}") from None
        raise
    except OSError as error:
        raise write_failure(Path(error.filename or out), error) from None
    return TrainedRun(started_run=started_run, record=record_writer.record, signal=signal)


def _is_exact(started_run: StartedRun) -> bool:
    start = started_run.locked_run.opened_run.start
    return isinstance(start, Resume) and start.exact


def _describe_arithmetic(started_run: StartedRun) -> Mapping[str, str]:
    from tercet.training.distributed.devices import accelerator
    from tercet.training.run_folder.arithmetic import describe_arithmetic

    spec, record = started_run.task.recipe.training, started_run.record
    return describe_arithmetic(
        accelerator=accelerator(spec), precision=record.precision, matmul=record.matmul, micro=record.micro_batch,
        compiled=record.compile != "never", ranks=1 if spec.exact else spec.world_size,
    )  # fmt: skip


def _report(started_run: StartedRun, arithmetic: Mapping[str, str], *, exact: bool) -> None:
    """Report on stderr the start point of the run, and changes of its settings and numerical environment.

    Raises:
        UserError: If an exact resume is requested and is not possible.
    """
    opened_run, point, task = started_run.locked_run.opened_run, started_run.locked_run.point, started_run.task
    length = explain_length(opened_run.folder, task, started_run.changes, exact=exact)
    report_changes(started_run.changes, opened_run.quiet)
    report_start(point, started_run.locked_run.checkpoints, task.plan.steps, opened_run.quiet)
    report_arithmetic(opened_run.folder, point, arithmetic, exact=exact)
    if length is not None:
        log(length, opened_run.quiet)

"""`train`: from a recipe to a run folder. The same call on the same folder goes on where the last one stopped.

What a user can have got wrong is looked at first: what needs no tensor before torch is imported, the rest before
Lightning is.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tercet.checkpoint.run_record import RECIPE, RECORD, Change, RunRecord, read_record
from tercet.config import UserError, to_plain
from tercet.data.find_sources import check_sources
from tercet.memory import keep_memory
from tercet.models import stack_specs
from tercet.settings_yaml import write_yaml
from tercet.storage import lock_folder, refusal, write_atomically
from tercet.training.distributed.launch import as_launched
from tercet.training.loop.loggers import check_loggers
from tercet.training.optim.trainable import set_trainable, trainable_parameters
from tercet.training.recipe.pretrained import load_pretrained_weights, pretrained_folder, save_copy
from tercet.training.recipe.recipe import Recipe
from tercet.training.run_folder.changes import (
    can_go_on,
    check_devices,
    check_length,
    describe_end,
    list_changes,
    plan_with_changes,
)
from tercet.training.run_folder.checkpoints import METRICS, Checkpoints
from tercet.training.run_folder.folder import (
    Start,
    check_checkpoint,
    check_finished,
    find_recipes,
    find_record,
    find_start,
    recipes_of,
    remove_run,
    restore_metrics,
)
from tercet.training.run_reports import (
    describe_sizes,
    explain_length,
    log,
    report_arithmetic,
    report_changes,
    report_start,
)

if TYPE_CHECKING:
    import torch

    from tercet.checkpoint import Trained
    from tercet.models import AnyModel
    from tercet.training.tasks.task import Task


class Interrupted(Exception):
    """The run was stopped by a signal, after it was saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


class RunDiverged(UserError):
    """The loss or a gradient is no longer a number: this recipe does not learn."""


def train(
    recipe: Recipe,
    out: Path | str,
    *,
    own: bool = False,
    more: int | None = None,
    until: int | None = None,
    quiet: bool = False,
    restart: bool = False,
    from_weights: bool = False,
    exact: bool = False,
    arithmetic: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Train as the recipe says; return the run's folder.

    Args:
        out: the run's folder; made where it is missing, resumed where it holds a run of the same recipe.
        own: the recipe is the one of the run in `out` as it is now, with changes laid over it, and not the one that
            this was begun with.
        more: steps beyond the run's end, as it is planned now.
        until: steps in all, in place of those that are planned.
        quiet: no progress on stderr.
        restart: delete the run that is there, and begin anew.
        from_weights: where every checkpoint of the run is lost, go on from the weights of its last model, with an
            optimizer that remembers nothing.
        exact: go on only where the end is that of an unbroken run to the last bit.
        arithmetic: the `precision` and `matmul` that a run which begins takes, where they were settled for several
            runs together; measured by default.
        notes: Lines about the recipe, which are reported when the run begins.

    Raises:
        UserError: where data or settings don't fit, the folder holds a run with other settings or another process owns
            it, or what the run would go on from is lost.
        RunDiverged: where the loss is no longer a number.
        RankLost: where another of the run's processes is gone.
        Interrupted: after a Ctrl-C or SIGTERM, when everything is saved.
    """
    out, recipe = Path(out), as_launched(recipe)
    quiet = quiet or not _is_primary(recipe)
    _check_together({"--from-weights": from_weights, "--restart": restart, "--exact": exact, "--more": more is not None,
                     "--until": until is not None})  # fmt: skip
    before, now = None, recipe
    find = partial(find_recipes, out, recipe, own=own, more=more, until=until, from_weights=from_weights)
    if not restart:
        before, now, recipe = find()
    check_sources(recipe.data)
    check_loggers(recipe.logging)
    keep_memory()
    with ExitStack() as stack:
        primary, begun = _is_primary(recipe), (out / RECIPE).exists() or (out / RECORD).exists()
        if primary and begun:
            stack.enter_context(lock_folder(out))
        if not restart and find_record(out, from_weights=from_weights) != before:
            before, now, recipe = find()  # another process was here until now
        if primary and restart:
            remove_run(out, recipe)
        checkpoints = Checkpoints(out, recipe.training.keep)
        longer = before is not None and before.finished and can_go_on(before, now, recipe)
        start = find_start(out, checkpoints, from_weights=from_weights, longer=longer)
        if primary and start.weights is not None and before is None:
            (out / RECORD).unlink(missing_ok=True)  # a damaged one; what it said is settled anew
        stack.enter_context(_threads(recipe))
        task, model, old = _build(recipe, out, quiet)
        if primary and not begun:
            _make_folder(out)
            stack.enter_context(lock_folder(out))
            recipes_of(out, recipe, read_record(out))  # another process may have been here meanwhile
            start = find_start(out, checkpoints, from_weights=from_weights)
            for note in notes:
                log(note, quiet)
        record = _settle(out, task, model, old, quiet, arithmetic)
        if record.steps is None:
            record = replace(record, steps=plan_with_changes(task.plan, now.training, record).steps)
        task.micro = record.micro_batch or task.micro
        changes: tuple[Change, ...] = ()
        if before is not None:
            check_devices(out, now, recipe)
            check_length(out, now, recipe, record, task.plan.steps)
            step = record.saved if record.finished and not longer else start.step
            changes = list_changes(now, recipe, step=step, steps=task.plan.steps)
            record = replace(record, changes=(*record.changes, *changes))
        task.plan = plan_with_changes(task.plan, now.training, record)
        if not record.finished or longer:
            _train(task, model, out, record, start, checkpoints, changes=changes, exact=exact, quiet=quiet)
            return out
        check_finished(out, record)
        if primary and changes:
            report_changes(changes, quiet)
            record.write(out)
        choices = "--more STEPS goes on, another --out trains again, --restart begins anew"
        log(f"{out} is already finished: {describe_end(record, now.training)}; {choices}", quiet)
    return out


def _threads(recipe: Recipe) -> AbstractContextManager[None]:
    from tercet.training.compute.threads import process_threads  # with torch, of which nothing above has need

    return process_threads(recipe.training)


def _build(recipe: Recipe, out: Path, quiet: bool) -> "tuple[Task, AnyModel, Trained | None]":
    """The task, the model as it begins, and the one that it was begun with."""
    from tercet.checkpoint import load_model
    from tercet.kernel import warm_up
    from tercet.models import build, stacks_of
    from tercet.training.distributed.devices import check_exact
    from tercet.training.tasks.open_task import task_of

    old = None if recipe.pretrained is None else load_model(pretrained_folder(recipe.pretrained, out))
    task = task_of(recipe, pretrained=old, progress=not quiet)
    try:
        model = build(task.recipe.model, seed=recipe.training.seed)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    for stack in stacks_of(model):
        stack.activation_checkpointing = recipe.training.activation_checkpointing
    new: tuple[str, ...] = ()
    if old is not None:
        taken = load_pretrained_weights(model, old.model, str(recipe.pretrained))
        new = taken.new
        if not (out / RECORD).exists():
            of = str(recipe.pretrained)
            log(f"{taken.describe(of)}; {describe_sizes(task.recipe.model, old.model.spec)}", quiet)
    set_trainable(model, new, freeze=recipe.freeze, adapter=recipe.adapter, seed=recipe.training.seed)
    warm_up()  # before anything is timed, and after every mistake has been told
    check_exact(recipe.training)
    return task, model, old


def _train(
    task: "Task",
    model: "AnyModel",
    out: Path,
    record: RunRecord,
    start: Start,
    checkpoints: Checkpoints,
    *,
    changes: Sequence[Change],
    exact: bool,
    quiet: bool,
) -> None:
    """Train from `start` on; `changes` are those of the record that are not written down yet."""
    from tercet.checkpoint.metrics import read_metrics
    from tercet.kernel import kernel_threads
    from tercet.plots import NothingToDraw, plot_loss, save
    from tercet.training.compute.auto_arithmetic import matmul_precision
    from tercet.training.distributed.devices import accelerator
    from tercet.training.loop.fit import fit
    from tercet.training.loop.module import NonFiniteLoss
    from tercet.training.loop.out_of_memory import OutOfMemory, is_out_of_memory, remedies
    from tercet.training.run_folder.arithmetic import describe_arithmetic

    recipe, spec, primary = task.recipe, task.recipe.training, _is_primary(task.recipe)
    arithmetic = describe_arithmetic(
        accelerator=accelerator(spec), precision=record.precision, matmul=record.matmul, micro=record.micro_batch,
        compiled=record.compile != "never", ranks=1 if spec.exact else spec.world_size,
    )  # fmt: skip
    if start.checkpoint is not None:
        check_checkpoint(start.checkpoint, model, recipe, fp16=record.precision == "fp16")
    if primary:
        length = explain_length(out, task, changes, exact=exact)
        report_changes(changes, quiet)
        report_start(out, start, checkpoints, task.plan.steps, quiet)
        report_arithmetic(out, start, arithmetic, exact=exact)
        if length is not None:
            log(length, quiet)
        if changes or record.finished:  # before any other file is touched: from here on it is the run that goes on
            record = replace(record, finished=False)
            record.write(out)
        restore_metrics(out, start)
        record = replace(record, threads=kernel_threads()).saved_at(out, start.step)
        record.write(out)

    def save_record(step: int) -> None:
        nonlocal record
        record = record.saved_at(out, step)
        record.write(out)
        checkpoints.remove_old()

    def save_micro_batch(step: int, micro: int) -> None:
        nonlocal record
        record = read_record(out) or record  # as another process may have written it
        if record.micro_batch is None or record.micro_batch > micro:
            record = replace(record, micro_batches=(*record.micro_batches, (step, micro)))
            record.write(out)

    try:
        with matmul_precision(record.matmul):
            signal = fit(
                task, model, out, start=start, checkpoints=checkpoints, arithmetic=arithmetic,
                precision=record.precision, compiled=record.compile, export=_export_to(task, out, record.changes),
                save_record=save_record, save_micro_batch=save_micro_batch, exact=exact, quiet=quiet,
            )  # fmt: skip
    except NonFiniteLoss as error:
        saved = f"the checkpoint of step {record.saved} is kept in {out}" if record.saved else "nothing was saved yet"
        raise RunDiverged(f"{error}; {saved}: try a smaller training.optimizer.lr, or clip_norm") from None
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"out of memory outside of a step's passes: {remedies(recipe)}") from None
        raise
    except OSError as error:
        raise refusal(Path(error.filename or out), error) from None
    if primary:
        checkpoints.remove_old()  # also of one that was killed before it could
        with suppress(NothingToDraw):  # a loss of 0 from the first step on, as over a vocabulary of one
            if (out / METRICS).exists():
                save(plot_loss(out / METRICS, title=out.name), out / "loss.png")
        record = replace(record.saved_at(out, record.saved), finished=signal is None)
        record.write(out)
        if record.finished:
            check_finished(out, record)  # what was saved before it was resumed may have been damaged since
            if record.saved < task.plan.steps:
                more = "--more STEPS or a larger training.patience goes on"
                log(f"{describe_end(record, recipe.training)}; {more}", quiet)
    if signal is not None:
        raise Interrupted(signal, f"saved in {out}; the same command goes on from there")
    if primary and recipe.training.max_hours is not None:
        took = read_metrics(out / METRICS)["seconds"][-1][1] / 3600
        log(f"{took:.2f} of {recipe.training.max_hours:g} hours", quiet)


def _settle(
    out: Path, task: "Task", model: "AnyModel", old: "Trained | None", quiet: bool, arithmetic: Mapping[str, Any] | None
) -> RunRecord:
    """What `auto` came to and which data it was: settled once, when a run begins, and kept through every resumption."""
    from tercet.training.compute.auto_arithmetic import choose_arithmetic, matmul_precision
    from tercet.training.compute.choose_compile import choose_compile
    from tercet.training.compute.speed import speed
    from tercet.training.distributed.devices import wait_for_file
    from tercet.training.planning.find_micro_batch import describe_micro_batch, find_micro_batch

    spec = task.recipe.training
    if not _is_primary(task.recipe):
        wait_for_file(out / RECORD)
    record = read_record(out)
    if record is not None:
        if (record.data, record.tokenizer) != (task.data_hash, task.tokenizer_hash):
            raise UserError(f"the data has changed since {out} was begun; give another --out, or --restart")
        return record
    chosen = arithmetic or choose_arithmetic(spec)
    precision, matmul = chosen["precision"], chosen["matmul"]
    micro_batches: tuple[tuple[int, int], ...] = ()
    if task.recipe.task.finds_micro_batch:
        task.micro = find_micro_batch(task.recipe, precision)
        micro_batches = ((0, task.micro),)
        log(describe_micro_batch(task.recipe, task.micro), quiet)
    with matmul_precision(matmul):
        compiled, why = choose_compile(task, model, precision)
        if spec.max_hours is not None:
            measured = speed(task, model, precision=precision, compiled=compiled)
            task.plan = measured.plan(task.plan, spec)
            log(measured.describe(task.plan, spec), quiet)
    parameters, learn = (sum(p.numel() for p in some) for some in (model.parameters(), trainable_parameters(model)))
    learning = "" if learn == parameters else f" of which {learn:,} learn"
    described = f"{precision} by oneDNN" if (precision, matmul) == ("fp32", "medium") else precision
    log(f"{parameters:,} parameters{learning}, {task.describe()}, {task.plan.steps:,} steps; {described}, "
        f"{'not compiled' if compiled == 'never' else 'compiled'} ({why})", quiet)  # fmt: skip
    if any(stack.placement == "post" for stack in stack_specs(task.recipe.model)) and not spec.warmup_steps:
        log("post-norm without warm-up seldom learns (Xiong et al. 2020); set training.warmup_steps, such as 400, "
            "or placement to pre", quiet)  # fmt: skip
    write_atomically(out / RECIPE, write_yaml(task.recipe).encode())
    if old is not None:
        save_copy(old, out)
    record = RunRecord(
        data=task.data_hash, tokenizer=task.tokenizer_hash, precision=precision, matmul=matmul, compile=compiled,
        micro_batches=micro_batches, steps=task.plan.steps,
    ).saved_at(out, 0)  # fmt: skip
    record.write(out)
    return record


def _check_together(flags: Mapping[str, bool]) -> None:
    for one, *others in (("--from-weights", "--restart", "--exact"), ("--restart", "--more", "--until"),
                         ("--more", "--until")):  # fmt: skip
        if other := next((other for other in others if flags[one] and flags[other]), None):
            raise UserError(f"{one} and {other} exclude each other; leave one out")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; give another --out") from None


def _is_primary(recipe: Recipe) -> bool:
    """Whether this is the only or the first of the run's processes, which writes for all."""
    if recipe.training.world_size == 1:
        return True
    from tercet.training.distributed.devices import rank

    return not rank(recipe.training)


def _export_to(task: "Task", out: Path, changes: Sequence[Change]) -> Any:
    from tercet.checkpoint import Card, current_versions, git_commit

    commit, versions = git_commit(), current_versions()

    def export(folder: Literal["best", "last"], module: Any, step: int, metrics: dict[str, float]) -> None:
        state = gathered_state(module.eval_model)
        if not module.trainer.is_global_zero:
            return
        card = Card(
            name=out.name, step=step, tokens_seen=module.tokens_seen, metrics=metrics, data_name=task.data_name,
            data_hash=task.data_hash, tokenizer_hash=task.tokenizer_hash, versions=versions, git_commit=commit,
            recipe=to_plain(task.recipe), kept_as=folder, changes=[change.to_plain() for change in changes],
        )  # fmt: skip
        task.save(out / folder, module.model, card, state)  # which knows what learns, as its average does not

    return export


def gathered_state(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """The state dict; where it is sharded over several devices, on the first of them alone."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if not isinstance(value, DTensor) or dist.get_rank() == 0:
            state[name] = whole.detach().cpu()
    return state

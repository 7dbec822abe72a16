"""Values that are fixed when a run starts: choices of `auto`, and hashes of the data."""

from dataclasses import replace
from typing import TYPE_CHECKING

from tercet.checkpoint.run_record import RECIPE, RECORD, Matmul, RunRecord, read_record
from tercet.config import UserError
from tercet.custom_code import code_versions
from tercet.models import stack_specs
from tercet.settings_yaml import write_yaml
from tercet.storage import write_atomically
from tercet.training.optim.trainable import trainable_parameters
from tercet.training.recipe.pretrained import save_copy
from tercet.training.recipe.recipe import objective_of
from tercet.training.run.reports import log
from tercet.training.run.states import BuiltModel, OpenedRun

if TYPE_CHECKING:
    from tercet.training.compute.compiling import CompileMode

MAX_CHECKED_VOCABULARY = 4096  # maximum tokens of a tokenizer that is checked for export when a run starts


def read_or_create_record(built_model: BuiltModel, opened_run: OpenedRun) -> RunRecord:
    """Return the record of a run.

    If the run is new, choose the values of `auto`, and write the recipe, the copy of the pretrained model and the
    record. Only rank 0 writes; other ranks wait for its record.

    Raises:
        UserError: If the data has changed since the run started.
    """
    from tercet.training.compute.auto_arithmetic import choose_arithmetic
    from tercet.training.distributed.devices import wait_for_file
    from tercet.training.planning.find_micro_batch import describe_micro_batch, find_micro_batch

    task, out = built_model.task, opened_run.folder
    if not opened_run.primary:
        wait_for_file(out / RECORD)
    record = read_record(out)
    if record is not None:
        if (record.data, record.tokenizer) != (task.data_hash, task.tokenizer_hash):
            raise UserError(f"the data has changed since the run in {out} started; pass another --out, or --restart")
        code = code_versions(task.recipe)
        for path in sorted(code.keys() & record.code.keys()):
            if code[path] != record.code[path]:
                log(f"version of {path}: {record.code[path]} -> {code[path]}", opened_run.quiet)
        return replace(record, code=code)
    auto_arithmetic = opened_run.arithmetic or choose_arithmetic(task.recipe.training)
    precision, matmul = auto_arithmetic["precision"], auto_arithmetic["matmul"]
    micro_batches: tuple[tuple[int, int], ...] = ()
    if task.recipe.task.finds_micro_batch:
        task.micro = find_micro_batch(task.recipe, precision)
        micro_batches = ((0, task.micro),)
        log(describe_micro_batch(task.recipe, task.micro), opened_run.quiet)
    compile_mode = _choose_compile(built_model, precision, matmul, opened_run.quiet)
    write_atomically(out / RECIPE, write_yaml(task.recipe).encode())
    if built_model.pretrained is not None:
        save_copy(built_model.pretrained, out)
    record = RunRecord(
        data=task.data_hash, tokenizer=task.tokenizer_hash, precision=precision, matmul=matmul, compile=compile_mode,
        micro_batches=micro_batches, steps=task.plan.steps, code=code_versions(task.recipe),
    ).update_saved(out, 0)  # fmt: skip
    record.write(out)
    return record


def _choose_compile(built_model: BuiltModel, precision: str, matmul: Matmul, quiet: bool) -> "CompileMode":
    """Return the way to compile, and report the run on stderr.

    A length in hours is converted to steps in the task's plan.
    """
    from tercet.checkpoint.export_problems import describe_export_problems, export_problems
    from tercet.training.compute.auto_arithmetic import matmul_precision
    from tercet.training.compute.choose_compile import choose_compile
    from tercet.training.compute.speed import speed

    task, model, spec = built_model.task, built_model.model, built_model.task.recipe.training
    with matmul_precision(matmul):
        compile_mode, why = choose_compile(task, model, precision)
        if spec.max_hours is not None:
            estimate = speed(task, model, precision=precision, compile_mode=compile_mode)
            task.plan = estimate.plan(task.plan, spec)
            log(estimate.describe(task.plan, spec), quiet)
    parameters, trainable = (
        sum(p.numel() for p in weights) for weights in (model.parameters(), trainable_parameters(model))
    )
    trainable_note = "" if trainable == parameters else f" ({trainable:,} trainable)"
    arithmetic = f"{precision} by oneDNN" if (precision, matmul) == ("fp32", "medium") else precision
    objective = objective_of(task.recipe)
    facts = task.describe() if objective is None else f"{task.describe()}, objective {objective.kind}"
    log(f"{parameters:,} parameters{trainable_note}, {facts}, {task.plan.steps:,} steps; {arithmetic}, "
        f"{'not compiled' if compile_mode == 'never' else 'compiled'} ({why})", quiet)  # fmt: skip
    if any(stack.placement == "post" for stack in stack_specs(task.recipe.model)) and not spec.warmup_steps:
        log("post-norm without warm-up seldom learns (Xiong et al. 2020); set training.warmup_steps, such as 400, "
            "or placement to pre", quiet)  # fmt: skip
    # Large vocabularies are not checked, since this would take a tenth of a second.
    tokenizer = task.tokenizer if task.tokenizer.vocab_size <= MAX_CHECKED_VOCABULARY else None
    if (problems := describe_export_problems(export_problems(task.recipe.model, tokenizer))) is not None:
        log(f"this model {problems}", quiet)
    return compile_mode

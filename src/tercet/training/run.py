"""`train`: from a recipe to a run folder. The same call on the same folder goes on where the last one stopped.

    recipe.yaml  run.json  metrics.csv  loss.png  samples/  best/  last/  resume.ckpt  (pretrained/)

Lightning is imported last, when everything that a user can have got wrong has been looked at.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tercet.checkpoint import Card, Trained, current_versions, git_commit, load_model, write_atomically
from tercet.config import UserError, find_differences, read_yaml, to_plain, write_yaml
from tercet.kernel import warm_up
from tercet.memory import keep_memory
from tercet.models import AnyModel, AnySpec, EncoderDecoderSpec, build
from tercet.training.pretrained import PRETRAINED_COPY, load_pretrained_weights, pretrained_folder, save_copy
from tercet.training.recipe import Recipe, parse_recipe

if TYPE_CHECKING:
    from tercet.training.tasks.task import Task


class Interrupted(Exception):
    """The run was stopped by a signal, after it was saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


class RunDiverged(UserError):
    """The loss or a gradient is no longer a number: this recipe does not learn."""


def train(recipe: Recipe, out: Path | str, *, quiet: bool = False, arithmetic: Mapping[str, Any] | None = None) -> Path:
    """Train as the recipe says.

    Args:
        out: the run's folder; made where it is missing, resumed where it holds a run of the same recipe.
        quiet: no progress on stderr.
        arithmetic: the `precision` and `matmul` that a run which begins takes, where they were settled for several
            runs together; measured by default.

    Returns:
        the run's folder.

    Raises:
        UserError: where data or settings don't fit, or the folder holds a run with other settings.
        RunDiverged: where the loss is no longer a number.
        Interrupted: after a Ctrl-C or SIGTERM, when everything is saved.
    """
    out = Path(out)
    check_same_run(out, recipe)
    keep_memory()

    from tercet.training.tasks.task import task_of

    old = None if recipe.pretrained is None else load_model(pretrained_folder(recipe.pretrained, out))
    task = task_of(recipe, pretrained=old, progress=not quiet)
    try:
        model = build(task.recipe.model, seed=recipe.training.seed)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    if old is not None:
        summary = load_pretrained_weights(model, old.model, str(recipe.pretrained))
        if not (out / "run.json").exists():
            _log(summary, quiet)
    warm_up()  # before anything is timed, and after every mistake has been told
    resolved = _resolve_settings(out, task, model, old, quiet, arithmetic)
    if "steps" in resolved:
        task.plan = replace(task.plan, steps=resolved["steps"])
    if resolved["finished"]:
        _log(f"{out} is already finished; give another --out to train again", quiet)
        return out
    _train(task, model, out, resolved, quiet)
    return out


def read_recipe(run: Path | str) -> Recipe:
    """The recipe of a run.

    Raises:
        UserError: where the folder holds none.
    """
    path = Path(run) / "recipe.yaml"
    return parse_recipe(read_yaml(path), name=str(path), run=Path(run))


def _train(task: "Task", model: AnyModel, out: Path, resolved: dict[str, Any], quiet: bool) -> None:
    from tercet.checkpoint.metrics import read_metrics
    from tercet.plots import NothingToDraw, plot_loss, save
    from tercet.training.fit import fit
    from tercet.training.machine import matmul_precision, rank
    from tercet.training.module import NonFiniteLoss

    recipe = task.recipe
    try:
        with matmul_precision(resolved.get("matmul", "highest")):
            signal = fit(
                task, model, out, precision=resolved["precision"], compiled=resolved["compile"] == "always",
                export=_export_to(task, out), quiet=quiet,
            )  # fmt: skip
    except NonFiniteLoss as error:
        raise RunDiverged(
            f"{error}; the last good checkpoint is in {out}: try a smaller training.optimizer.lr, or clip_norm"
        ) from None
    if (out / "metrics.csv").exists() and not rank(recipe.training):
        with suppress(NothingToDraw):  # a loss of 0 from the first step on, as over a vocabulary of one
            save(plot_loss(out / "metrics.csv", title=out.name), out / "loss.png")
    if signal is not None:
        raise Interrupted(signal, f"saved in {out}; the same command goes on from there")
    if not rank(recipe.training):
        _write_settings(out, {**resolved, "finished": True})
        if recipe.training.max_hours is not None:
            took = read_metrics(out / "metrics.csv")["seconds"][-1][1] / 3600
            _log(f"{took:.2f} of {recipe.training.max_hours:g} hours", quiet)


def check_same_run(out: Path, recipe: Recipe) -> None:
    """A folder holds one run. Where figures are logged to may change; nothing that changes the model may.

    Raises:
        UserError: where `out` holds another run, or something else.
    """
    if out.is_file():
        raise UserError(f"--out {out} is a file; give a folder")
    if not (out / "recipe.yaml").exists():
        # Hidden files may be what a run left that was killed at its very beginning.
        if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
            raise UserError(f"{out} is not empty and holds no run; give another --out")
        return
    old, new = to_plain(read_recipe(out)), to_plain(recipe)
    for settings in (old, new):
        for size in ("vocab_size", "source_vocab_size"):  # the tokenizers' to say
            settings["model"].pop(size, None)
        if settings["model"].get("classifier"):
            settings["model"]["classifier"].pop("labels")  # the data's
    if new["pretrained"] == str(out / PRETRAINED_COPY):  # the copy of what it was begun with
        new["pretrained"] = old["pretrained"]
    changed = [line for line in find_differences(old, new) if not line.startswith("logging.")]
    if changed:
        raise UserError(f"{out} holds a run with other settings ({'; '.join(changed)}); give another --out")


def _resolve_settings(
    out: Path, task: "Task", model: AnyModel, old: Trained | None, quiet: bool, arithmetic: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What `auto` came to and which data it was: settled once, when a run begins, and kept through every resumption."""
    from tercet.training.machine import (
        choose_arithmetic,
        choose_compile,
        matmul_precision,
        rank,
        speed,
        wait_for_file,
    )

    spec = task.recipe.training
    path = out / "run.json"
    if rank(spec):
        wait_for_file(path)
    if path.exists():
        resolved: dict[str, Any] = json.loads(path.read_text())
        if (resolved["data"], resolved["tokenizer"]) != (task.data_hash, task.tokenizer_hash):
            raise UserError(f"the data has changed since {out} was begun; give another --out")
        return resolved
    chosen = arithmetic or choose_arithmetic(spec)
    precision, matmul = chosen["precision"], chosen["matmul"]
    budget: dict[str, Any] = {}
    with matmul_precision(matmul):
        compiled, why = choose_compile(task, model, precision)
        measured = (
            None if spec.max_hours is None else speed(task, model, precision=precision, compiled=compiled == "always")
        )
    if measured is not None:
        task.plan = measured.plan(task.plan, spec)
        budget = {"steps": task.plan.steps}
        _log(measured.describe(task.plan, spec), quiet)
    parameters = sum(p.numel() for p in model.parameters())
    described = f"{precision} by oneDNN" if (precision, matmul) == ("fp32", "medium") else precision
    _log(f"{parameters:,} parameters, {task.describe()}, {task.plan.steps:,} steps; {described}, "
         f"{'compiled' if compiled == 'always' else 'not compiled'} ({why})", quiet)  # fmt: skip
    if _post_norm(task.recipe.model) and not spec.warmup_steps:
        _log("post-norm without warm-up seldom learns (Xiong et al. 2020); set training.warmup_steps, such as 400, "
             "or placement to pre", quiet)  # fmt: skip
    resolved = {
        "finished": False, "data": task.data_hash, "tokenizer": task.tokenizer_hash,
        "precision": precision, "matmul": matmul, "compile": compiled, **budget,
    }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; give another --out") from None
    write_atomically(out / "recipe.yaml", write_yaml(task.recipe).encode())
    if old is not None:
        save_copy(old, out)
    _write_settings(out, resolved)
    return resolved


def _post_norm(spec: AnySpec) -> bool:
    stacks = (spec.encoder, spec.decoder) if isinstance(spec, EncoderDecoderSpec) else (spec.stack,)
    return any(stack.placement == "post" for stack in stacks)


def _write_settings(out: Path, resolved: dict[str, Any]) -> None:
    write_atomically(out / "run.json", (json.dumps(resolved, indent=2) + "\n").encode())


def _export_to(task: "Task", out: Path) -> Any:
    commit, versions = git_commit(), current_versions()

    def export(folder: str, module: Any, step: int, metrics: dict[str, float]) -> None:
        state = gathered_state(module.eval_model)
        if not module.trainer.is_global_zero:
            return
        card = Card(
            name=out.name, step=step, tokens_seen=module.tokens_seen, metrics=metrics, data_name=task.data_name,
            data_hash=task.data_hash, tokenizer_hash=task.tokenizer_hash, versions=versions, git_commit=commit,
            recipe=to_plain(task.recipe),
        )  # fmt: skip
        task.save(out / folder, module.eval_model, card, state)

    return export


def gathered_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict, gathered on the first device where it is sharded over several."""
    from torch.distributed.tensor import DTensor

    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
        for name, value in model.state_dict().items()
    }


def _log(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)

"""Choice of compilation, from the times of a few training passes on a copy of the model."""

import copy
import itertools
import statistics
import time
from typing import Any

import torch
from lightning_fabric.utilities import move_data_to_device

from tercet.config import UserError
from tercet.messages import shorten
from tercet.models import AnyModel, stacks_of
from tercet.training.compute.compiling import CompileMode, LossFunction, compiled_loss, is_one_graph
from tercet.training.compute.timing import autocast, clock, median_seconds
from tercet.training.distributed.devices import accelerator, free_unused_memory
from tercet.training.optim.adamw import clip_gradients
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.optim.trainable import trainable_parameters
from tercet.training.tasks.task import Task

MIN_TRAINING_SECONDS = 300.0  # training time below which compiling, which takes 10 to 60 s, cannot pay off
GRAPH_SAVING = 0.3  # estimated share of a step that one graph saves on a GPU; not yet measured
MAX_TIME_RATIO = 0.9  # a mode is chosen if its time is below this ratio, so by more than the noise of the measurement
LAUNCH_BOUND_SHARE = 0.8  # share of a pass above which kernel launches dominate
MAX_BATCHES = 8  # number of timed batches if their shapes differ


def choose_compile(task: Task, model: AnyModel, precision: str) -> tuple[CompileMode, str]:
    """Return how to compile the steps of a run, and the reason as text for the user.

    If `training.compile` is `auto`, compiled and eager passes are timed on a copy of the model.

    Args:
        task: Data and objective.
        model: Model to train, which is not changed.
        precision: fp32, bf16 or fp16.

    Raises:
        UserError: If CUDA graphs are requested for a step that is not one graph of equal shapes, or with `exact`.
    """
    spec, steps = task.recipe.training, task.plan.steps
    device = torch.device(accelerator(spec))
    one_graph = is_one_graph(spec, device.type)
    if spec.compile == "cuda_graphs" and (spec.exact or not (one_graph and task.static)):
        raise UserError(
            "training.compile=cuda_graphs needs one CUDA device, steps of equal shapes, and neither training.exact nor "
            "training.activation_checkpointing; set training.compile=always"
        )
    if spec.compile != "auto":
        return spec.compile, "as requested"
    if spec.exact:
        return "never", "with training.exact, the choice must not depend on measured times"
    if not (task.static or one_graph):
        return "never", "shapes change from step to step"
    trial = _TrialSteps(task, model, device, precision)
    # On one GPU the optimizer's share of a step is not small, so its time is included.
    update_seconds = trial.seconds_of_update() if one_graph else 0.0
    eager_seconds = trial.seconds(task.loss) + update_seconds
    training_seconds = eager_seconds * steps if spec.max_hours is None else 3600 * spec.max_hours
    if training_seconds < (_compiling_seconds(model) / GRAPH_SAVING if one_graph else MIN_TRAINING_SECONDS):
        return "never", f"about {training_seconds:.0f} s of training, too short for compiling to pay off"
    mode: CompileMode = "never"
    try:
        start = clock()
        loss = compiled_loss(task, trial.model, device.type, "always")
        if one_graph:
            trial.run_all(loss)
        compiling_seconds = clock() - start
        compiled_seconds = trial.seconds(loss) + update_seconds
        is_worthwhile = not one_graph or (1 - compiled_seconds / eager_seconds) * training_seconds > compiling_seconds
        if compiled_seconds < MAX_TIME_RATIO * eager_seconds and is_worthwhile:
            mode = "always"
        why = f"{1e3 * compiled_seconds:.0f} ms per step compiled, {1e3 * eager_seconds:.0f} ms not compiled"
        if mode == "always" and one_graph and task.static and trial.launch_share(loss) > LAUNCH_BOUND_SHARE:
            replayed_seconds = (
                trial.seconds(compiled_loss(task, trial.model, device.type, "cuda_graphs")) + update_seconds
            )
            mode = "cuda_graphs" if replayed_seconds < MAX_TIME_RATIO * compiled_seconds else mode
            why = f"{1e3 * replayed_seconds:.0f} ms per step with CUDA graphs, {why}"
    except Exception as error:  # for any error of the compiler, train without it
        return "never", _describe_failure(error)
    finally:
        torch.compiler.reset()
        del trial
        if device.type == "cuda":
            free_unused_memory()
    return mode, why


def _describe_failure(error: Exception) -> str:
    return ": ".join(filter(None, ("the compiler failed", type(error).__name__, shorten(str(error).strip(), 100))))


class _TrialSteps:
    """Training passes on a copy of the model, which are timed."""

    def __init__(self, task: Task, model: AnyModel, device: torch.device, precision: str) -> None:
        self.spec, self.device, self.precision = task.recipe.training, device, precision
        self.model = copy.deepcopy(model).to(device)
        step_batches = [
            task.batches(step, 0, self.spec.data_parallel_size) for step in range(1 if task.static else MAX_BATCHES)
        ]
        self.per_step = len(step_batches[0])
        batches = (
            step_batches[0][:1] if task.static else [batch for step in step_batches for batch in step][:MAX_BATCHES]
        )
        self.batches = [move_data_to_device(batch, device) for batch in batches]

    def seconds(self, loss: LossFunction) -> float:
        """Return the measured seconds of the forward and backward passes of a step."""
        batches = itertools.cycle(self.batches)
        return self.per_step * median_seconds(lambda: self._pass(loss, next(batches)), warmup=3, repeats=8)

    def run_all(self, loss: LossFunction) -> None:
        """Run a pass on each batch, so that the graphs of all shapes are compiled."""
        for batch in self.batches:
            self._pass(loss, batch)

    def launch_share(self, loss: LossFunction) -> float:
        """Return the measured share of a pass in which the host launches kernels.

        It is near 1 if the device waits for the host.
        """
        shares: list[float] = []
        for _ in range(5):
            start = clock()
            self._pass(loss, self.batches[0])
            launch_seconds = time.perf_counter() - start
            shares.append(launch_seconds / (clock() - start))
        return statistics.median(shares)

    def seconds_of_update(self) -> float:
        """Return the measured seconds of gradient clipping and the optimizer step."""
        trial = copy.deepcopy(self.model)
        optimizer, parameters = build_optimizer(self.spec.optimizer, trial), trainable_parameters(trial)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

        def update() -> None:
            clip_gradients(parameters, optimizer, 1.0)
            optimizer.step()

        return median_seconds(update, warmup=3, repeats=8)

    def _pass(self, loss: LossFunction, batch: Any) -> None:
        with autocast(self.device, self.precision):
            mean = loss(self.model, batch).mean
        mean.backward()
        self.model.zero_grad()


def _compiling_seconds(model: AnyModel) -> float:
    """Return the assumed seconds of compiling the whole model as one graph on a GPU. They are not yet measured."""
    return 10.0 + 3.0 * sum(len(stack.blocks) for stack in stacks_of(model))

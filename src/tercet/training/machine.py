"""What this machine is and does: its devices, whether compiling pays, how fast it trains."""

import copy
import itertools
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from lightning_fabric.utilities import move_data_to_device
from lightning_fabric.utilities.rank_zero import rank_zero_only

from tercet.config import UserError
from tercet.kernel import warm_up
from tercet.models import AnyModel, stacks_of
from tercet.training.adamw import clip_gradients
from tercet.training.compiling import Compiled, LossFunction, compiled_loss, is_one_graph
from tercet.training.out_of_memory import free_unused_memory
from tercet.training.plan import Plan
from tercet.training.specs import TrainingSpec
from tercet.training.tasks.task import Task
from tercet.training.trainable import trainable_parameters

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: dict[str, Precision] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
Result = TypeVar("Result")
MEASURED = 5.0  # seconds for which steps are timed, at least
FIRST = 2  # passes that do not count
WORTH_COMPILING = 300.0  # seconds of run below which compiling, at 10 to 60 s, can't pay
SAVED = 0.3  # share of a step that one graph on a GPU saves, about: 0.27 and 0.41 on an H100
CLEARLY = 0.9  # of a time: less than this is not the noise of so short a look
MOSTLY = 0.8  # share of a pass above which launches dominate it
VARIED = 8  # batches that are timed if their shapes differ


def accelerator(spec: TrainingSpec) -> str:
    """cpu, cuda or mps.

    Raises:
        UserError: where this machine has fewer of them than are asked for.
    """
    available = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": spec.devices}
    choices = {"auto": list(available), "gpu": ["cuda"]}.get(spec.accelerator, [spec.accelerator])
    name = next((choice for choice in choices if available[choice]), choices[0])
    if available[name] < spec.devices:
        raise UserError(
            f"training.devices={spec.devices} on {name}, and this machine has {available[name]}; "
            f"set training.devices lower, or training.accelerator=cpu"
        )
    return name


def check_exact(spec: TrainingSpec) -> None:
    """Raises:
    UserError: where a step of a piece of the weights would not be that of the whole to the last bit.
    """
    if spec.exact and spec.is_sharded and accelerator(spec) == "cpu" and not warm_up():
        raise UserError(
            "training.exact with fsdp needs the compiled kernels on a CPU, and there is no compiler; set ddp"
        )


def rank(spec: TrainingSpec) -> int:
    """Which of a run's processes this is, also before they have met; 0 where there is one."""
    return (getattr(rank_zero_only, "rank", None) or 0) if spec.world_size > 1 else 0


def describe_rank(spec: TrainingSpec) -> str:
    """This process and where it runs."""
    return f"rank {rank(spec)} of {spec.world_size} on {socket.gethostname()}"


def wait_for_file(path: Path, seconds: float = 1800.0) -> None:
    """Until the first process has settled what holds for all of them, in the folder that they share."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise UserError(f"the first process has not written {path}; all nodes must share the folder of --out")
        time.sleep(0.1)


def choose_compile(task: Task, model: AnyModel, precision: str) -> tuple[Compiled, str]:
    """Return how to compile, and why, in a few words. The model itself is left as it is.

    Raises:
        UserError: If CUDA graphs are requested for a step that is not one graph of equal shapes.
    """
    spec, steps = task.recipe.training, task.plan.steps
    device = torch.device(accelerator(spec))
    one_graph = is_one_graph(spec, device.type)
    if spec.compile == "cuda_graphs" and (spec.exact or not (one_graph and task.static)):
        raise UserError(
            "training.compile=cuda_graphs needs one CUDA device, steps of equal shapes, and neither training.exact nor "
            "training.activation_checkpointing; set it to always"
        )
    if spec.compile != "auto":
        return spec.compile, "as asked"
    if spec.exact:
        return "never", "exact, and whether compiling pays depends on the machine"
    if not (task.static or one_graph):
        return "never", "the shapes change from step to step"
    trial = _TrialSteps(task, model, device, precision)
    # On one GPU a whole step is measured: there the optimizer's share of it is not small.
    rest = trial.seconds_of_update() if one_graph else 0.0
    eager = trial.seconds(task.loss) + rest
    lasts = eager * steps if spec.max_hours is None else 3600 * spec.max_hours
    if lasts < (_compiling_seconds(model) / SAVED if one_graph else WORTH_COMPILING):
        return "never", f"about {lasts:.0f} s of training, too short to pay for it"
    verdict: Compiled = "never"
    try:
        started = _clock()
        loss = compiled_loss(task, trial.model, device.type, "always")
        if one_graph:
            trial.run_all(loss)
        took = _clock() - started
        compiled = trial.seconds(loss) + rest
        pays = not one_graph or (1 - compiled / eager) * lasts > took
        if compiled < CLEARLY * eager and pays:
            verdict = "always"
        why = f"{1e3 * compiled:.0f} ms a step compiled, {1e3 * eager:.0f} ms not"
        if verdict == "always" and one_graph and task.static and trial.launch_share(loss) > MOSTLY:
            replayed = trial.seconds(compiled_loss(task, trial.model, device.type, "cuda_graphs")) + rest
            verdict = "cuda_graphs" if replayed < CLEARLY * compiled else verdict
            why = f"{1e3 * replayed:.0f} ms a step with CUDA graphs, {why}"
    except Exception as error:  # whatever the compiler lacks here, training goes on without it
        return "never", f"the compiler failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"
    finally:
        torch.compiler.reset()
        del trial
        if device.type == "cuda":
            free_unused_memory()
    return verdict, why


class _TrialSteps:
    """Passes of a training step on a copy of the model, to be timed."""

    def __init__(self, task: Task, model: AnyModel, device: torch.device, precision: str) -> None:
        self.spec, self.device, self.precision = task.recipe.training, device, precision
        self.model = copy.deepcopy(model).to(device)
        of_steps = [task.batches(step, 0, self.spec.data_parallel_size) for step in range(1 if task.static else VARIED)]
        self.per_step = len(of_steps[0])
        batches = of_steps[0][:1] if task.static else [batch for step in of_steps for batch in step][:VARIED]
        self.batches = [move_data_to_device(batch, device) for batch in batches]

    def seconds(self, loss: LossFunction) -> float:
        """Seconds of a step's forward and backward passes."""
        batches = itertools.cycle(self.batches)
        return self.per_step * _seconds(lambda: self._pass(loss, next(batches)), warmup=3, repeats=8)

    def run_all(self, loss: LossFunction) -> None:
        """Run a pass on each batch, so that all graphs are compiled."""
        for batch in self.batches:
            self._pass(loss, batch)

    def launch_share(self, loss: LossFunction) -> float:
        """Share of a pass in which the host still launches kernels: near 1 if the device waits for it."""
        shares: list[float] = []
        for _ in range(5):
            start = _clock()
            self._pass(loss, self.batches[0])
            launched = time.perf_counter() - start
            shares.append(launched / (_clock() - start))
        return statistics.median(shares)

    def seconds_of_update(self) -> float:
        """Seconds of clipping and of the optimizer's step."""
        trial = copy.deepcopy(self.model)
        optimizer, parameters = self.spec.optimizer.build(trial), trainable_parameters(trial)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

        def update() -> None:
            clip_gradients(parameters, optimizer, 1.0)
            optimizer.step()

        return _seconds(update, warmup=3, repeats=8)

    def _pass(self, loss: LossFunction, batch: Any) -> None:
        with _reduced(self.device, self.precision):
            mean = loss(self.model, batch).mean
        mean.backward()
        self.model.zero_grad()


def _compiling_seconds(model: AnyModel) -> float:
    """Estimate how long a GPU's graph of the whole model takes to compile; an assumption, not yet measured."""
    return 10.0 + 3.0 * sum(len(stack.blocks) for stack in stacks_of(model))


@dataclass(frozen=True)
class Speed:
    """Seconds, as measured: of a unit of rows, of a step besides, of validating, saving aside."""

    a_unit: float
    a_step: float
    a_validation: float

    def plan(self, plan: Plan, spec: TrainingSpec) -> Plan:
        """The longest plan within the hours of the recipe."""
        assert spec.max_hours is not None
        # The validation at the end comes anyway; the others are shared out over the steps between them.
        left = 3600 * spec.max_hours - self.a_validation
        return plan.within(left, a_unit=self.a_unit, a_step=self.a_step + self.a_validation / spec.validate_every)

    def describe(self, plan: Plan, spec: TrainingSpec) -> str:
        full_step = self.a_unit * plan.units + self.a_step
        others = "; what devices wait for each other is not in it" if spec.world_size > 1 else ""
        return (
            f"{spec.max_hours:g} hours at {full_step:.3g} s a full step and {self.a_validation:.3g} s a validation, as "
            f"measured now, make {plan.steps:,} steps; the run ends with the last of them, early or late where the "
            f"machine turns out faster or slower{others}"
        )


def speed(task: Task, model: AnyModel, *, precision: str, compiled: Compiled) -> Speed:
    """How fast this machine trains, by doing the work of some steps on a copy of the model: reading rows, going there
    and back, the optimizer's step, and a validation batch."""
    spec, plan = task.recipe.training, task.plan
    world = spec.data_parallel_size
    device = torch.device(accelerator(spec))
    trial = copy.deepcopy(model).to(device)
    loss_of = compiled_loss(task, trial, device.type, compiled)
    optimizer = spec.optimizer.build(trial)
    reduced = _reduced(device, precision)
    reading, passes, updating = list[float](), list[float](), list[float]()
    started = _clock()
    for step in itertools.count():
        (batches, took) = _timed(lambda step=step: task.batches(step, 0, world))
        reading.append(took / plan.units)
        for batch in batches:
            moved = move_data_to_device(batch, device)
            with reduced:
                loss, forward = _timed(lambda moved=moved: loss_of(trial, moved, smoothing=spec.label_smoothing).mean)
            passes.append(forward + _timed(loss.backward)[1])
            if _clock() - started > MEASURED and len(passes) > FIRST:
                break
        updating.append(_timed(optimizer.step)[1])
        optimizer.zero_grad()
        if _clock() - started > MEASURED and len(passes) > FIRST + 1 and len(updating) > 1:
            break
    groups = task.validation_groups()
    with torch.no_grad(), reduced, torch.compiler.set_stance("force_eager"):
        trial.eval()
        batch = move_data_to_device(task.validation_batch(groups[len(groups) // 2]), device)
        a_batch = min(_timed(lambda: task.validate_batch(trial, batch))[1] for _ in range(2))
    torch.compiler.reset()
    per_unit = len(task.batches(0, 0, world)) // plan.units  # micro-batches of a device in a unit
    # What came first, compiled or found its kernels; of the rest the mean, for shapes may differ. Reading takes the
    # median, because a step that opens a shard for the first time also hashes it.
    return Speed(
        a_unit=statistics.median(reading) + per_unit * statistics.fmean(passes[FIRST:]),
        a_step=statistics.fmean(updating[1:]),
        a_validation=a_batch * ceil(len(groups) / world),
    )


def _reduced(device: torch.device, precision: str) -> torch.autocast:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def _seconds(work: Callable[[], object], *, warmup: int, repeats: int) -> float:
    """The median time of `work`."""
    times: list[float] = []
    for i in range(warmup + repeats):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if i >= warmup:
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = _clock()
    result = work()
    return result, _clock() - start


def _clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()

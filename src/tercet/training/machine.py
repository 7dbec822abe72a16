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
from typing import Literal, TypeVar

import torch
from lightning_fabric.utilities import move_data_to_device
from lightning_fabric.utilities.rank_zero import rank_zero_only

from tercet.config import UserError
from tercet.kernel import library
from tercet.models import AnyModel, stacks_of
from tercet.training.plan import Plan
from tercet.training.specs import TrainingSpec
from tercet.training.tasks.task import Task

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: dict[str, Precision] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
Result = TypeVar("Result")
MEASURED = 5.0  # seconds for which steps are timed, at least
FIRST = 2  # passes that do not count
SMALL, FEW = 1 << 20, 8  # weights of a block, and blocks, up to which a stack is compiled as one
WORTH_COMPILING = 300.0  # seconds of run below which compiling, at 10 to 60 s, can't pay


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
    if spec.exact and spec.is_sharded and accelerator(spec) == "cpu" and library() is None:
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


def choose_compile(task: Task, model: AnyModel, precision: str) -> tuple[str, str]:
    """`always` or `never`, and why, in a few words. The model itself is left as it is."""
    spec, steps = task.recipe.training, task.plan.steps
    if spec.compile != "auto":
        return spec.compile, "as asked"
    if spec.exact:
        return "never", "exact, and whether compiling pays depends on the machine"
    if not task.static:
        return "never", "the shapes change from step to step"
    batches = task.batches(0, 0, spec.data_parallel_size)
    device = torch.device(accelerator(spec))
    trial = copy.deepcopy(model).to(device)
    batch = move_data_to_device(batches[0], device)

    def forward_and_backward() -> None:
        with _reduced(device, precision):
            loss = task.loss(trial, batch).mean
        loss.backward()
        trial.zero_grad()

    eager = len(batches) * _seconds(forward_and_backward, warmup=3, repeats=8)
    lasts = eager * steps if spec.max_hours is None else 3600 * spec.max_hours
    if lasts < WORTH_COMPILING:
        return "never", f"about {lasts:.0f} s of training, too short to pay for it"
    try:
        compile_in_place(trial, sharded=spec.is_sharded)
        compiled = len(batches) * _seconds(forward_and_backward, warmup=3, repeats=8)
    except Exception as error:  # whatever the compiler lacks here, training goes on without it
        return "never", f"the compiler failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"
    finally:
        torch.compiler.reset()
    verdict = "always" if compiled < 0.9 * eager else "never"  # less is within the noise of so short a look
    return verdict, f"{1e3 * compiled:.0f} ms a step compiled, {1e3 * eager:.0f} ms not"


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


def speed(task: Task, model: AnyModel, *, precision: str, compiled: bool) -> Speed:
    """How fast this machine trains, by doing the work of some steps on a copy of the model: reading rows, going there
    and back, the optimizer's step, and a validation batch."""
    spec, plan = task.recipe.training, task.plan
    world = spec.data_parallel_size
    device = torch.device(accelerator(spec))
    trial = copy.deepcopy(model).to(device)
    if compiled:
        compile_in_place(trial, sharded=spec.is_sharded)
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
                loss, forward = _timed(lambda moved=moved: task.loss(trial, moved, smoothing=spec.label_smoothing).mean)
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


def compile_in_place(model: AnyModel, *, sharded: bool = False) -> None:
    """Compile each block; names stay as they are. Blocks are alike, so the first one's graph serves all. A few small
    ones are compiled as the stack they make: to call each by itself takes a tenth of a step then
    (docs/measurements/kernels.md). Not where each is called twice, its activations being worked out once more.

    Args:
        sharded: each block's weights are gathered as it is called.
    """
    for stack in stacks_of(model):
        small = all(sum(p.numel() for p in block.parameters()) <= SMALL for block in stack.blocks)
        each = sharded or stack.activation_checkpointing or not small or len(stack.blocks) > FEW
        for part in stack.blocks if each else [stack]:
            part.compile()


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

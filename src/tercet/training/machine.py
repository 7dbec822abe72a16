"""What `auto` means on this machine: precision and compilation, measured rather than guessed."""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from lightning_fabric.utilities import move_data_to_device
from lightning_fabric.utilities.rank_zero import rank_zero_only

from tercet.config import UserError
from tercet.models import AnyModel, blocks_of
from tercet.training.recipe import TrainingSpec
from tercet.training.task import Task

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: dict[str, Precision] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
WORTH_COMPILING = 300.0  # seconds of run below which compiling, at 10 to 60 s, can't pay


def accelerator(spec: TrainingSpec) -> str:
    """cpu, cuda or mps.

    Raises:
        UserError: where this machine has fewer of them than are asked for.
    """
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": spec.devices}
    wanted = {"auto": list(there), "gpu": ["cuda"]}.get(spec.accelerator, [spec.accelerator])
    found = next((name for name in wanted if there[name]), wanted[0])
    if there[found] < spec.devices:
        raise UserError(
            f"training.devices={spec.devices} on {found}, and this machine has {there[found]}; "
            f"set training.devices lower, or training.accelerator=cpu"
        )
    return found


def rank(spec: TrainingSpec) -> int:
    """Which of a run's processes this is, also before they have met; 0 where there is one."""
    return (getattr(rank_zero_only, "rank", None) or 0) if spec.devices * spec.nodes > 1 else 0


def wait_for(path: Path, seconds: float = 1800.0) -> None:
    """Until the first process has settled what holds for all of them, in the folder that they share."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise UserError(f"the first process has not written {path}; all nodes must share the folder of --out")
        time.sleep(0.1)


def choose_precision(spec: TrainingSpec) -> str:
    """fp32, bf16 or fp16: the fastest that the hardware really has."""
    if spec.precision != "auto":
        return spec.precision
    device = accelerator(spec)
    if device == "cuda":
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp16"
    if device == "cpu" and _matmul_seconds(torch.bfloat16) < 0.7 * _matmul_seconds(torch.float32):
        return "bf16"
    return "fp32"


def choose_compile(task: Task, model: AnyModel) -> tuple[str, str]:
    """`always` or `never`, and why, in a few words. The model itself is left as it is."""
    spec, steps = task.recipe.training, task.steps
    if spec.compile != "auto":
        return spec.compile, "as asked"
    if not task.static:
        return "never", "the shapes change from step to step"
    batches = task.batches(0, 0, spec.devices * spec.nodes)
    device = torch.device(accelerator(spec))
    trial = copy.deepcopy(model).to(device)
    batch = move_data_to_device(batches[0], device)

    def there_and_back() -> None:
        task.loss(trial, batch).mean.backward()
        trial.zero_grad()

    eager = len(batches) * _seconds(there_and_back, warmup=3, repeats=8)
    if eager * steps < WORTH_COMPILING:
        return "never", f"about {eager * steps:.0f} s of training, too short to pay for it"
    try:
        compile_blocks(trial)
        compiled = len(batches) * _seconds(there_and_back, warmup=3, repeats=8)
    except Exception as error:  # whatever the compiler lacks here, training goes on without it
        return "never", f"the compiler failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"
    finally:
        torch.compiler.reset()
    verdict = "always" if compiled < 0.9 * eager else "never"  # less is within the noise of so short a look
    return verdict, f"{1e3 * compiled:.0f} ms a step compiled, {1e3 * eager:.0f} ms not"


def compile_blocks(model: AnyModel) -> None:
    """Compile each block in place. They are alike, so the first one's graph serves all; names stay as they are."""
    for block in blocks_of(model):
        block.compile()


def _matmul_seconds(dtype: torch.dtype) -> float:
    a, b = torch.ones(256, 256, dtype=dtype), torch.ones(256, 512, dtype=dtype)
    return _seconds(lambda: a @ b, warmup=1, repeats=3)


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

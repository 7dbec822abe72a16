"""Threads of the processes of a run and their numbers, set before anything is measured, recorded or computed."""

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import torch

from tercet.kernel import flush_denormals, thread_independent
from tercet.training.distributed.devices import accelerator
from tercet.training.recipe.specs import TrainingSpec

VARIABLE = "OMP_NUM_THREADS"


@contextmanager
def process_threads(spec: TrainingSpec) -> Generator[None]:
    """Set the number of PyTorch's threads within the context, and how they compute denormal numbers.

    If a run has several processes and OMP_NUM_THREADS is not set, the threads of a node are divided among its
    processes. On a CPU, denormal numbers are computed as zero, and with `exact`, results become independent of the
    number of threads.

    Lightning would divide the threads only when it starts the other processes, which is after `run.json` is written. It
    does nothing if OMP_NUM_THREADS is set, as it is here, and the processes that it starts inherit the variable.
    """
    threads, is_divided = torch.get_num_threads(), spec.world_size > 1 and VARIABLE not in os.environ
    with ExitStack() as stack:
        if is_divided:
            share = max(1, threads // spec.devices)
            os.environ[VARIABLE] = str(share)
            stack.callback(os.environ.pop, VARIABLE, None)
            torch.set_num_threads(share)
            stack.callback(torch.set_num_threads, threads)
        if accelerator(spec) == "cpu":
            stack.enter_context(flush_denormals())
            if spec.exact:
                stack.enter_context(thread_independent())
        yield

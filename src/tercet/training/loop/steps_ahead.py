"""Batches of a step, built during the previous step, so that a GPU does not wait for them.

A thread builds the batches, copies them to pinned memory and then, on a second stream, to the device. This changes
neither their order nor their content, because batches are a function of (seed, step). If the size of micro-batches was
reduced after the batches of a step were built, they are built again. An error in the thread is raised in the step that
needs the batches.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import torch
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Transfer = TypeVar("Transfer")


class Copy(Protocol[Transfer]):
    """A copy of batches to the device in two parts, between which the device may compute."""

    def send(self, batches: list[Any]) -> Transfer:
        """Start the copy, and return what `receive` needs to finish it. Called in the thread that builds batches."""
        ...

    def receive(self, transfer: Transfer) -> list[Any]:
        """Return the batches on the device.

        Kernels that are launched afterwards wait for the copy. The host does not.
        """
        ...


class CopyOnSideStream:
    """A copy from pinned memory to a CUDA device, on a second stream while the kernels of a step run."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def send(self, batches: list[Any]) -> tuple[list[Any], Any]:
        pinned = tree_map(_pin, batches)
        with torch.cuda.stream(self.stream):
            return move_data_to_device(pinned, self.device), self.stream.record_event()

    def receive(self, transfer: tuple[list[Any], Any]) -> list[Any]:
        batches, copy_event = transfer
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(copy_event)
        for leaf in tree_leaves(batches):
            if isinstance(leaf, Tensor):
                leaf.record_stream(stream)  # otherwise its memory could be reused while the step still reads it
        return batches


def copy_to(device: torch.device) -> CopyOnSideStream | None:
    """Return the copy to a CUDA device, or None for other devices, to which Lightning copies the batches."""
    return CopyOnSideStream(device) if device.type == "cuda" else None


class StepsAhead(Generic[Transfer]):
    """Iterable over the batches of each step, which are built one step ahead.

    Args:
        build: Function that returns the batches of a step, as a list of micro-batches.
        steps: Numbers of the steps, as an iterable. Its length, that of the whole run, is also the length of this
            object.
        micro: Function that returns the current size of a micro-batch.
        copy: Object that copies the batches to the device.
    """

    def __init__(
        self, build: Callable[[int], list[Any]], steps: "Steps", micro: Callable[[], int], copy: Copy[Transfer]
    ) -> None:
        self.build, self.steps, self.micro, self.copy = build, steps, micro, copy
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[Any]]:
        self.close()
        pool = self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")

        def begin(step: int | None) -> tuple[int, int, Future[Transfer]] | None:
            return None if step is None else (step, self.micro(), pool.submit(self._send, step))

        steps = iter(self.steps)
        pending = begin(next(steps, None))
        while pending is not None:
            step, micro, future = pending
            transfer = future.result()
            if micro != self.micro():
                transfer = self._send(step)
            pending = begin(next(steps, None))
            yield self.copy.receive(transfer)

    def close(self) -> None:
        """Stop the thread after it has built its current batch."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _send(self, step: int) -> Transfer:
        return self.copy.send(self.build(step))


class Steps(Protocol):
    """Iterable over step numbers, with a length."""

    def __iter__(self) -> Iterator[int]: ...

    def __len__(self) -> int: ...


def _pin(leaf: Any) -> Any:
    return leaf.pin_memory() if isinstance(leaf, Tensor) else leaf

"""Batches of a step, built while the step before it trains, so that a GPU does not wait for them.

A thread builds them and copies them to pinned memory and then, on a second stream, to the device. Order and content do
not change, because a batch is a function of (seed, step). A batch that was built for larger micro-batches than the
current ones is built again. An error in the thread is raised in the step that needs the batch.
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
    """A way to copy batches to the device."""

    def send(self, batches: list[Any]) -> Transfer:
        """Start to copy; called in the thread."""
        ...

    def receive(self, transfer: Transfer) -> list[Any]:
        """Return the batches on the device; work that is launched afterwards waits for the copy, the host does not."""
        ...


class CopyOnSideStream:
    """Copies from pinned memory on a second stream, while the step's kernels run."""

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
    """Return how batches are copied to a device while it computes, or None if copies need no stream."""
    return CopyOnSideStream(device) if device.type == "cuda" else None


class StepsAhead(Generic[Transfer]):
    """Iterable over the batches of steps, each built one step ahead.

    Args:
        build: Builds the batches of a step, in micro-batches.
        steps: Remaining steps at the start of the iteration; its length is that of the whole run.
        micro: Returns the current size of a micro-batch.
        copy: How batches reach the device.
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

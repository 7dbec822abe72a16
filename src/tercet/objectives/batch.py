"""Convert rows to batches of tensors on the model's device."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

Batch = TypeVar("Batch", bound=tuple[Any, ...])
Label = TypeVar("Label")


def pad_rows(
    rows: Sequence[Sequence[int]], device: torch.device, *, pad: int = 0
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Return at least one row, padded on the right with `pad`, and a mask that is True at real tokens."""
    longest = max(map(len, rows))
    tokens = to_device(torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows]), device)
    lengths = to_device(torch.tensor([len(row) for row in rows]), device)
    return tokens, torch.arange(longest, device=device) < lengths[:, None]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to the device without waiting for a GPU."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_host(tensor: Tensor) -> Tensor:
    """Start to copy a tensor to the CPU. If it is on a GPU, the copy is complete after `wait_for_copies`."""
    return tensor.to("cpu", non_blocking=tensor.is_cuda)


def wait_for_copies(device: torch.device) -> None:
    """Wait until all copies that `to_host` started from this device are complete."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def overlap_copies(batches: Iterable[tuple[Label, Tensor]]) -> Iterator[tuple[Label, Tensor]]:
    """Yield each label and its tensor on the CPU, after the next batch has been launched.

    A GPU therefore computes the next batch while the results of the previous one are copied and used.

    Args:
        batches: Label and result tensor of each batch. The iterator launches a batch when it is advanced.
    """
    pending: tuple[Label, _Copy] | None = None
    for label, tensor in batches:
        previous, pending = pending, (label, _Copy(tensor))
        if previous is not None:
            yield previous[0], previous[1].wait()
    if pending is not None:
        yield pending[0], pending[1].wait()


class _Copy:
    """A copy of a tensor to the CPU that may still be in progress."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = to_host(tensor)
        self._event = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def wait(self) -> Tensor:
        """Return the tensor when the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor


def move_batch(batch: Batch, model: nn.Module) -> Batch:
    """Copy a batch, which is a named tuple of tensors, to the model's device without waiting for a GPU."""
    device = next(model.parameters()).device
    build: type[Any] = type(batch)
    return build(*(None if part is None else to_device(part, device) for part in batch))

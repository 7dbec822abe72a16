"""A GPU that is simulated on the CPU, to count how often the host waits for it.

A `GPUTensor` reports cuda as its device. An operation on a `GPUTensor` and a CPU tensor is an error, as on a GPU. Each
operation that moves a number to the host, or needs one there for a shape, counts as a wait.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda")
READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select", "unique", "_unique2", "equal")
READING_METHODS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "cpu", "equal")


class GPUTensor(Tensor):
    """A tensor of the simulated GPU, stored in CPU memory."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor) -> "GPUTensor":
        wrapper: Any = torch.Tensor._make_wrapper_subclass(
            cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype
        )
        wrapper.elem = elem
        return wrapper

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS or (name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])):
            WAITS.append(name)

        def unwrap(value: Any) -> Any:
            if isinstance(value, GPUTensor):
                return value.elem
            assert not isinstance(value, Tensor) or value.dim() == 0, f"{name} has a tensor of the CPU"
            return value

        result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        if (name.endswith("_") and not name.startswith("_")) or (kwargs or {}).get("out") is not None:
            return args[0] if isinstance(args[0], GPUTensor) else result
        return tree_map(lambda value: GPUTensor(value) if isinstance(value, Tensor) else value, result)


WAITS: list[str] = []  # of the current simulation


class _Simulation(TorchFunctionMode):
    """Interception of moves between the devices and of the creation of tensors on the GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        on_gpu = bool(args) and isinstance(args[0], GPUTensor)
        if name == "pin_memory":
            return args[0]
        if name == "to" and isinstance(args[0], Tensor):
            target = kwargs.get("device") or (args[1] if len(args) > 1 else None)
            if isinstance(target, str | torch.device):
                if torch.device(target).type == "cuda":
                    return args[0] if on_gpu else GPUTensor(args[0])
                if on_gpu:
                    WAITS.extend([] if kwargs.get("non_blocking") else ["to"])
                    return args[0].elem.clone()
        if on_gpu and name in READING_METHODS:
            WAITS.append(name)
            return func(args[0].elem, *args[1:], **kwargs)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            assert name != "tensor", "torch.tensor copies from memory that is not pinned, and waits"
            return GPUTensor(func(*args, **(kwargs | {"device": "cpu"})))
        return func(*args, **kwargs)


class _Stream:
    """Events and streams that are always complete; each wait is counted."""

    def synchronize(self) -> None:
        WAITS.append("synchronize")

    def record_event(self) -> "_Event":
        return _Event()


class _Event:
    def synchronize(self) -> None:
        WAITS.append("event")


@contextmanager
def simulated_gpu(*models: nn.Module) -> Generator[list[str]]:
    """Run the block on a simulated GPU, to which the models are moved permanently, and yield the list of waits.

    "event" is a wait for work that was launched before the last launch.
    """
    for part in (part for model in models for part in model.modules()):
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                part._parameters[name] = nn.Parameter(GPUTensor(parameter.detach()), requires_grad=False)
        for name, buffer in list(part._buffers.items()):
            part._buffers[name] = None if buffer is None else GPUTensor(buffer)
    WAITS.clear()
    with pytest.MonkeyPatch.context() as patch, _Simulation():
        patch.setattr(torch.cuda, "current_stream", lambda device=None: _Stream())
        patch.setattr(torch, "inference_mode", torch.no_grad)  # views of wrapped tensors fail in inference mode
        yield WAITS


def numbers_in(answers: Any) -> list[float]:
    """Return all numbers with a decimal point in the representation of `answers`."""
    return [float(number) for number in re.findall(r"-?\d+\.\d+(?:e[-+]\d+)?", repr(answers))]

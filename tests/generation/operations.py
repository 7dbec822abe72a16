"""The operations of a decode step on the meta device, where reading a value on the host is an error."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = {
    "view", "_unsafe_view", "_reshape_alias", "alias", "detach", "dropout", "expand", "flatten", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unflatten", "unsqueeze",
}  # fmt: skip


class Operations(TorchDispatchMode):
    """The names of all operations; those that wait for a GPU raise, as they do in a graph capture."""

    WAITING = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select", "unique", "equal", "tolist")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @property
    def kernels(self) -> int:
        """Number of operations that compute something; `dropout` is off, and `to` keeps the dtype."""
        return sum(name not in VIEWS | {"to"} for name in self.names)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.names.append(name)
        assert name not in self.WAITING, f"{name} waits for the device"
        result = func(*args, **(kwargs or {}))
        tensors = [value for value in [*args, result] if isinstance(value, torch.Tensor)]
        assert all(tensor.device.type == "meta" for tensor in tensors), f"{name} has a tensor on the CPU"
        return result

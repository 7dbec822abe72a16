"""Count the bytes of live tensors by their storages, at each operation that PyTorch dispatches.

A storage counts from the operation that creates it until neither Python nor autograd's saved tensors refer to it. Fake
tensors have storages of the right size without memory, so that a step of a model of any size can be counted.
"""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """A dispatch mode that counts live storages.

    Attributes:
        current: Bytes of all live storages that were created in this context.
        peak: Maximum of `current`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._hold(leaf)
        return result

    def ignore(self, tensors: list[Tensor]) -> None:
        """Exclude the storages of tensors that were created before this context."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages[id(storage)] = weakref.ref(storage, self._forget(id(storage), 0))

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages and self._storages[key]() is storage:
            return
        size = storage.nbytes()
        self._storages[key] = weakref.ref(storage, self._forget(key, size))
        self.current += size
        self.peak = max(self.peak, self.current)

    def _forget(self, key: int, size: int) -> Any:
        def on_release(reference: Any) -> None:
            self.current -= size
            if self._storages.get(key) is reference:
                del self._storages[key]

        return on_release

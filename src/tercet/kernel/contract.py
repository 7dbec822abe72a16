"""Checks of tensors whose addresses are passed to C++, which cannot check dtypes, shapes or layouts.

    Contract("decode_attention", q="float32[B H T K]", k="float32[B G S K] rows", mask="bool[#B 1 #T S]?")

Axes are named as in jaxtyping: an axis has the same size in all tensors. `#T` may also be 1. `K%8` and `H%G` are
non-zero multiples of 8 and of G. `*` stands for any leading axes, `?` for an optional tensor. `q[...]` is a tensor with
the dtype of the earlier argument q. Tensors are contiguous, except that `rows` only requires a contiguous last axis and
`strided` allows any strides.

Callers check `fits` and fall back to PyTorch, which supports more inputs and raises its own errors for invalid ones.
Kernels check `sizes` in any case.
"""

import re
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

Sizes = dict[str, Any]  # size of each axis; for "*" the tuple of leading sizes
_torch = cast(Any, torch)._C  # its stubs lack the names used here


MAX_CACHED_FORMS = 4096  # maximum number of combinations of dtypes, shapes and strides that a contract caches


class Argument(NamedTuple):
    """Requirements for one tensor of a contract."""

    name: str
    dtypes: tuple[torch.dtype, ...]  # allowed dtypes; empty for that of the argument `dtype_source`
    dtype_source: int
    axes: tuple[tuple[str, bool], ...]  # name of each axis, and whether it may also be 1
    has_front: bool
    is_optional: bool
    layout: str


class Contract:
    """Requirements for the tensors of a kernel, in the order of its arguments.

    Args:
        kernel: Name of the kernel for error messages.
        arguments: Dtypes, axes and layout of each tensor, in the notation at the top of this module.
    """

    def __init__(self, kernel: str, **arguments: str) -> None:
        self.kernel, self.specs = kernel, arguments
        self._cache: dict[Any, Sizes | None] = {}
        names = tuple(arguments)
        self.arguments = tuple(_parse(name, spec, names) for name, spec in arguments.items())
        self.multiples = tuple(
            (number, axis, int(divisor) if divisor.isdigit() else divisor)
            for number, spec in enumerate(arguments.values())
            for axis, divisor in re.findall(r"(\w+)%(\w+)", spec)
        )

    def fits(self, *tensors: Tensor | None) -> bool:
        """Return whether the kernel supports these tensors and no transform other than autograd is active."""
        if torch.compiler.is_compiling():  # compiled code uses operators, which support all transforms
            ordinary = all(x is None or type(x) in TYPES for x in tensors)
        else:
            ordinary = not is_transforming() and all(x is None or (type(x) in TYPES and has_memory(x)) for x in tensors)
        return ordinary and self._bind(tensors) is not None

    def sizes(self, *tensors: Tensor | None) -> Sizes:
        """Return the size of each axis.

        Raises:
            ValueError: If the tensors violate the contract.
        """
        sizes = self._bind(tensors)
        if sizes is None or not all(x is None or has_memory(x) for x in tensors):
            raise ValueError(f"{self.kernel} requires {self._describe_specs()}; got {self._describe_tensors(tensors)}")
        return sizes

    def _bind(self, tensors: tuple[Tensor | None, ...]) -> Sizes | None:
        """Return the size of each axis; None if the tensors violate the contract.

        Results are cached, because about a hundred calls of a training step repeat a few combinations.
        """
        if torch.compiler.is_compiling():
            return self._compute_sizes(tensors)
        try:
            forms = tuple([None if x is None else (x.dtype, x.shape, x.stride()) for x in tensors])
            if forms not in self._cache:
                if len(self._cache) >= MAX_CACHED_FORMS:
                    self._cache.clear()
                self._cache[forms] = self._compute_sizes(tensors)
            return self._cache[forms]
        except (RuntimeError, TypeError):  # a layout without strides, or symbolic sizes
            return self._compute_sizes(tensors)

    def _compute_sizes(self, tensors: tuple[Tensor | None, ...]) -> Sizes | None:
        sizes: Sizes = {"1": 1}
        for argument, x in zip(self.arguments, tensors, strict=True):
            _, dtypes, dtype_source, axes, has_front, is_optional, layout = argument
            if x is None:
                if is_optional:
                    continue
                return None
            if not dtypes:
                source = tensors[dtype_source]
                dtypes = () if source is None else (source.dtype,)
            shape = x.shape
            front = len(shape) - len(axes)
            if x.dtype not in dtypes or front < 0 or (front > 0 and not has_front):
                return None
            if has_front and sizes.setdefault("*", shape[:front]) != shape[:front]:
                return None
            for (axis, is_broadcastable), size in zip(axes, shape[front:], strict=True):
                if sizes.setdefault(axis, size) != size and not (is_broadcastable and size == 1):
                    return None
            if not (x.is_contiguous() if not layout else layout == "strided" or x.stride(-1) == 1):
                return None
        for number, axis, divisor in self.multiples:
            size, part = sizes.get(axis, 0), divisor if isinstance(divisor, int) else sizes[divisor]
            if tensors[number] is not None and (size <= 0 or part <= 0 or size % part):
                return None
        return sizes

    def _describe_specs(self) -> str:
        return ", ".join(f"{name} {spec}" for name, spec in self.specs.items())

    def _describe_tensors(self, tensors: tuple[Tensor | None, ...]) -> str:
        return ", ".join(f"{name} {describe(x)}" for name, x in zip(self.specs, tensors, strict=True))


def count_rows(x: Tensor) -> int:
    """Return the number of rows of x (..., K); 0 if K is 0 or x is a scalar."""
    return x.numel() // x.shape[-1] if x.ndim and x.shape[-1] else 0


def is_transforming() -> bool:
    """Return whether a transform is active that would miss the operations of a kernel.

    These are `torch.func`, a tracer, a dispatch mode and forward-mode differentiation.
    """
    return (
        _torch._len_torch_dispatch_stack() > 0
        or _torch._functorch.peek_interpreter_stack() is not None
        or cast(Any, forward_ad)._current_level >= 0
        or _torch._get_tracing_state() is not None
    )


def has_memory(x: Tensor) -> bool:
    """Return whether a tensor has ordinary memory on this machine.

    Fake tensors, wrappers, zero tensors without storage and tensors with a pending negation do not.
    """
    return _torch._dispatch_keys(x).raw_repr() in _ordinary_keys() and (x.data_ptr() != 0 or not x.numel())


def is_plain(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether this is an ordinary tensor of this dtype on a CPU.

    This is faster than the checks of a `Contract` but does less, for calls with about a hundred tensors per step.
    """
    return x.dtype is dtype and x.is_cpu and type(x) in TYPES and not x.is_neg()


@cache
def _ordinary_keys() -> frozenset[int]:
    with torch.inference_mode(False):
        tensors = [torch.empty(0, device="cpu")]
    with torch.inference_mode():
        tensors.append(torch.empty(0, device="cpu"))
    return frozenset(_torch._dispatch_keys(x).raw_repr() for x in tensors)


TYPES = (Tensor, torch.nn.Parameter)  # subclasses override PyTorch's operations


def _parse(name: str, spec_text: str, names: tuple[str, ...]) -> Argument:
    match = re.fullmatch(r"([\w|]+)\[(\*?)([\w#% ]*)\](\??) ?(rows|strided|)", spec_text)
    if match is None:
        raise ValueError(
            f"{name}: {spec_text!r} must have the form 'dtype[axes]', optionally followed by ?, rows or strided"
        )
    dtypes, front, axes, optional, layout = match.groups()
    dtype_source = names.index(dtypes) if dtypes in names else -1
    return Argument(
        name,
        () if dtype_source >= 0 else tuple(getattr(torch, dtype) for dtype in dtypes.split("|")),
        dtype_source,
        tuple((axis.removeprefix("#").split("%")[0], axis.startswith("#")) for axis in axes.split()),
        bool(front),
        bool(optional),
        layout,
    )


def describe(x: Tensor | None) -> str:
    """Describe dtype, shape, device, layout and class of a tensor, for error messages."""
    if x is None:
        return "None"
    layout = f" with strides {x.stride()}" if x.layout == torch.strided and not x.is_contiguous() else ""
    kind = "" if type(x) in TYPES else f" of the class {type(x).__name__}"
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}{layout}{kind}"

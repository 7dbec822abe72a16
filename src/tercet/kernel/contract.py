"""The door to C++, which sees addresses and sizes and can check neither: what each tensor of a kernel must be.

    Contract("decode_attention", q="float32[B H T K]", k="float32[B G S K] rows", mask="bool[#B 1 #T S]?")

Axes have names, as in jaxtyping: one size for each name, in all tensors. `#T` may also be 1, `K%8` and `H%G` are
multiples of 8 and of G, and not zero; `*` stands for any axes in front, `?` for a tensor that may be missing. What is
`q[...]` has the dtype of q, which comes before it. Tensors lie without gaps; of one with `rows` only the last axis
does, one that is `strided` may lie in any way.

Who chooses a kernel asks `fits`, and goes PyTorch's way where it is false: there what is legal is worked out, and what
is wrong is refused in PyTorch's words. The kernel itself asks `sizes`, whoever calls it.
"""

import re
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

Sizes = dict[str, Any]  # of each axis; of "*" the tuple of those in front
_torch = cast(Any, torch)._C  # its stubs lack the names that are used here


MAX_CACHED_FORMS = 4096  # forms of tensors that a contract remembers


class Argument(NamedTuple):
    name: str
    dtypes: tuple[torch.dtype, ...]  # any of these; none: that of the argument `dtype_source`
    dtype_source: int
    axes: tuple[tuple[str, bool], ...]  # each one's name, and whether it may also be 1
    has_front: bool
    is_optional: bool
    layout: str


class Contract:
    """What the tensors of a kernel are, in the order in which they are named.

    Args:
        kernel: its name, for messages.
        arguments: of each tensor its dtypes, axes and layout, as above.
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
        """Whether these are tensors for the kernel, and nobody follows what is done to them but autograd."""
        if torch.compiler.is_compiling():  # what is compiled meets operators, which follow everything
            ordinary = all(x is None or type(x) in TYPES for x in tensors)
        else:
            ordinary = not is_transforming() and all(x is None or (type(x) in TYPES and has_memory(x)) for x in tensors)
        return ordinary and self._bind(tensors) is not None

    def sizes(self, *tensors: Tensor | None) -> Sizes:
        """The size of each axis.

        Raises:
            ValueError: where the tensors are not what the kernel takes.
        """
        sizes = self._bind(tensors)
        if sizes is None or not all(x is None or has_memory(x) for x in tensors):
            raise ValueError(f"{self.kernel} takes {self._describe_specs()}; got {self._describe_tensors(tensors)}")
        return sizes

    def _bind(self, tensors: tuple[Tensor | None, ...]) -> Sizes | None:
        """A size for each name; None where the tensors do not agree. Looked up where such tensors came before: some
        hundred calls of a training step ask the same few questions."""
        if torch.compiler.is_compiling():
            return self._compute_sizes(tensors)
        try:
            forms = tuple([None if x is None else (x.dtype, x.shape, x.stride()) for x in tensors])
            if forms not in self._cache:
                if len(self._cache) >= MAX_CACHED_FORMS:
                    self._cache.clear()
                self._cache[forms] = self._compute_sizes(tensors)
            return self._cache[forms]
        except (RuntimeError, TypeError):  # a layout without strides, sizes that are symbols
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
    """The rows of x (..., K); 0 where there is nothing in them."""
    return x.numel() // x.shape[-1] if x.ndim and x.shape[-1] else 0


def is_transforming() -> bool:
    """Whether somebody follows operations who would see nothing of a kernel's: `torch.func`, a tracer, a mode that
    dispatches, forward-mode differentiation."""
    return (
        _torch._len_torch_dispatch_stack() > 0
        or _torch._functorch.peek_interpreter_stack() is not None
        or cast(Any, forward_ad)._current_level >= 0
        or _torch._get_tracing_state() is not None
    )


def has_memory(x: Tensor) -> bool:
    """Whether the numbers lie in this machine's memory as they are: not a fake tensor's, a wrapper's, one of zeros that
    are nowhere, or one that is to be negated when it is read."""
    return _torch._dispatch_keys(x).raw_repr() in _ordinary_keys() and (x.data_ptr() != 0 or not x.numel())


def is_plain(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether this is a tensor of no class of its own, of this type, on a CPU: a part of the above, for where some
    hundred are asked in a step."""
    return x.dtype is dtype and x.is_cpu and type(x) in TYPES and not x.is_neg()


@cache
def _ordinary_keys() -> frozenset[int]:
    with torch.inference_mode(False):
        tensors = [torch.empty(0, device="cpu")]
    with torch.inference_mode():
        tensors.append(torch.empty(0, device="cpu"))
    return frozenset(_torch._dispatch_keys(x).raw_repr() for x in tensors)


TYPES = (Tensor, torch.nn.Parameter)  # a class of somebody's own wants to see PyTorch's operations


def _parse(name: str, spec_text: str, names: tuple[str, ...]) -> Argument:
    match = re.fullmatch(r"([\w|]+)\[(\*?)([\w#% ]*)\](\??) ?(rows|strided|)", spec_text)
    if match is None:
        raise ValueError(f"{name}: {spec_text!r} is not of the form 'dtype[axes]', with ?, rows or strided behind it")
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
    if x is None:
        return "None"
    layout = f" with strides {x.stride()}" if x.layout == torch.strided and not x.is_contiguous() else ""
    kind = "" if type(x) in TYPES else f" of the class {type(x).__name__}"
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}{layout}{kind}"

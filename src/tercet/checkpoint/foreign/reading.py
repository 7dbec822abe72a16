"""What the readers of other people's folders share: a config of other keys and weights of other names, nothing guessed.

Each family is a function from its config to our spec, and a table of names: ours on the left, theirs on the right, `N`
the number of a block in both. What a table does not name, and what a config asks for that we do not have, is refused.
The same tables lead back: `their_state` is the inverse of `fill`.
"""

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from tercet.checkpoint.weights import first_names, read_tensors, shape_of, tied_names
from tercet.config import UserError, suggest
from tercet.models import AnySpec, EncoderDecoderSpec
from tercet.nn.feedforward import Activation

Value = TypeVar("Value", int, float, str)
Spec = TypeVar("Spec", bound=AnySpec)

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")  # any one of them

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
}
NAMED = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}  # of several names the first


@dataclass(frozen=True, kw_only=True)
class Source:
    """The tensor of theirs that one of ours is read from.

    Attributes:
        transposed: its matrix is kept as (in, out), where ours is (out, in).
        part, parts: which of several of ours, that stand side by side in its last dimension.
    """

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1

    def shape(self, ours: Tensor) -> torch.Size:
        *rest, last = reversed(ours.shape) if self.transposed else ours.shape
        return torch.Size([*rest, last * self.parts])

    def read(self, theirs: Tensor) -> Tensor:
        tensor = theirs.chunk(self.parts, dim=-1)[self.part]
        return self.write(tensor)

    def write(self, ours: Tensor) -> Tensor:
        """Our tensor as theirs, or as a part of it: to transpose is its own inverse."""
        return ours.T if self.transposed and ours.ndim == 2 else ours


def take(config: Mapping[str, Any], key: str, kind: type[Value], default: Value | None = None) -> Value:
    """A value of the config; `default` is what their library takes where the key is left out.

    Raises:
        UserError: where it is missing or of another kind.
    """
    value = default if config.get(key) is None else config[key]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        verb = "has no" if value is None else f"has {value!r} as"
        raise UserError(f"config.json {verb} {key}; put back the {kind.__name__} that the weights were trained with")
    return value


def switch(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, bool):
        raise UserError(f"config.json has {value!r} as {key}; put back the true or false of the trained model")
    return value


def activation(config: Mapping[str, Any], key: str) -> Activation:
    name = take(config, key, str)
    if name not in ACTIVATIONS:
        raise UserError(f"{key} is {name!r}, which Tercet does not have{suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def check_kind(config: Mapping[str, Any], kind: str) -> None:
    if config.get("model_type", kind) != kind:
        raise UserError(f"model_type is {config['model_type']!r}; Tercet reads {kind!r} alone")


def check_alike(config: Mapping[str, Any], wanted: Mapping[str, bool], kind: str) -> None:
    """Refuse a config that asks for what we do not have: each key must be as `wanted`, or left out."""
    for key, value in wanted.items():
        if switch(config, key, value) != value:
            raise UserError(f"{key} is {str(not value).lower()}, which Tercet does not have; it reads a {kind} without")


def plain_names(
    state: Mapping[str, Tensor],
    *,
    prefix: str,
    no_weight: Callable[[str], bool],
    renamed: Callable[[str], str] = lambda name: name,
) -> dict[str, Tensor]:
    """Without the prefix, without old names, and without what is no weight."""
    plain: dict[str, Tensor] = {}
    for given, tensor in state.items():
        name = renamed(given.removeprefix(prefix))
        if no_weight(name):
            continue
        if name in plain:
            raise UserError(f"{name} stands in the weights twice, under {given} too; leave one out")
        plain[name] = tensor
    return plain


def untwin(state: dict[str, Tensor], second: str, first: str, kind: str) -> None:
    """One tensor may stand under two names; two tensors where there should be one are no model that we know."""
    if second in state:
        tensor = state.pop(second)
        if not torch.equal(state.setdefault(first, tensor), tensor):
            raise UserError(
                f"{second} is not the same as {first}, with which {kind} shares it; leave out the wrong one"
            )


def their_name(name: str, table: Mapping[str, str]) -> str:
    """Their name of our tensor `name`, by a table of parts."""
    part, _, of_part = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", part)
    theirs = table[re.sub(r"\.\d+\.", ".N.", part, count=1)]
    return f"{theirs if number is None else theirs.replace('.N.', number[0])}.{of_part}"


@contextmanager
def fitting(kind: str) -> Generator[None]:
    """What a spec or a model finds wrong in its sizes, as a mistake in the config."""
    try:
        with torch.random.fork_rng(devices=[]):  # building torch's own layers draws from the global generator
            yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the config of this {kind} does not fit together: {error}") from None


def with_ids(spec: Spec, n_ids: int | None) -> Spec:
    """The spec for a tokenizer of `n_ids`: rows of the embedding that it has no id for only pad the vocabulary."""
    own = isinstance(spec, EncoderDecoderSpec) and spec.source_vocab_size is not None
    if n_ids is None or own or not 0 < n_ids < spec.vocab_size:
        return spec
    return replace(spec, vocab_size=n_ids, pad_vocab_to=spec.vocab_size)


@torch.no_grad()
def fill(
    model: nn.Module, state: Mapping[str, Tensor], source: Callable[[str], Source], *, zero: Collection[str], kind: str
) -> None:
    """Fill `model`; tied tensors stay tied.

    Args:
        source: where each tensor of ours is read from.
        zero: names of ours that they do not have, and that change nothing at zero.

    Raises:
        UserError: naming what is missing, what is unknown, and what has another shape.
    """
    second = tied_names(model)
    own = {name: tensor for name, tensor in model.state_dict().items() if name not in second}
    sources = {name: source(name) for name in own if name not in zero}
    wanted = {found.name: found.shape(own[name]) for name, found in sources.items()}
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    unlike = [name for name, shape in wanted.items() if name in state and state[name].shape != shape]
    mistakes = [
        *([f"{first_names(missing)} missing"] if missing else []),
        *([f"{first_names(unknown)} unknown"] if unknown else []),
        *(
            f"{name} has shape {shape_of(state[name])} where the config needs {'x'.join(map(str, wanted[name]))}"
            for name in unlike[:2]
        ),
    ]
    if mistakes:
        raise UserError(f"the weights do not fit the config of this {kind}: {'; '.join(mistakes)}")
    for name, tensor in own.items():
        if name in sources:
            tensor.copy_(sources[name].read(state[sources[name].name]))
        else:
            tensor.zero_()


def their_state(tensors: Mapping[str, Tensor], source: Callable[[str], Source]) -> dict[str, Tensor]:
    """The inverse of `fill`: our tensors under their names, those that are one tensor of theirs put together."""
    parts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        theirs = source(name)
        parts.setdefault(theirs.name, {})[theirs.part] = theirs.write(tensor)
    return {name: torch.cat([some[n] for n in sorted(some)], dim=-1) for name, some in parts.items()}


def read_state(folder: Path) -> Mapping[str, Tensor]:
    """The tensors of a folder by name: one safetensors file or several, or else a pickle that runs no code.

    They are mapped, not read: what nobody looks into stays on the disk.

    Raises:
        UserError: where a file is broken or missing.
    """
    one, several, pickled = (folder / name for name in WEIGHTS)
    if one.is_file():
        return read_tensors(one)
    return _read_several(several) if several.is_file() else _read_pickle(pickled)


def _read_several(index: Path) -> Mapping[str, Tensor]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(places.values()))
        inside = all(Path(name).name == name for name in names)
    except (ValueError, OSError, LookupError, TypeError, AttributeError):
        inside, names = False, []
    if not inside or not names:
        raise UserError(f"{index} does not say which file has which weights; copy it again")
    state: dict[str, Tensor] = {}
    for name in names:
        state |= read_tensors(index.parent / name)
    return state


def _read_pickle(path: Path) -> Mapping[str, Tensor]:
    try:
        # What is not asked for is not read; the oldest files are no archives, and are read whole.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # torch's reader raises whatever a broken pickle leads to: KeyError, IndexError, ...
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a whole file of weights ({reason}); copy it again") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in cast("dict[Any, Any]", state).items()
    ):
        raise UserError(f"{path} holds more than weights by name; save the model's state_dict alone")
    return cast("Mapping[str, Tensor]", state)

"""Conversion of weights between Tercet's names and those of other libraries.

For each model type there is a function that converts its config to a spec, and a table of names: Tercet's as keys, the
other library's as values, with `N` for the number of a block. Names that are not in the table are rejected. The same
tables are used for exports: `export_state` is the inverse of `build_model`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from tercet.checkpoint.find_model import WEIGHTS
from tercet.checkpoint.foreign.config_keys import raise_config_errors
from tercet.checkpoint.safe_pickle import read_pickled_weights
from tercet.checkpoint.weights import first_names, own_tensors, read_tensors, shape_of
from tercet.config import UserError
from tercet.models import AnyModel, AnySpec, build_meta
from tercet.reading.bounded_json import read_json_file

Model = TypeVar("Model", bound=AnyModel)
Spec = TypeVar("Spec", bound=AnySpec)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The third-party tensor that a tensor of Tercet is read from.

    Attributes:
        name: Name of the third-party tensor.
        transposed: If True, it is stored as (in, out) instead of (out, in).
        part, parts: Index and number of the equal parts into which its outputs are divided.
        groups: Number of equal groups of its outputs, each of which is divided into these parts; a group may be a head.
        scale, offset: Tercet's tensor is the third-party one * scale + offset, computed in float32.
        skipped_rows: Number of leading rows that are dropped on import, and zero in exports.
    """

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1
    groups: int = 1
    scale: float = 1.0
    offset: float = 0.0
    skipped_rows: int = 0

    def shape(self, native: Tensor) -> torch.Size:
        """Return the required shape of the third-party tensor for a tensor of Tercet."""
        rows, *rest = native.shape
        shape = [rows * self.parts + self.skipped_rows, *rest]
        return torch.Size(reversed(shape) if self.transposed and len(shape) == 2 else shape)

    def read(self, foreign: Tensor) -> Tensor:
        """Return the tensor of Tercet for a third-party tensor."""
        tensor = self.select(self._turn(foreign)[self.skipped_rows :])
        return tensor if self._is_plain else tensor.float() * self.scale + self.offset

    def write(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the third-party tensor for the tensors of Tercet that are its parts, in order; the inverse of `read`.

        The sources of these tensors differ only in `part`.
        """
        rows = self.join(parts)
        rows = rows if self._is_plain else (rows.float() - self.offset) / self.scale
        return self._turn(torch.cat((rows.new_zeros(self.skipped_rows, *rows.shape[1:]), rows)))

    def select(self, rows: Tensor) -> Tensor:
        """Return the rows (N / parts, ...) of this part, from those of all parts (N, ...)."""
        return rows.unflatten(0, (self.groups, self.parts, -1))[:, self.part].flatten(0, 1)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the rows of all parts, from those of each part in order; the inverse of `select`."""
        return torch.stack([part.unflatten(0, (self.groups, -1)) for part in parts], dim=1).flatten(0, 2)

    @property
    def _is_plain(self) -> bool:
        return (self.scale, self.offset) == (1.0, 0.0)

    def _turn(self, tensor: Tensor) -> Tensor:
        """Transpose a matrix if necessary. This is its own inverse."""
        return tensor.T if self.transposed and tensor.ndim == 2 else tensor


def strip_names(
    state: Mapping[str, Tensor],
    *,
    prefix: str,
    no_weight: Callable[[str], bool],
    rename: Callable[[str], str] = lambda name: name,
) -> dict[str, Tensor]:
    """Return the tensors by their names without a prefix, and without entries that are not weights.

    Args:
        state: Tensors by third-party name.
        prefix: Prefix that is removed from the names that have it.
        no_weight: Function that returns True for an entry that is not a weight, by its name after `rename`.
        rename: Function from a name without the prefix to the current name, for files with old names.

    Raises:
        UserError: If two tensors have the same name afterwards.
    """
    plain: dict[str, Tensor] = {}
    for old_name, tensor in state.items():
        name = rename(old_name.removeprefix(prefix))
        if no_weight(name):
            continue
        if name in plain:
            raise UserError(f"{name} occurs twice in the weights, also as {old_name}; remove one")
        plain[name] = tensor
    return plain


def merge_tied(state: dict[str, Tensor], second: str, first: str, kind: str) -> None:
    """Merge two names of one tensor in `state`, in place: if `second` exists, it is removed and `first` is kept or set.

    Args:
        state: Tensors by name.
        second, first: The two names.
        kind: Name of the third-party model, for error messages.

    Raises:
        UserError: If the tensors under both names differ.
    """
    if second in state:
        tensor = state.pop(second)
        if not torch.equal(state.setdefault(first, tensor), tensor):
            raise UserError(f"{second} is not the same as {first}, to which {kind} ties it; remove the wrong one")


def foreign_name(name: str, table: Mapping[str, str]) -> str:
    """Return the third-party name of a tensor.

    Args:
        name: Name in Tercet, such as "stack.blocks.0.feedforward.up.weight".
        table: Third-party names by Tercet's, both without the last part and with `N` for the number of a block.

    Raises:
        KeyError: If the table does not contain the name.
    """
    part, _, tensor_kind = name.rpartition(".")
    number = re.search(r"\.\d+(?=\.|$)", part)
    foreign_part = table[part if number is None else part.replace(number[0], ".N", 1)]
    return f"{foreign_part if number is None else foreign_part.replace('.N', number[0], 1)}.{tensor_kind}"


@torch.no_grad()
def build_model(
    model_class: Callable[[Spec], Model],
    spec: Spec,
    state: dict[str, Tensor],
    source: Callable[[str], Source],
    *,
    kind: str,
    tied: tuple[str, str] | None,
) -> Model:
    """Build a model of Tercet with third-party weights, in eval mode; tied tensors remain tied.

    Args:
        model_class: Class of the model.
        spec: Spec of the model.
        state: Third-party tensors by name. Names of tied tensors are merged in place.
        source: Function from the name of a tensor in Tercet to its source.
        kind: Name of the third-party model, for error messages.
        tied: Third-party names of the output's and the embedding's matrix, which are merged if the spec ties them; None
            if the model has no output matrix.

    Raises:
        UserError: If tensors are missing, unknown or of another shape, which the message lists, if tied tensors differ,
            or if the spec is invalid.
    """
    with raise_config_errors(kind):
        model = build_meta(spec, n_tensors=len(state))
    if tied is not None and spec.tie_embeddings:
        merge_tied(state, *tied, kind)
    native = own_tensors(model)
    sources = {name: source(name) for name in native}
    shapes = {foreign.name: foreign.shape(native[name]) for name, foreign in sources.items()}
    missing = [name for name in shapes if name not in state]
    unknown = [name for name in state if name not in shapes]
    mismatched = [name for name, shape in shapes.items() if name in state and state[name].shape != shape]
    problems = [
        *([f"{first_names(missing)} missing"] if missing else []),
        *([f"{first_names(unknown)} unknown"] if unknown else []),
        *(
            f"{name} has shape {shape_of(state[name])}, but the config requires {'x'.join(map(str, shapes[name]))}"
            for name in mismatched[:2]
        ),
    ]
    if problems:
        text = "; ".join(problems)
        raise UserError(f"the weights do not fit the config of this {kind}: {text}; copy the whole model again")
    with raise_config_errors(kind):  # allocates memory, so only after the weights were checked
        model = model_class(spec)
    for name, tensor in own_tensors(model).items():
        tensor.copy_(sources[name].read(state[sources[name].name]))
    return cast("Model", model.eval())


def export_state(
    tensors: Mapping[str, Tensor], source: Callable[[str], Source], *, prefix: str, unprefixed: tuple[str, ...]
) -> dict[str, Tensor]:
    """Return tensors by their third-party names, with parts concatenated; the inverse of `build_model`.

    Args:
        tensors: Tensors by name in Tercet.
        source: Function from the name of a tensor in Tercet to its source.
        prefix: Prefix to add to each third-party name that does not begin with one of `unprefixed`.
        unprefixed: Beginnings of the names that get no prefix.
    """
    parts: dict[str, dict[int, Tensor]] = {}
    sources: dict[str, Source] = {}
    for name, tensor in tensors.items():
        foreign = source(name)
        full = foreign.name if foreign.name.startswith(unprefixed) else f"{prefix}{foreign.name}"
        sources[full] = foreign
        parts.setdefault(full, {})[foreign.part] = tensor
    return {name: sources[name].write([parts[name][n] for n in sorted(parts[name])]) for name in parts}


def read_state_dict(folder: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a folder by name, from safetensors files or a safely read pickle.

    The files are memory-mapped, so unused tensors are not read.

    Raises:
        UserError: If a file is damaged or missing.
    """
    single_file, index, pickle_file = (folder / name for name in WEIGHTS)
    if single_file.is_file():
        return read_tensors(single_file)
    return _read_shards(index) if index.is_file() else read_pickled_weights(pickle_file)


def _read_shards(index: Path) -> Mapping[str, Tensor]:
    files = read_json_file(index).get("weight_map")
    names: set[Any] = set(files.values()) if isinstance(files, dict) and _all_texts(files) else set()
    if not names or not all(Path(name).name == name and name.endswith(".safetensors") for name in names):
        raise UserError(f"{index} does not map weights to files; copy it again")
    state: dict[str, Tensor] = {}
    for name in sorted(names):
        tensors = read_tensors(index.parent / name)
        if duplicates := [tensor for tensor in tensors if tensor in state]:
            raise UserError(f"{index}: {first_names(duplicates)} occurs in two files; copy the folder again")
        state |= tensors
    return state


def _all_texts(files: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in files.values())

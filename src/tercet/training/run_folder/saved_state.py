"""The state from which a run resumes, checked and reduced to the necessary parts.

A run uses the following parts of Lightning's checkpoint: the weights, the optimizer state, the state of validation, the
gradient scaler of fp16 and the step. Loop counters follow from the step and learning rates from the recipe, so neither
is read from the file. The file may be from an untrusted source. `read_state` checks its form, and `check_state`
compares its content with model and optimizer.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tercet.config import UserError
from tercet.messages import shorten

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tercet.training.recipe.recipe import Recipe

State = dict[str, Any]
ARITHMETIC, RECIPE_HASH = "arithmetic", "recipe_hash"  # keys in addition to Lightning's
ACTIONS, SCALER = "StepActions", "MixedPrecision"  # keys of Lightning: callback and precision plugin of fp16
MAX_STEPS = 10**18
MAX_ARITHMETIC = 10_000  # numerical environments of one run
MAX_CHARACTERS = 200  # per name or value in an environment, such as the name of a device
# Options of an optimizer that PyTorch adds if the version that saved the state did not have them.
OPTIONAL = {"amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}


def read_state(path: Path) -> State:
    """Return the state in a file `state.ckpt`, with memory-mapped tensors.

    Raises:
        UserError: If the file is damaged, or does not contain the state of a run.
    """
    from tercet.checkpoint.safe_pickle import load_safely

    try:
        return parse_state(load_safely(path, "a run's state"))
    except ValueError as error:
        raise UserError(f"{path} is not the state of a run: {error}; copy it again") from None


def parse_state(data: Any) -> State:
    """Return the parts of Lightning's checkpoint from which a run resumes.

    Raises:
        ValueError: If a part is missing, has another type or contains an invalid value.
    """
    from torch import Tensor

    data = _mapping(data, "the file")
    step = _count(_get(data, "global_step"), "global_step")
    weights = _mapping(_get(data, "state_dict"), "state_dict")
    if not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        _reject("state_dict", "not only tensors")
    arithmetic, recipe_hash = _get(data, ARITHMETIC), _get(data, RECIPE_HASH)
    if not isinstance(arithmetic, list) or not 0 < len(cast("list[Any]", arithmetic)) <= MAX_ARITHMETIC:
        _reject(ARITHMETIC, f"not a list of 1 to {MAX_ARITHMETIC:,} environments")
    if not isinstance(recipe_hash, str):
        _reject(RECIPE_HASH, "not a string")
    state: State = {
        "global_step": step,
        "state_dict": dict(weights),
        "optimizer_states": [_parse_optimizer(_get(data, "optimizer_states"))],
        "lr_schedulers": [],
        "callbacks": {ACTIONS: {"Validation": _parse_validation(_get(data, "callbacks"), step)}},
        ARITHMETIC: [_parse_arithmetic(entry) for entry in cast("list[Any]", arithmetic)],
        RECIPE_HASH: recipe_hash,
    }
    if SCALER in data:
        state[SCALER] = _parse_scaler(_mapping(data[SCALER], SCALER))
    return state


def _parse_optimizer(optimizers: Any) -> State:
    from torch import Tensor

    if not isinstance(optimizers, list) or len(cast("list[Any]", optimizers)) != 1:
        _reject("optimizer_states", "not a list of one")
    [optimizer] = cast("list[Any]", optimizers)
    optimizer = _mapping(optimizer, "optimizer_states")
    tensors = _mapping(_get(optimizer, "state"), "the optimizer's state", keys=int | str)
    for parameter, values in tensors.items():
        place = f"the optimizer's state of {shorten(repr(parameter), 80)}"
        if not all(isinstance(tensor, Tensor) for tensor in _mapping(values, place).values()):
            _reject(place, "not only tensors")
    groups = _get(optimizer, "param_groups")
    if not isinstance(groups, list):
        _reject("param_groups", "not a list")
    return {
        "state": {parameter: dict(values) for parameter, values in tensors.items()},
        "param_groups": [dict(_mapping(group, "param_groups")) for group in cast("list[Any]", groups)],
    }


def _parse_validation(callbacks: Any, step: int) -> State:
    validation = _get(_mapping(callbacks, "callbacks"), ACTIONS)
    validation = _mapping(_get(_mapping(validation, ACTIONS), "Validation"), "Validation")
    best = _get(validation, "best")
    if not isinstance(best, float | int) or isinstance(best, bool) or math.isnan(best):
        _reject("Validation.best", "not a number")
    return {
        "best": float(best),
        "best_step": _count(_get(validation, "best_step"), "Validation.best_step", maximum=step),
        "without_better": _count(_get(validation, "without_better"), "Validation.without_better"),
    }


def check_state(folder: Path, state: State, model: "nn.Module", recipe: "Recipe", *, fp16: bool = False) -> None:
    """Compare a state, or the shards in its folder, with the model and optimizer of the run.

    Args:
        folder: Folder of the checkpoint.
        state: Result of `read_state` for the checkpoint.
        model: Whole model that is trained.
        recipe: Recipe of the run.
        fp16: If True, accept an optimizer without state, because the gradient scaler may have skipped all steps.

    Raises:
        UserError: If names, shapes or dtypes of tensors or the optimizer's hyperparameters differ from those of the
            run, or there are tensors in both the state and shards. For a state without shards also if a number is not
            finite or is impossible after this number of steps, or tied weights differ from each other.
    """
    from tercet.training.optim.optimizers import build_optimizer
    from tercet.training.optim.specs import CustomOptimizer
    from tercet.training.run_folder.sharded_state import flatten_checkpoint, has_shards, read_shard_shapes

    sharded = has_shards(folder)
    optimizer = build_optimizer(recipe.training.optimizer, model)
    expected = {**_weights(model, recipe), **_optimizer_tensors(model, optimizer, by_name=sharded)}
    try:
        tensors, _ = flatten_checkpoint(state)
        if sharded and tensors:
            raise ValueError("it has tensors in both state.ckpt and shards")
        shapes = read_shard_shapes(folder) if sharded else {name: (x.shape, x.dtype) for name, x in tensors.items()}
        if fp16 and not any(name.startswith("optimizer.") for name in shapes):
            expected = _weights(model, recipe)
        if isinstance(recipe.training.optimizer, CustomOptimizer):  # names and shapes of its state are not known
            prefixes = tuple(f"optimizer.{key}." for key in _parameter_keys(model, by_name=sharded).values())
            state_shapes = {name: shape for name, shape in shapes.items() if name.startswith(prefixes)}
            expected = {**_weights(model, recipe), **state_shapes}
        _compare(shapes, expected)
        _check_groups(state["optimizer_states"][0]["param_groups"], model, optimizer)
        if not sharded:
            _check_tied(state["state_dict"], model)
        for name, tensor in tensors.items():
            _check_numbers(name, tensor, step=state["global_step"])
    except ValueError as error:
        raise UserError(f"{folder} does not fit the run: {error}") from None


def own_tensors(state: State) -> State:
    """Return a state whose optimizer tensors are contiguous copies in memory instead of memory-mapped."""
    [optimizer] = state["optimizer_states"]
    copies = {
        parameter: {name: tensor.detach().clone().contiguous() for name, tensor in values.items()}
        for parameter, values in optimizer["state"].items()
    }
    return {**state, "optimizer_states": [{**optimizer, "state": copies}]}


def _weights(model: "nn.Module", recipe: "Recipe") -> "dict[str, tuple[torch.Size, torch.dtype]]":
    """Return shape and dtype of each weight that a run saves, by its name in the flattened checkpoint.

    With an adapter, frozen weights are not saved. A moving average is saved in addition.
    """
    import torch

    frozen_names = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    saved_weights = {
        name: x for name, x in model.state_dict().items() if recipe.adapter is None or name not in frozen_names
    }
    prefixes = ["model.", *(["average.module."] if recipe.training.ema else [])]
    shapes = {f"weights.{prefix}{name}": (x.shape, x.dtype) for prefix in prefixes for name, x in saved_weights.items()}
    if recipe.training.ema:
        shapes["weights.average.n_averaged"] = torch.Size(), torch.int64
    return shapes


def _optimizer_tensors(
    model: "nn.Module", optimizer: "torch.optim.Optimizer", *, by_name: bool
) -> "dict[str, tuple[torch.Size, torch.dtype]]":
    """Return shape and dtype of each tensor in the optimizer state after a step.

    The keys are the names in the flattened checkpoint, which contain the name of the parameter if `by_name`, else its
    number.
    """
    import torch

    keys = _parameter_keys(model, by_name=by_name)
    shapes: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            prefix = f"optimizer.{keys[id(p)]}"
            if group.get("muon"):
                shapes[f"{prefix}.momentum"] = p.shape, p.dtype
            else:
                shapes[f"{prefix}.step"] = torch.Size(), torch.float32
                shapes |= {f"{prefix}.{name}": (p.shape, p.dtype) for name in ("exp_avg", "exp_avg_sq")}
    return shapes


def _parameter_keys(model: "nn.Module", *, by_name: bool) -> dict[int, int | str]:
    """Return the key of each parameter in the optimizer state of a checkpoint, by `id` of the parameter.

    The key is the parameter's number in the model, or its name if `by_name`, as in a sharded checkpoint.
    """
    return {id(p): f"model.{name}" if by_name else n for n, (name, p) in enumerate(model.named_parameters())}


def _compare(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for problem, names in {
        "lacks": expected.keys() - actual.keys(),
        "has unknown": actual.keys() - expected.keys(),
    }.items():
        if names:
            others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            raise ValueError(f"it {problem} {shorten(ascii(min(names)), 80)}{others}")
    for name, (shape, dtype) in expected.items():
        if (tuple(actual[name][0]), actual[name][1]) != (tuple(shape), dtype):
            actual_shape, actual_dtype = actual[name]
            raise ValueError(
                f"{name} is {actual_dtype} of shape {tuple(actual_shape)} instead of {dtype} of shape {tuple(shape)}"
            )


def _check_groups(groups: list[dict[str, Any]], model: "nn.Module", optimizer: "torch.optim.Optimizer") -> None:
    """Compare the optimizer's parameter groups and hyperparameters with those of the recipe.

    Each step sets the learning rate, so for this only the type is checked.

    Raises:
        ValueError: If they differ.
    """
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(f"its optimizer has {len(groups)} parameter groups instead of {len(optimizer.param_groups)}")
    key_maps = [_parameter_keys(model, by_name=by_name) for by_name in (False, True)]
    for number, (saved_group, group) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        if not any(_equal(saved_group.get("params"), [keys[id(p)] for p in group["params"]]) for keys in key_maps):
            raise ValueError(f"group {number} of its optimizer has other parameters")
        for name, value in group.items():
            if name in ("params", "lr") or (name in OPTIONAL and name not in saved_group):
                continue
            if not _equal(saved_group.get(name), value):
                raise ValueError(f"{name} of its optimizer is not {value!r}")
        if not isinstance(saved_group.get("lr"), float):
            raise ValueError("lr of its optimizer is not a number")


def _check_tied(weights: Mapping[str, "torch.Tensor"], model: "nn.Module") -> None:
    """Check that tied weights are equal under all their names.

    If they were not, loading would silently use the last one.

    Raises:
        ValueError: If two tied weights differ.
    """
    import torch

    from tercet.checkpoint.weights import tied_names

    for second, first in tied_names(model).items():
        for prefix in ("model.", "average.module."):
            first_weight, second_weight = (weights.get(prefix + name) for name in (first, second))
            if first_weight is not None and second_weight is not None and not torch.equal(first_weight, second_weight):
                raise ValueError(f"{prefix}{second} differs from {prefix}{first}, although they are tied")


def _equal(saved_value: Any, value: Any) -> bool:
    """Compare plain values; a list equals a tuple, and a tensor equals no value."""
    if isinstance(value, list | tuple):
        pairs = [saved_value, value] if isinstance(saved_value, list | tuple) else [(), (None,)]
        return len(pairs[0]) == len(pairs[1]) and all(map(_equal, *cast("list[Any]", pairs)))
    return isinstance(saved_value, bool | int | float | str | None) and saved_value == value


def _check_numbers(name: str, tensor: "torch.Tensor", *, step: int) -> None:
    import torch

    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise ValueError(f"{name} is not a dense CPU tensor")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} has values that are not finite")
    lowest = float(tensor.min()) if name.endswith((".step", ".exp_avg_sq", ".n_averaged")) else 0.0
    highest = float(tensor.max()) if name.endswith((".step", ".n_averaged")) else 0.0
    if lowest < 0 or highest > step:
        raise ValueError(f"{name} has values from {lowest:g} to {highest:g}, impossible after {step:,} steps")


def _parse_arithmetic(data: Any) -> dict[str, str]:
    arithmetic = _mapping(data, ARITHMETIC)
    for value in (*arithmetic, *arithmetic.values()):
        if not isinstance(value, str) or len(value) > MAX_CHARACTERS or not value.isprintable():
            _reject(ARITHMETIC, "not a mapping of short strings")
    if "device" not in arithmetic:
        _reject(ARITHMETIC, "without a device")
    return dict(arithmetic)


def _parse_scaler(data: Mapping[str, Any]) -> dict[str, float | int]:
    scaler: dict[str, float | int] = {}
    for name in ("scale", "growth_factor", "backoff_factor"):
        value = _get(data, name)
        if not isinstance(value, float) or not 0 < value < math.inf:
            _reject(f"{SCALER}.{name}", "not a positive number")
        scaler[name] = value
    return scaler | {
        name: _count(_get(data, name), f"{SCALER}.{name}") for name in ("growth_interval", "_growth_tracker")
    }


def _get(data: Mapping[Any, Any], key: str) -> Any:
    if key not in data:
        raise ValueError(f"it has no {key}")
    return data[key]


def _mapping(data: Any, place: str, keys: Any = str) -> Mapping[Any, Any]:
    if not isinstance(data, dict):
        _reject(place, "not a mapping")
    mapping = cast("dict[Any, Any]", data)
    if not all(isinstance(key, keys) and not isinstance(key, bool) for key in mapping):
        _reject(place, "not a mapping from names")
    return mapping


def _count(value: Any, place: str, *, maximum: int = MAX_STEPS) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        _reject(place, f"not a count of at most {maximum:,}")
    return value


def _reject(place: str, reason: str) -> NoReturn:
    raise ValueError(f"{place} is {reason}")

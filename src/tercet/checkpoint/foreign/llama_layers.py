"""What differs between the layers of a Llama-like model: sliding windows, and rotations.

layer_types       kind of each layer, "sliding_attention" or "full_attention"; by default it follows from
                  max_window_layers (Qwen), sliding_window_pattern (Gemma) or no_rope_layers (SmolLM3)
sliding_window    length of the window in tokens, including the current one
no_rope_layers    0 for each layer without a rotation (SmolLM3)
rope_parameters   in Gemma 3 one mapping for each kind of layer; in older files rope_local_base_freq
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from tercet.checkpoint.foreign.config_keys import read_bool, read_value
from tercet.checkpoint.foreign.features import Feature, features_of_layers
from tercet.checkpoint.foreign.llama_families import Family
from tercet.checkpoint.foreign.rotary_config import read_rotary
from tercet.config import Plain, UserError
from tercet.models import StackSpec
from tercet.nn import Rotary
from tercet.nn.specs import Window
from tercet.spec import Layers, check_range

WINDOW, FIRST_WINDOW_LAYER, NO_ROPE_INTERVAL = 4096, 28, 4  # defaults of transformers
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def read_positions(config: Mapping[str, Any], family: Family) -> Rotary:
    """Return the rotary positions, with the differences between layers.

    Raises:
        UserError: If a key is invalid, or the rotation of layers with a window is scaled.
    """
    if family.layers == "no_rope":
        skipped = tuple(layer for layer, has_rotation in enumerate(_rotated(config)) if not has_rotation)
        return replace(read_rotary(config, kind=family.kind, base=family.base), skip_layers=skipped)
    if family.local_base is None:
        return read_rotary(config, kind=family.kind, base=family.base)
    rope = config.get("rope_parameters")
    by_kind = cast("dict[str, Any]", rope) if isinstance(rope, dict) and (LOCAL in rope or GLOBAL in rope) else {}
    local: dict[str, Any] = {"rope_parameters": by_kind.get(LOCAL), "rope_theta": config.get("rope_local_base_freq")}
    position = read_rotary(
        {**config, "rope_parameters": by_kind.get(GLOBAL) if by_kind else rope}, kind=family.kind, base=family.base
    )
    context = {"max_position_embeddings": config.get("max_position_embeddings")}
    local_position = read_rotary(local | context, kind=family.kind, base=family.local_base)
    if local_position == position or not any(_slides(config, family)):
        return position
    if local_position.scaling is not None:
        raise UserError(f"layers with a window have a scaled rotation, which Tercet does not support for {family.kind}")
    return replace(position, local_base=local_position.base)


def read_window(config: Mapping[str, Any], family: Family, context: int, *, keep: bool) -> Window | None:
    """Return the sliding window; None if no layer has one, or if it is at least as long as the context.

    Args:
        config: Content of config.json.
        family: Family of the model.
        context: Context length of the model.
        keep: If True, a window longer than the context is kept, because it selects the layers with another base.

    Raises:
        UserError: If a key is invalid.
    """
    slides = _slides(config, family)
    if not any(slides):
        return None
    size = read_value(config, "sliding_window", int, WINDOW)
    if size >= context and not keep:
        return None
    return Window(size=size, global_layers=tuple(layer for layer, has_window in enumerate(slides) if not has_window))


def features_of_family_layers(stack: StackSpec, family: Family) -> list[Feature]:
    """Return the features that differ between layers, each with the values that the family supports."""
    features = features_of_layers(
        "stack",
        stack,
        window=bool(family.window),
        local_base=family.local_base is not None,
        skip_layers=family.layers == "no_rope",
    )
    if family.layers == "window" and stack.window is not None:
        features.append(("stack.window.global_layers", stack.window.global_layers, [()]))
    return features


def write_layers(stack: StackSpec, family: Family) -> Plain:
    """Return the keys of the config for windows and for layers with another rotation."""
    if not family.window:
        return {}
    window, position = stack.window, stack.position
    settings: Plain = {"sliding_window": None if window is None else window.size}
    if family.layers == "window":
        return settings
    settings["layer_types"] = [LOCAL if is_local else GLOBAL for is_local in stack.is_local]
    if isinstance(family.window, str):
        settings[family.window] = window is not None
    if family.layers == "first":
        settings["max_window_layers"] = 0
    if family.layers == "no_rope" and isinstance(position, Rotary):
        settings["no_rope_layers"] = [int(layer not in position.skip_layers) for layer in range(stack.n_layers)]
    return settings


def _slides(config: Mapping[str, Any], family: Family) -> list[bool]:
    """Return whether each layer has a window."""
    n_layers = _n_layers(config)
    switch = family.window
    is_on = read_bool(config, switch, False) if isinstance(switch, str) else switch
    if not is_on or ("sliding_window" in config and config["sliding_window"] is None):
        return [False] * n_layers
    kinds = config.get("layer_types") if family.layers != "window" else None
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != n_layers or any(kind not in (LOCAL, GLOBAL) for kind in kinds):
            raise UserError(f"layer_types must contain {LOCAL!r} or {GLOBAL!r} for each of the {n_layers} layers")
        return [kind == LOCAL for kind in kinds]
    match family.layers:
        case "window":
            return [True] * n_layers
        case "first":
            first = read_value(config, "max_window_layers", int, FIRST_WINDOW_LAYER)
            return [layer >= first for layer in range(n_layers)]
        case "pattern":
            step = _step(config, "sliding_window_pattern", family.pattern)
            return [(layer + 1) % step != 0 for layer in range(n_layers)]
        case _:
            return [not has_rotation for has_rotation in _rotated(config)]


def _rotated(config: Mapping[str, Any]) -> list[bool]:
    """Return whether each layer has a rotation (SmolLM3)."""
    n_layers, layers = _n_layers(config), config.get("no_rope_layers")
    if layers is None:
        step = _step(config, "no_rope_layer_interval", NO_ROPE_INTERVAL)
        return [(layer + 1) % step != 0 for layer in range(n_layers)]
    if not isinstance(layers, list) or len(layers) < n_layers or any(flag not in (0, 1) for flag in layers):
        raise UserError(f"no_rope_layers must contain 0 or 1 for each of the {n_layers} layers")
    return [bool(flag) for flag in layers[:n_layers]]


def _n_layers(config: Mapping[str, Any]) -> int:
    n_layers = read_value(config, "num_hidden_layers", int)
    check_range("num_hidden_layers", n_layers, Layers)  # before lists of this length are made
    return n_layers


def _step(config: Mapping[str, Any], key: str, default: int) -> int:
    if (step := read_value(config, key, int, default)) < 1:
        raise UserError(f"{key} is {step}; it must be at least 1")
    return step

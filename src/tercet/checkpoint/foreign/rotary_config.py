"""Rotary positions in the config.json of `transformers`, with the scaling for a longer context.

The settings are in `rope_parameters`, or in files of older versions in `rope_scaling` and `rope_theta`.

    default                  no scaling
    linear                   factor
    dynamic                  factor; the original context is max_position_embeddings
    llama3                   factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
    yarn                     factor, beta_fast, beta_slow, attention_factor, truncate, original_max_position_embeddings
"""

import math
from collections.abc import Mapping
from typing import Any

from tercet.checkpoint.foreign.config_keys import read_bool, read_value
from tercet.config import Plain, UserError
from tercet.nn import Rotary
from tercet.nn.specs import DynamicScaling, LinearScaling, Llama3Scaling, Position, Scaling, YaRNScaling

ORIGINAL = "original_max_position_embeddings"


def read_rotary(config: Mapping[str, Any], *, kind: str, base: float = 10_000.0) -> Rotary:
    """Return the rotary positions of a config.

    Args:
        config: Content of config.json.
        kind: Name of the model, for error messages.
        base: Base if the config contains none.

    Raises:
        UserError: If the rotation is scaled in an unknown way, or applies to a part of each head only.
    """
    rope: dict[str, Any] = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    for key in ("rope_scaling", "rope_parameters"):
        settings = config.get(key)
        if settings is not None and not isinstance(settings, dict):
            raise UserError(f"config.json has {settings!r} as {key}; put back the keys of the trained model")
        rope |= {name: value for name, value in (settings or {}).items() if value is not None}
    if read_value(rope, "partial_rotary_factor", float, 1.0) != 1.0:
        raise UserError(f"partial_rotary_factor is not 1, which {kind} of transformers ignores; remove it")
    return Rotary(
        base=read_value(rope, "rope_theta", float, base),
        scaling=_read_scaling(rope, config, kind),
    )


def read_context(config: Mapping[str, Any], position: Position) -> int:
    """Return the context length.

    It is at least that for which dynamic scaling and YaRN are made, since `max_position_embeddings` often remains that
    before scaling.
    """
    context = read_value(config, "max_position_embeddings", int)
    scaling = position.scaling if isinstance(position, Rotary) else None
    if isinstance(scaling, DynamicScaling | YaRNScaling):
        return max(context, int(scaling.factor * scaling.original_max_len))
    return context


def write_rotary(position: Rotary, *, by_kind: bool = False) -> Plain:
    """Return the keys of the config for rotary positions, with dynamic scaling also the original context.

    Args:
        position: Rotary positions.
        by_kind: If True, layers with a window have their own mapping (Gemma 3).
    """
    scaling, base = position.scaling, {"rope_theta": position.base}
    settings = {"rope_type": "default" if scaling is None else scaling.kind, **_write_scaling(scaling)}
    keys: Plain = {
        **({"max_position_embeddings": scaling.original_max_len} if isinstance(scaling, DynamicScaling) else {}),
        **base,  # read by older versions, as are rope_scaling and rope_local_base_freq
        **({} if scaling is None else {"rope_scaling": settings}),
        "rope_parameters": settings | base,
    }
    if not by_kind:
        return keys
    local = settings | base
    if position.local_base is not None:
        local = {"rope_type": "default", "rope_theta": position.local_base}
    return keys | {
        "rope_local_base_freq": local["rope_theta"],
        "rope_parameters": {"full_attention": settings | base, "sliding_attention": local},
    }


def _read_scaling(rope: Mapping[str, Any], config: Mapping[str, Any], kind: str) -> Scaling | None:
    name = rope.get("rope_type", rope.get("type", "default"))
    if name == "default":
        return None
    if name not in ("linear", "dynamic", "llama3", "yarn"):
        raise UserError(f"the rotation of this {kind} is scaled by {name!r}, which Tercet does not support")
    context = read_value(config, "max_position_embeddings", int)
    original = read_value(rope, ORIGINAL, int, context)
    if original < 1:
        raise UserError(f"{ORIGINAL} is {original}; it must be at least 1")
    if name == "yarn" and rope.get("factor") is None:
        return _read_yarn(dict(rope) | {"factor": context / original}, original)
    factor = read_value(rope, "factor", float)
    if name == "linear":
        return LinearScaling(factor=factor)
    if name == "dynamic":
        return DynamicScaling(factor=factor, original_max_len=context)
    if name == "llama3":
        low, high = (read_value(rope, f"{side}_freq_factor", float) for side in ("low", "high"))
        return Llama3Scaling(factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_len=original)
    return _read_yarn(rope, original)


def _read_yarn(rope: Mapping[str, Any], original: int) -> YaRNScaling:
    factor, attention_factor = read_value(rope, "factor", float), None
    if rope.get("attention_factor") is not None:
        attention_factor = read_value(rope, "attention_factor", float)
    elif rope.get("mscale") and rope.get("mscale_all_dim"):  # DeepSeek's settings of the same number
        one, all_dims = (
            0.1 * read_value(rope, key, float) * math.log(factor) + 1 if factor > 1 else 1.0
            for key in ("mscale", "mscale_all_dim")
        )
        attention_factor = one / all_dims
    return YaRNScaling(
        factor=factor,
        original_max_len=original,
        beta_fast=read_value(rope, "beta_fast", float, 32.0),
        beta_slow=read_value(rope, "beta_slow", float, 1.0),
        attention_factor=attention_factor,
        truncate=read_bool(rope, "truncate", True),
    )


def _write_scaling(scaling: Scaling | None) -> Plain:
    match scaling:
        case LinearScaling() | DynamicScaling():
            return {"factor": scaling.factor}
        case Llama3Scaling():
            return {
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                ORIGINAL: scaling.original_max_len,
            }
        case YaRNScaling():
            settings = {
                "factor": scaling.factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "attention_factor": scaling.attention_factor,
                "truncate": scaling.truncate,
                ORIGINAL: scaling.original_max_len,
            }
            return {key: value for key, value in settings.items() if value is not None}
        case _:
            return {}

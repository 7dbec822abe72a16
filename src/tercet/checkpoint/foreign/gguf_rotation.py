"""Scaled rotary positions in the format of llama.cpp.

Linear scaling and YaRN are settings. The scaling of Llama 3.1 is stored as one number per pair of elements, by which
its frequency is divided; the settings of the scaling are found by comparison. llama.cpp multiplies queries and keys of
YaRN by 0.1 ln(factor) + 1, so another attention factor is not supported.
"""

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tercet.checkpoint.foreign.features import Feature, features_of_scaling
from tercet.config import Plain, UserError
from tercet.models import StackSpec
from tercet.nn import Rotary
from tercet.nn.positions import RotaryPositions
from tercet.nn.rotary_scaling import attention_factor
from tercet.nn.specs import LinearScaling, Llama3Scaling, YaRNScaling

FREQUENCIES = "rope_freqs.weight"
TYPE, FACTOR, ORIGINAL = (f"rope.scaling.{key}" for key in ("type", "factor", "original_context_length"))
ORIGINAL_CONTEXTS = [1 << power for power in range(8, 18)]  # of scalings that are recognized in `rope_freqs`


class FileSettings(Protocol):
    """The settings of a GGUF file, by their names without the architecture."""

    def read_int(self, key: str, default: int | None = None) -> int: ...

    def read_float(self, key: str, default: float | None = None) -> float: ...


def read_scaling(
    kind: Any, settings: FileSettings, divisors: Tensor | None, *, base: float, head_dim: int, context: int
) -> Plain:
    """Return `rope_scaling` of `transformers`; empty without scaling.

    Args:
        kind: Kind of scaling in the settings, such as "yarn", or "none".
        settings: Settings of the file.
        divisors: The tensor `rope_freqs.weight`; None if the file has none.
        base: Base of the frequencies.
        head_dim: Width of a head.
        context: Context length of the model.

    Raises:
        UserError: If the scaling is not supported.
    """
    if kind in ("linear", "yarn"):
        if divisors is not None:
            raise UserError(f"its rotation is scaled twice, by {TYPE} and {FREQUENCIES}, which Tercet does not support")
        original = {"original_max_position_embeddings": settings.read_int(ORIGINAL, context)} if kind == "yarn" else {}
        return {"rope_type": kind, "factor": settings.read_float(FACTOR), **original}
    if kind != "none":
        raise UserError(f"its rotation is scaled ({kind}), which Tercet does not support")
    if divisors is None or bool((divisors == 1).all()):
        return {}
    scaling = _recognize(divisors, base, head_dim)
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_len,
    }


def features_of_rotation(stack: StackSpec, *, has_divisors: bool) -> list[Feature]:
    """Return the features of the scaling, each with the values that llama.cpp supports.

    Args:
        stack: Spec of the stack.
        has_divisors: If True, the architecture supports the scaling of Llama 3.1.
    """
    scaling, key = stack.position.scaling if isinstance(stack.position, Rotary) else None, "stack.position.scaling"
    features = features_of_scaling("stack", stack, ["linear", "yarn", *(["llama3"] if has_divisors else [])])
    if isinstance(scaling, YaRNScaling):
        usual = YaRNScaling(factor=scaling.factor, original_max_len=scaling.original_max_len)
        features += [
            *((f"{key}.{name}", getattr(scaling, name), [getattr(usual, name)]) for name in
              ("beta_fast", "beta_slow", "truncate")),
            (f"{key}.attention_factor", attention_factor(scaling), [attention_factor(usual)]),
        ]  # fmt: skip
    return features


def write_scaling(stack: StackSpec) -> tuple[Plain, dict[str, Tensor]]:
    """Return the settings and tensors of the scaling, by their names without the architecture."""
    assert isinstance(stack.position, Rotary)
    match stack.position.scaling:
        case LinearScaling(factor=factor):
            return {TYPE: "linear", FACTOR: factor}, {}
        case YaRNScaling(factor=factor, original_max_len=original):
            return {TYPE: "yarn", FACTOR: factor, ORIGINAL: original}, {}
        case Llama3Scaling() as scaling:
            return {}, {FREQUENCIES: _divisors(scaling, stack.position.base, stack.head_width)}
        case _:
            return {}, {}


def _divisors(scaling: Llama3Scaling, base: float, head_dim: int) -> Tensor:
    plain, scaled = (
        RotaryPositions(head_dim, base, 1.0, setting).frequencies(torch.zeros(1, 1, dtype=torch.long))
        for setting in (None, scaling)
    )
    return plain / scaled


def _recognize(divisors: Tensor, base: float, head_dim: int) -> Llama3Scaling:
    """Return the scaling with these divisors.

    Raises:
        UserError: If they are not those of Llama 3.1 with any factor and original context.
    """
    factor = round(divisors.float().max().item(), 4)
    if 1 < factor <= 10**4 and 2 * len(divisors) == head_dim:
        for original in ORIGINAL_CONTEXTS:
            scaling = replace(Llama3Scaling(), factor=factor, original_max_len=original)
            if torch.allclose(_divisors(scaling, base, head_dim), divisors.float(), rtol=1e-4):
                return scaling
    raise UserError(f"its rotation is scaled by {FREQUENCIES} unlike Llama 3.1, which Tercet does not support")

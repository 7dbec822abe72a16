"""Checks of whether a format supports a model, and conversions of models for export.

Some variants equal another variant with special weights, and are exported as that one: no bias is a bias of zeros,
fixed positions are a learned table, a scale is part of the embedding, and rows without an id are dropped. Other
unsupported features are rejected by key, with the supported value. Dropout only matters in training. If the format has
fewer dropout rates, the nearest rate is used.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import torch

from tercet.checkpoint.foreign.config_keys import raise_config_errors
from tercet.checkpoint.weights import own_tensors
from tercet.config import UserError
from tercet.models import AnyModel, AnySpec, DecoderOnlySpec, EncoderDecoder, StackSpec, build
from tercet.models.vocabulary import TokenEmbedding
from tercet.nn.specs import Placement

Model = TypeVar("Model", bound=AnyModel)
Feature = tuple[str, Any, Sequence[Any]]  # key of a setting, its value, and the supported values

FIXED_POSITIONS = (
    "learned",
    "sinusoidal",
    "none",
)  # schemes with one vector per position, which a table can contain


def check_features(kind: str, features: Sequence[Feature]) -> None:
    """Reject features whose value `kind` does not support.

    Raises:
        UserError: With their keys and the supported values.
    """
    unsupported = [feature for feature in features if feature[1] not in feature[2]]
    if unsupported:
        values = _list(f"{key} is {_format_setting(value)}" for key, value, _ in unsupported)
        alternatives = _list(f"{key}: {' or '.join(map(_format_setting, allowed))}" for key, _, allowed in unsupported)
        raise UserError(f"{values}, which {kind} does not support; a model with {alternatives} can be converted")


def _list(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def features_of_stack(
    key: str,
    stack: StackSpec,
    *,
    placement: Placement,
    positions: Sequence[str],
    norm: str = "layer",
    gated: bool,
    qk_norm: bool = False,
) -> list[Feature]:
    """Return the features that every stack of a format must have.

    Args:
        key: Key of the stack in a recipe, such as "stack" or "encoder".
        stack: Spec of the stack.
        placement, norm, gated, qk_norm: Supported value of each setting.
        positions: Supported position schemes.
    """
    return [
        (f"{key}.position", stack.position.kind, positions),
        (f"{key}.placement", stack.placement, [placement]),
        (f"{key}.norm", stack.norm, [norm]),
        (f"{key}.gated", stack.gated, [gated]),
        *features_of_block(key, stack),
        (f"{key}.qk_norm", stack.qk_norm, [qk_norm]),
    ]


def features_of_block(key: str, stack: StackSpec) -> list[Feature]:
    """Return two features that a format requires of its blocks.

    Attention and feed-forward network are applied one after the other, not in parallel. There is a final norm unless
    the placement is "post".
    """
    return [
        (f"{key}.parallel", stack.parallel, [False]),
        (f"{key}.final_norm", stack.has_final_norm, [stack.placement != "post"]),
    ]


def features_of_heads(key: str, stack: StackSpec) -> list[Feature]:
    """Return the requirement that each head has its own keys and values, and is d_model / n_heads wide."""
    return [
        feature_of_width(key, stack),
        (f"{key}.n_kv_heads", stack.kv_heads, [stack.n_heads]),
        (f"{key}.d_head", stack.head_width, [stack.d_model // stack.n_heads]),
    ]


def feature_of_width(key: str, stack: StackSpec) -> Feature:
    """Return the requirement that n_heads divides d_model; the supported value is the nearest divisor."""
    divisors = [n for n in range(1, stack.d_model + 1) if stack.d_model % n == 0]
    return (f"{key}.n_heads", stack.n_heads, [min(divisors, key=lambda n: abs(n - stack.n_heads))])


def features_of_vocabulary(spec: AnySpec, *, embedding_norm: bool, tied: bool) -> list[Feature]:
    """Return what a format requires of embedding and logits; a scale can be merged unless they are tied."""
    return [
        ("embedding_norm", spec.embedding_norm, [embedding_norm]),
        ("logit_softcap", spec.logit_softcap, [None]),
        *([("logit_bias", spec.logit_bias, [False])] if isinstance(spec, DecoderOnlySpec) else []),
        ("scale_embedding", spec.scale_embedding, [False] if tied else [False, True]),
    ]


@torch.no_grad()
def rewrite_model(model: Model, spec: AnySpec) -> Model:
    """Return an equivalent model of another spec, which `check_features` has accepted."""
    if spec == model.spec:
        return model
    with raise_config_errors("model"):
        equivalent = build(spec)
    tensors = model.state_dict()
    for name, tensor in own_tensors(equivalent).items():
        if name in tensors:
            tensor.copy_(
                tensors[name][: len(tensor)]
            )  # without rows that pad the vocabulary and positions that are never used
            tensor.mul_(_scale(model, name) / _scale(equivalent, name))
        elif name == "stack.position.table.weight" and not isinstance(model, EncoderDecoder):
            position_table = model.stack.position.embed(torch.arange(len(tensor))[None])
            tensor.copy_(torch.zeros_like(tensor) if position_table is None else position_table[0])
        else:
            tensor.zero_()
    return cast("Model", equivalent.eval())


def _scale(model: AnyModel, name: str) -> float:
    part = model.get_submodule(name.rpartition(".")[0])
    return part.scale if isinstance(part, TokenEmbedding) else 1.0


def _format_setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

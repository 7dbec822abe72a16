"""What the writers of other people's folders share: which of our models have an equal there, and how they become it.

Some of our variants are another variant with special weights, and are written as that one: no bias is a bias of zeros,
fixed positions are a learned table, a scale is part of the embedding, and rows without an id need not be there. What
has no equal is refused by its key, with the value that could be converted. Dropout matters in training alone: where
theirs has fewer places for it, the rate of the nearest is kept.
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
Feature = tuple[str, Any, Sequence[Any]]  # the key of a setting, what it is, what it may be

FIXED_POSITIONS = (
    "learned",
    "sinusoidal",
    "none",
)  # schemes that are a vector for each position, which a table can hold


def check_features(kind: str, features: Sequence[Feature]) -> None:
    """Refuse features that are not what `kind` may have.

    Raises:
        UserError: with their keys, and the settings that could be converted.
    """
    unsupported = [feature for feature in features if feature[1] not in feature[2]]
    if unsupported:
        values = _list(f"{key} is {_format_setting(value)}" for key, value, _ in unsupported)
        alternatives = _list(f"{key}: {' or '.join(map(_format_setting, allowed))}" for key, _, allowed in unsupported)
        raise UserError(f"{values}, which no {kind} has; a model with {alternatives} could be converted")


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
    """What must be so in every stack of theirs.

    Args:
        key: where the stack is in a recipe, such as "stack" or "encoder".
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
    """One sublayer after another, and a last norm where the placement asks for one."""
    return [
        (f"{key}.parallel", stack.parallel, [False]),
        (f"{key}.final_norm", stack.has_final_norm, [stack.placement != "post"]),
    ]


def features_of_heads(key: str, stack: StackSpec) -> list[Feature]:
    """Where all heads have their own keys and values and share the width."""
    return [
        feature_of_width(key, stack),
        (f"{key}.n_kv_heads", stack.kv_heads, [stack.n_heads]),
        (f"{key}.d_head", stack.head_width, [stack.d_model // stack.n_heads]),
    ]


def feature_of_width(key: str, stack: StackSpec) -> Feature:
    """Where the width must be a multiple of the heads."""
    divisors = [n for n in range(1, stack.d_model + 1) if stack.d_model % n == 0]
    return (f"{key}.n_heads", stack.n_heads, [min(divisors, key=lambda n: abs(n - stack.n_heads))])


def features_of_vocabulary(spec: AnySpec, *, embedding_norm: bool, tied: bool) -> list[Feature]:
    """Where the embedding is not scaled: a scale can become part of it unless it scores the tokens as well."""
    return [
        ("embedding_norm", spec.embedding_norm, [embedding_norm]),
        ("logit_softcap", spec.logit_softcap, [None]),
        *([("logit_bias", spec.logit_bias, [False])] if isinstance(spec, DecoderOnlySpec) else []),
        ("scale_embedding", spec.scale_embedding, [False] if tied else [False, True]),
    ]


@torch.no_grad()
def rewrite_model(model: Model, spec: AnySpec) -> Model:
    """The same function as a model of another spec, which `check_features` has found to be one."""
    if spec == model.spec:
        return model
    with raise_config_errors("model"):
        equivalent = build(spec)
    tensors = model.state_dict()
    for name, tensor in own_tensors(equivalent).items():
        if name in tensors:
            tensor.copy_(tensors[name][: len(tensor)])  # left out: rows that pad the vocabulary, positions never used
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

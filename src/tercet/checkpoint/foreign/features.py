"""Checks of whether a format supports a model, and conversions of models for export.

Some variants equal another variant with special weights, and are exported as that one: a missing bias becomes a bias of
zeros, fixed positions become a learned table, and the scale of the embedding is multiplied into its matrix. A norm that
parallel sublayers share is copied for each of them. A norm of
the embeddings becomes a table of normalized embeddings, since without added positions it only depends on the token; the
logits then need a separate matrix, and the two sides of a translator a table each. ReLU(x)^2 without a gate becomes
ReLU(x) with the gate x. Rows without an id are dropped. Other unsupported features are rejected; the message contains
their keys and the supported values. Dropout only matters in training. If a format has fewer dropout rates than the
model, one of the model's rates is written for several.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from tercet.checkpoint.foreign.config_keys import raise_config_errors
from tercet.checkpoint.weights import own_tensors
from tercet.config import UserError
from tercet.custom_code import is_import_path
from tercet.models import (
    AnyModel,
    AnySpec,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    StackSpec,
    build,
)
from tercet.models.vocabulary import TokenEmbedding
from tercet.nn.positions import PositionScheme
from tercet.nn.specs import Parallel, Placement, QKNorm, Rotary
from tercet.spec import Custom

Model = TypeVar("Model", bound=AnyModel)
Spec = TypeVar("Spec", DecoderOnlySpec, EncoderOnlySpec, EncoderDecoderSpec)
Feature = tuple[str, Any, Sequence[Any]]  # key of a setting, its value, and the supported values

FIXED_POSITIONS = (
    "learned",
    "sinusoidal",
    "none",
)  # schemes with one vector per position, which a table can contain

EMBEDDINGS = ("embedding.weight", "source_embedding.weight")


@dataclass(frozen=True)
class Support:
    """Features of a model, each with the values that a format supports.

    The features follow from the spec alone, so it is known before training whether the model can be converted.

    Attributes:
        kind: Name of the format, for the error message.
        features: Features of the model. If a key occurs several times, all occurrences apply.
        remedy: Remedy in the error message (default: the supported values).
    """

    kind: str
    features: Sequence[Feature]
    remedy: str | None = None

    @property
    def problems(self) -> list[Feature]:
        """Features with an unsupported value, each key once; empty if the model can be converted.

        If the model has parts of other packages, these are the only problems: no other program has them, and which
        settings are supported depends on the parts that replace them.
        """
        problems = {feature[0]: feature for feature in self.features if feature[1] not in feature[2]}.values()
        return [feature for feature in problems if _is_of_other_package(feature)] or list(problems)

    def describe(self) -> list[str]:
        """Return the problems as "key: value"."""
        return [f"{key}: {_format_setting(value)}" for key, value, _ in self.problems]

    def check(self) -> None:
        """Reject features with an unsupported value.

        Raises:
            UserError: If a value is not supported; the message contains all such keys and the supported values.
        """
        if problems := self.problems:
            values = _list(f"{key} is {_format_setting(value)}" for key, value, _ in problems)
            alternatives = _list(f"{key}: {' or '.join(map(_format_setting, allowed))}" for key, _, allowed in problems)
            remedy = self.remedy or f"a model with {alternatives} can be converted"
            if _is_of_other_package(problems[0]):
                remedy = "only Tercet has parts of other packages; a model with built-in parts can be converted"
            raise UserError(f"{values}, which {self.kind} does not support; {remedy}")


def _is_of_other_package(feature: Feature) -> bool:
    value = feature[1]
    return isinstance(value, Custom) or (isinstance(value, str) and is_import_path(value))


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
    qk_norm: QKNorm = False,
    parallel: Sequence[Parallel] = (False,),
    layers_differ: bool = False,
    first_norm: bool = True,
    softcap: bool = False,
) -> list[Feature]:
    """Return features of a stack, each with the values that a format supports.

    Args:
        key: Key of the stack in a recipe, such as "stack" or "encoder".
        stack: Spec of the stack.
        placement, norm, gated, qk_norm, first_norm: Value of each setting that the format supports.
        positions, parallel: Position schemes and values of `parallel` that the format supports.
        softcap: If True, a bound of the attention scores is supported.
        layers_differ: If True, the caller checks the features that differ between layers, and scaled rotations.
    """
    return [
        (f"{key}.position", stack.position.kind, positions),
        (f"{key}.placement", stack.placement, [placement]),
        (f"{key}.norm", stack.norm, [norm]),
        (f"{key}.gated", stack.gated, [gated]),
        *features_of_block(key, stack, parallel=parallel, first_norm=first_norm, softcap=softcap),
        *([] if layers_differ else [*features_of_layers(key, stack), *features_of_scaling(key, stack, [])]),
        (f"{key}.qk_norm", stack.qk_norm, [qk_norm]),
    ]


def features_of_block(
    key: str,
    stack: StackSpec,
    *,
    parallel: Sequence[Parallel] = (False,),
    first_norm: bool = True,
    softcap: bool = False,
) -> list[Feature]:
    """Return features of a block, and `final_norm` of a stack, each with the values that a format supports.

    By default, attention and feed-forward network must be applied one after the other, not in parallel, and attention
    scores must have no bound. There must be a final norm unless the placement of norms is "post"; then there must be
    none. Other programs do not have the parts of other packages.
    """
    return [
        *((f"{key}.{name}", part.kind, [default]) for name, part, default in _custom_parts(stack)),
        (f"{key}.parallel", stack.parallel, parallel),
        (f"{key}.first_norm", stack.first_norm, [first_norm]),
        (f"{key}.attention_softcap", stack.attention_softcap, [stack.attention_softcap if softcap else None]),
        (f"{key}.final_norm", stack.has_final_norm, [stack.placement != "post"]),
    ]


def _custom_parts(stack: StackSpec) -> Iterator[tuple[str, Custom, str | None]]:
    """Yield the key and value of each part of a block from another package, and the default of its setting."""
    for name in ("norm", "activation", "feedforward", "attention"):
        if isinstance(part := getattr(stack, name), Custom):
            yield name, part, getattr(StackSpec, name)


def features_of_layers(
    key: str, stack: StackSpec, *, window: bool = False, local_base: bool = False, skip_layers: bool = False
) -> list[Feature]:
    """Return the features that differ between layers. An argument is True if the format supports the feature.

    Args:
        key: Key of the stack in a recipe.
        stack: Spec of the stack.
        window: Sliding windows.
        local_base: Another base of the rotation in layers with a window.
        skip_layers: Layers without a rotation.
    """
    position = stack.position if isinstance(stack.position, Rotary) else Rotary()
    size = None if stack.window is None else stack.window.size
    return [
        (f"{key}.window.size", size, [size if window else None]),
        (f"{key}.position.local_base", position.local_base, [position.local_base if local_base else None]),
        (f"{key}.position.skip_layers", position.skip_layers, [position.skip_layers if skip_layers else ()]),
    ]


def features_of_scaling(key: str, stack: StackSpec, kinds: Sequence[str]) -> list[Feature]:
    """Return the requirement that rotary positions are not scaled, or in one of these ways."""
    scaling = stack.position.scaling if isinstance(stack.position, Rotary) else None
    return [] if scaling is None else [(f"{key}.position.scaling.kind", scaling.kind, [*kinds, None])]


def features_of_heads(key: str, stack: StackSpec) -> list[Feature]:
    """Return the requirements that each head has its own keys and values, and that it is d_model / n_heads wide."""
    return [
        feature_of_width(key, stack),
        (f"{key}.n_kv_heads", stack.kv_heads, [stack.n_heads]),
        (f"{key}.d_head", stack.head_width, [stack.d_model // stack.n_heads]),
    ]


def feature_of_width(key: str, stack: StackSpec) -> Feature:
    """Return the requirement that n_heads divides d_model; the supported value is the nearest divisor."""
    divisors = [n for n in range(1, stack.d_model + 1) if stack.d_model % n == 0]
    return (f"{key}.n_heads", stack.n_heads, [min(divisors, key=lambda n: abs(n - stack.n_heads))])


def features_of_vocabulary(spec: AnySpec, *, embedding_norm: bool, tied: bool, softcap: bool = False) -> list[Feature]:
    """Return features of embedding and logits, each with the values that a format supports.

    Args:
        spec: Spec of the model.
        embedding_norm: Value of this setting that the format supports.
        tied: If True, a scale of the embedding is not supported, since it cannot be merged into a matrix that also
            computes the logits.
        softcap: If True, a bound of the logits is supported.
    """
    return [
        ("embedding_norm", spec.embedding_norm, [embedding_norm]),
        ("logit_softcap", spec.logit_softcap, [spec.logit_softcap if softcap else None]),
        *([("logit_bias", spec.logit_bias, [False])] if isinstance(spec, DecoderOnlySpec) else []),
        ("scale_embedding", spec.scale_embedding, [False] if tied else [False, True]),
    ]


def features_of_classifier(spec: EncoderOnlySpec) -> list[Feature]:
    """Return the requirement that a classifier has no transform."""
    return [] if spec.classifier is None else [("classifier.transform", spec.classifier.transform, [False])]


@torch.no_grad()
def rewrite_model(model: Model, spec: AnySpec) -> Model:
    """Return an equivalent model of another spec, in eval mode; `model` itself if the specs are equal.

    The specs may only differ in variants that the description of this module lists.
    """
    if spec == model.spec:
        return model
    with raise_config_errors("model"):
        equivalent = build(spec)
    tensors = model.state_dict()
    for name, tensor in own_tensors(equivalent).items():
        if name in EMBEDDINGS and model.spec.embedding_norm and not spec.embedding_norm:
            tensor.copy_(_normalized_embeddings(model, name)[: len(tensor)] / _scale(equivalent, name))
        elif name in tensors:
            tensor.copy_(
                tensors[name][: len(tensor)]
            )  # without rows that pad the vocabulary, and without positions that are never used
            tensor.mul_(_scale(model, name) / _scale(equivalent, name))
        elif ".feedforward.gate." in name and (up := name.replace(".gate.", ".up.")) in tensors:
            tensor.copy_(tensors[up])
        elif (shared := name.replace(".feedforward_residual.", ".self_residual.")) != name and shared in tensors:
            tensor.copy_(tensors[shared])
        elif name.endswith("position.table.weight"):
            positions = cast("PositionScheme", model.get_submodule(name.removesuffix(".table.weight")))
            position_table = positions.embed(torch.arange(len(tensor))[None])
            tensor.copy_(torch.zeros_like(tensor) if position_table is None else position_table[0])
        else:
            tensor.zero_()
    return cast("Model", equivalent.eval())


def gate_squared_relu(stack: StackSpec) -> StackSpec:
    """Return the spec of an equivalent stack with a gate, if the activation is ReLU squared without one."""
    if stack.activation != "relu_squared" or stack.gated:
        return stack
    return replace(stack, activation="relu", gated=True, d_ff=stack.inner_width)  # the default depends on the gate


def fold_embedding_norm(spec: Spec) -> Spec:
    """Return the spec of an equivalent model without a norm of the embeddings; the logits get a separate matrix.

    No position or segment may be added to the embeddings. The two sides of a translator get an embedding each, since
    each has its own norm.
    """
    if not spec.embedding_norm:
        return spec
    separate_sides = {"share_embeddings": False} if isinstance(spec, EncoderDecoderSpec) else {}
    return replace(spec, embedding_norm=False, tie_embeddings=False, **separate_sides)


def _normalized_embeddings(model: AnyModel, name: str) -> Tensor:
    """Return the embedding of each id (V, D) after the norm of the embeddings, from the tensor `name` of a model."""
    embedding = model.get_submodule(name.removesuffix(".weight"))
    if isinstance(model, EncoderDecoder):
        stack = model.encoder if embedding is model.source_embedding else model.decoder
    else:
        stack = model.stack
    ids = torch.arange(len(model.get_parameter(name)), device=model.get_parameter(name).device)
    return stack.embedding_norm(embedding(ids))


def _scale(model: AnyModel, name: str) -> float:
    part = model.get_submodule(name.rpartition(".")[0])
    return part.scale if isinstance(part, TokenEmbedding) else 1.0


def _format_setting(value: Any) -> str:
    if isinstance(value, Custom):
        return value.kind
    return value if isinstance(value, str) else json.dumps(value)

"""The classifier of a ModernBERT whose layers before the scores are linear.

ModernBERT has a dense layer, an activation and a norm before the scores, and Tercet's classifier W y + b may have none.
A linear activation removes the second of them. The norm divides by a deviation that depends on y, unless constants in
other columns are much larger than W y. With powers of two s and c, the layers compute

    z = [s W y; -s W y; 0; c; -c]        mean of z: 0        variance of z: nearly 2 c^2 / D
    scores = 1 / 2s [I, -I, 0] norm(z) + b                   weight of the norm: its deviation if W y is 0

which needs 2 labels + 2 <= D columns. The final norm bounds the length of y, so s can be so small that the deviation
depends on y by less than float32 resolves. Only classifiers of this form are read.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tercet.checkpoint.foreign.features import Feature
from tercet.checkpoint.foreign.identity_head import LINEAR
from tercet.config import UserError
from tercet.messages import show
from tercet.models import EncoderOnlySpec

CONSTANT = 256.0  # c; float16 contains it
MARGIN = 4096.0  # c is at least this many times the length of s W y
DENSE, NORM, SCORES = "head.dense", "head.norm", "classifier.weight"


def features_of_labels(spec: EncoderOnlySpec) -> list[Feature]:
    """Return the requirement that the layers have enough columns for the labels of a classifier without a transform."""
    if spec.classifier is None or spec.classifier.transform:
        return []
    n_labels = len(spec.classifier.labels)
    return [("number of classifier.labels", n_labels, [min(n_labels, _max_labels(spec.stack.d_model))])]


def write_linear_classifier(state: Mapping[str, Tensor], final_norm: str, *, eps: float) -> dict[str, Tensor]:
    """Return the tensors with a linear classifier replaced by the equivalent one with a dense layer and a norm.

    Args:
        state: Tensors by name.
        final_norm: Name of the norm of the hidden states.
        eps: The eps of the norms.
    """
    weight, norm, bias = state[SCORES], state[f"{final_norm}.weight"], state.get(f"{final_norm}.bias")
    width = weight.shape[1]
    bounds = (weight * norm).double().norm(dim=1) * math.sqrt(width)  # of |W y|: normalized vectors have length sqrt(D)
    if bias is not None:
        bounds = bounds + (weight @ bias).abs()
    scale = 2.0 ** math.floor(math.log2(CONSTANT / MARGIN / (bounds.norm().item() or 1.0)))
    return {**state, **_layers(weight, scale, eps=eps, norm_bias=bias is not None)}


def read_linear_classifier(tensors: Mapping[str, Tensor], *, eps: float) -> dict[str, Tensor]:
    """Return the tensors with the linear classifier; reverse `write_linear_classifier`.

    Raises:
        UserError: If the layers before the scores are not of this form.
    """
    names = [name for name in tensors if name == SCORES or name.startswith((DENSE, NORM))]
    scores, dense = tensors[SCORES], tensors[f"{DENSE}.weight"]
    n_labels, width = scores.shape
    if n_labels <= _max_labels(width) and dense.shape == (width, width) and 0 < scores[0, 0] < math.inf:
        scale = 0.5 / scores[0, 0].item()
        linear = dense[:n_labels] / scale
        expected = _layers(linear, scale, eps=eps, norm_bias=f"{NORM}.bias" in tensors)
        if expected.keys() == {*names} and all(torch.equal(tensors[name], expected[name]) for name in names):
            return {name: tensor for name, tensor in tensors.items() if name not in names} | {SCORES: linear}
    raise UserError(
        f"classifier_activation is {show(LINEAR)}, which Tercet supports only if the layers before the scores change "
        "nothing; open the model from which it was fine-tuned"
    )


def _layers(weight: Tensor, scale: float, *, eps: float, norm_bias: bool) -> dict[str, Tensor]:
    """Return the layers before the scores, and the matrix of the scores, for the weight W (L, D) and the factor s."""
    n_labels, width = weight.shape
    identity, rest = torch.eye(n_labels, dtype=weight.dtype), width - 2 * n_labels
    bias = weight.new_zeros(width)
    bias[-2:] = weight.new_tensor([CONSTANT, -CONSTANT])
    scores = torch.cat([identity, -identity, weight.new_zeros(n_labels, rest)], dim=1)
    return {
        f"{DENSE}.weight": torch.cat([scale * weight, -scale * weight, weight.new_zeros(rest, width)]),
        f"{DENSE}.bias": bias,
        f"{NORM}.weight": weight.new_full((width,), math.sqrt(2 * CONSTANT**2 / width + eps)),
        **({f"{NORM}.bias": weight.new_zeros(width)} if norm_bias else {}),
        SCORES: scores / (2 * scale),
    }


def _max_labels(width: int) -> int:
    return max(0, (width - 2) // 2)

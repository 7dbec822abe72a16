"""Direct logit attribution: which part of a model speaks for a token, and how much.

    logit = sum over parts c of  u · N(c)      u the token's row of the unembedding, N all norms between c and the top

The residual stream is a sum: of the embedding, of each head's output, of each feed-forward network's. A norm divides
by a number that all parts together make; with that number held at what it was in this pass, a norm is linear, and the
logit falls apart into the share of each part. Elhage et al. (2021), "A Mathematical Framework
for Transformer Circuits".

What a part does for others, as a head does whose output a later head reads, is in their share, not in its own.
Everything is in float64, and of one row and position, so it costs little beside the pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tercet.config import UserError
from tercet.inspect.lens import stacks_of
from tercet.inspect.recording import Recording
from tercet.models import AnyModel, EncoderOnly
from tercet.nn import Attention, Block, Residual
from tercet.nn.norm import StdLayerNorm

Parts = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Attributes:
    names: of the parts, from the bottom up; "norm bias" is all norms' together, "rest" what no part explains: an edit
        of the stream itself, dropout in training, rounding.
    values: the share of each part in the logit of each id asked for; over the parts they sum to it, before a softcap.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "C n"]

    @property
    def logits(self) -> Float[Tensor, " n"]:
        return self.values.sum(0)


@torch.no_grad()
def attribute(
    model: AnyModel, activations: Mapping[str, Tensor], *, position: int, ids: Sequence[int], row: int = 0
) -> Attribution:
    """The logits of `ids` at one position as sums over the parts of the model.

    Args:
        activations: a recording of the whole pass.
        row: of the batch.

    Raises:
        ValueError: for a masked head with a transform, which is not linear, and an id or position that is not there.
    """
    if isinstance(model, EncoderOnly) and (model.spec.masked_head is None or model.spec.masked_head.transform):
        raise ValueError(
            "the model scores no words, so there is no logit to attribute"
            if model.spec.masked_head is None
            else "the masked head's transform is not linear, so its logits are no sum over the parts; "
            "read the lens instead"
        )
    name, stack = list(stacks_of(model).items())[-1]
    rows, length = activations[f"{name}.dropout"].shape[:2]
    _check("row", [row], rows)
    _check("position", [position], length)
    _check("id", ids, model.vocab_size)

    def at(tensor: str) -> Tensor:
        return _exact(activations[tensor].expand(rows, length, -1)[row, position])  # (D)

    parts: Parts = {"embedding": at("embedding")}
    if "segment_embedding" in activations:
        parts["segment"] = at("segment_embedding")
    if f"{name}.position.embed" in activations:
        parts["position"] = at(f"{name}.position.embed")
    parts = _normed(stack.embedding_norm, parts)
    _settle(parts, at(f"{name}.dropout"))
    for i, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        inside = f"{name}.blocks.{i}"

        def spoken(attention: Attention, called: str, kind: str, i: int = i, inside: str = inside) -> Parts:
            heads = _exact(activations[f"{inside}.{called}.heads"][row, :, position])  # (H, K)
            weight = _exact(attention.out.weight).unflatten(1, heads.shape)  # (D, H, K)
            said = dict(zip(_heads(i, kind, len(heads)), torch.einsum("dhk,hk->hd", weight, heads), strict=True))
            bias = getattr(attention.out, "bias", None)
            if isinstance(bias, Tensor):
                said[f"blocks.{i} {kind}attention bias"] = _exact(bias)
            return said

        parts = _added(block.self_residual, parts, spoken(block.self_attention, "self_attention", ""))
        _settle(parts, at(f"{inside}.self_residual"))
        if block.cross_attention is not None and block.cross_residual is not None:
            parts = _added(block.cross_residual, parts, spoken(block.cross_attention, "cross_attention", "cross "))
            _settle(parts, at(f"{inside}.cross_residual"))
        parts = _added(block.feedforward_residual, parts, {f"blocks.{i} mlp": at(f"{inside}.feedforward")})
        _settle(parts, at(inside))
    parts = _normed(stack.final_norm, parts)
    _settle(parts, at(f"{name}.final_norm"))
    rows_of = _exact(model.unembedding.weight[list(ids)])  # (n, D)
    shares = {part: rows_of @ vector for part, vector in parts.items()}
    rest = shares.pop("rest")
    if model.unembedding.bias is not None:
        shares["unembedding bias"] = _exact(model.unembedding.bias[list(ids)])
    shares["rest"] = rest
    return Attribution(names=tuple(shares), values=torch.stack(list(shares.values())))


def attribute_logit(model: AnyModel, recording: Recording, *, row: int, token: int) -> Attribution:
    """`attribute` of one token's logit at a row of what was read.

    Raises:
        UserError: where it cannot be attributed.
    """
    try:
        return attribute(model, recording.activations, position=row, ids=[token])
    except ValueError as error:
        raise UserError(str(error)) from None


def _heads(block: int, kind: str, count: int) -> list[str]:
    return [f"blocks.{block} {kind}head {head}" for head in range(count)]


def _added(residual: Residual, stream: Parts, said: Parts) -> Parts:
    """after(stream + branch(said)), as `Residual` does; `before` is the sublayer's own affair."""
    branch = _normed(residual.branch, said)
    together = stream | {part: stream.get(part, 0.0) + vector for part, vector in branch.items()}
    return _normed(residual.after, together)


def _normed(norm: nn.Module, parts: Parts) -> Parts:
    """Each part through the norm, its statistics those of their sum."""
    if isinstance(norm, nn.Identity):
        return dict(parts)
    whole = torch.stack(list(parts.values())).sum(0)  # (D)
    assert isinstance(norm, nn.LayerNorm | StdLayerNorm | nn.RMSNorm)
    assert norm.eps is not None
    centred = not isinstance(norm, nn.RMSNorm)
    if isinstance(norm, StdLayerNorm):
        size = whole.std() + norm.eps
    else:
        size = (whole.var(correction=0) if centred else whole.square().mean()).add(norm.eps).sqrt()
    slope = _exact(norm.weight) / size
    normed = {part: (vector - vector.mean() if centred else vector) * slope for part, vector in parts.items()}
    bias = None if isinstance(norm, nn.RMSNorm) else norm.bias
    if bias is not None:
        normed["norm bias"] = normed.get("norm bias", 0.0) + _exact(bias)
    return normed


def _settle(parts: Parts, actual: Tensor) -> None:
    """Put what the pass has, and the parts do not say, into the rest."""
    missing = actual - torch.stack(list(parts.values())).sum(0)
    parts["rest"] = parts.get("rest", 0.0) + missing


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def _check(what: str, numbers: Sequence[int], size: int) -> None:
    beyond = [number for number in numbers if not 0 <= number < size]
    if beyond:
        raise ValueError(f"there is no {what} {beyond[0]}; there are {size}, 0 to {size - 1}")

"""Direct logit attribution: the contribution of each part of a model to a token's logit.

    logit = sum over parts c of  u · N(c)      u: the token's row of the unembedding, N: all norms between c and the top

The residual stream is a sum of the embedding, the output of each head and the output of each feed-forward network. A
norm divides by a number that depends on all parts. With this number fixed to its value in the forward pass, a norm is
linear, and the logit is a sum over the parts (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").

If a part affects the logit through a later part, such as a head whose output a later head reads, this effect counts for
the later part. Everything is computed in float64 for one row and position, so it is cheap compared with the forward
pass.
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
    """Contributions of the parts of a model to logits.

    Attributes:
        names: Names of the parts, from the embedding to the unembedding. "norm bias" is the contribution of the biases
            of all norms. "rest" is the difference that no part explains: an edit of the residual stream itself, dropout
            in training, rounding.
        values: Contribution of each of the C parts to the logits of n ids. They sum to the logit before a softcap.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "C n"]

    @property
    def logits(self) -> Float[Tensor, " n"]:
        """Logit of each id before a softcap."""
        return self.values.sum(0)


@torch.no_grad()
def attribute(
    model: AnyModel, activations: Mapping[str, Tensor], *, position: int, ids: Sequence[int], row: int = 0
) -> Attribution:
    """Split the logits of `ids` at one position into contributions of the model's parts.

    Args:
        activations: All tensors of a forward pass of the model, as from `record`.
        position, ids: Position and token ids whose logits are split.
        row: Row of the batch.

    Raises:
        ValueError: If there is no language-model head, it or a norm is not linear, or an index is out of range.
    """
    if isinstance(model, EncoderOnly) and (model.spec.masked_head is None or model.spec.masked_head.transform):
        raise ValueError(
            "the model has no language-model head, so there is no logit to attribute"
            if model.spec.masked_head is None
            else "the masked head's transform is not linear, so its logits are not a sum over the parts; "
            "use the logit lens instead"
        )
    name, stack = list(stacks_of(model).items())[-1]
    rows, length = activations[f"{name}.dropout"].shape[:2]
    _check("row", [row], rows)
    _check("position", [position], length)
    _check("id", ids, model.vocab_size)

    def vector_of(tensor: str) -> Tensor:
        return _to_float64(activations[tensor].expand(rows, length, -1)[row, position])  # (D)

    def heads_of(attention: str) -> Tensor:
        return _to_float64(activations[f"{attention}.heads"][row, :, position])  # (H, K)

    parts: Parts = {"embedding": vector_of("embedding")}
    if "segment_embedding" in activations:
        parts["segment"] = vector_of("segment_embedding")
    if f"{name}.position.embed" in activations:
        parts["position"] = vector_of(f"{name}.position.embed")
    parts = _apply_norm(stack.embedding_norm, parts)
    _set_rest(parts, vector_of(f"{name}.dropout"))
    for i, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        prefix = f"{name}.blocks.{i}"
        heads = _split_heads(block.self_attention, heads_of(f"{prefix}.self_attention"), f"blocks.{i} ")
        parts = _add_branch(block.self_residual, parts, heads)
        _set_rest(parts, vector_of(f"{prefix}.self_residual"))
        if block.cross_attention is not None and block.cross_residual is not None:
            heads = _split_heads(block.cross_attention, heads_of(f"{prefix}.cross_attention"), f"blocks.{i} cross ")
            parts = _add_branch(block.cross_residual, parts, heads)
            _set_rest(parts, vector_of(f"{prefix}.cross_residual"))
        parts = _add_branch(block.feedforward_residual, parts, {f"blocks.{i} mlp": vector_of(f"{prefix}.feedforward")})
        _set_rest(parts, vector_of(prefix))
    parts = _apply_norm(stack.final_norm, parts)
    _set_rest(parts, vector_of(f"{name}.final_norm"))
    rows_of_ids = _to_float64(model.unembedding.weight[list(ids)])  # (n, D)
    shares = {part: rows_of_ids @ vector for part, vector in parts.items()}
    rest = shares.pop("rest")
    if model.unembedding.bias is not None:
        shares["unembedding bias"] = _to_float64(model.unembedding.bias[list(ids)])
    shares["rest"] = rest
    return Attribution(names=tuple(shares), values=torch.stack(list(shares.values())))


def attribute_logit(model: AnyModel, recording: Recording, *, row: int, token: int) -> Attribution:
    """Apply `attribute` to the logit of one token id at one row of a recording.

    Raises:
        UserError: If the logit cannot be attributed.
    """
    try:
        return attribute(model, recording.activations, position=row, ids=[token])
    except ValueError as error:
        raise UserError(str(error)) from None


def _name_heads(prefix: str, count: int) -> list[str]:
    return [f"{prefix}head {head}" for head in range(count)]


def _split_heads(attention: Attention, heads: Float[Tensor, "H K"], name: str) -> Parts:
    """Split the output of attention into parts, its heads and the bias, whose names start with `name`."""
    weight = _to_float64(attention.out.weight).unflatten(1, heads.shape)  # (D, H, K)
    vectors = torch.einsum("dhk,hk->hd", weight, heads)
    outputs: Parts = dict(zip(_name_heads(name, len(heads)), vectors, strict=True))
    bias = getattr(attention.out, "bias", None)
    if isinstance(bias, Tensor):
        outputs[f"{name}attention bias"] = _to_float64(bias)
    return outputs


def _add_branch(residual: Residual, stream: Parts, outputs: Parts) -> Parts:
    """Return after(stream + branch(outputs)), as `Residual` does; `before` only affects the sublayer."""
    branch = _apply_norm(residual.branch, outputs)
    summed = stream | {part: stream.get(part, 0.0) + vector for part, vector in branch.items()}
    return _apply_norm(residual.after, summed)


def _apply_norm(norm: nn.Module, parts: Parts) -> Parts:
    """Apply a norm to each part, with the statistics of their sum."""
    if isinstance(norm, nn.Identity):
        return dict(parts)
    total = torch.stack(list(parts.values())).sum(0)  # (D)
    if not isinstance(norm, nn.LayerNorm | StdLayerNorm | nn.RMSNorm):
        raise ValueError(f"the norm {type(norm).__name__} cannot be split between parts; use the logit lens instead")
    assert norm.eps is not None
    centered = not isinstance(norm, nn.RMSNorm)
    if isinstance(norm, StdLayerNorm):
        size = total.std() + norm.eps
    else:
        size = (total.var(correction=0) if centered else total.square().mean()).add(norm.eps).sqrt()
    gain = _to_float64(norm.weight) / size
    normed = {part: (vector - vector.mean() if centered else vector) * gain for part, vector in parts.items()}
    bias = None if isinstance(norm, nn.RMSNorm) else norm.bias
    if bias is not None:
        normed["norm bias"] = normed.get("norm bias", 0.0) + _to_float64(bias)
    return normed


def _set_rest(parts: Parts, actual: Tensor) -> None:
    """Add the difference between the actual stream and the sum of the parts to "rest"."""
    missing = actual - torch.stack(list(parts.values())).sum(0)
    parts["rest"] = parts.get("rest", 0.0) + missing


def _to_float64(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def _check(name: str, numbers: Sequence[int], size: int) -> None:
    out_of_range = [number for number in numbers if not 0 <= number < size]
    if out_of_range:
        raise ValueError(f"{name} {out_of_range[0]} is out of range; it must be 0 to {size - 1}")

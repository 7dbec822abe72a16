"""One of our stacks as CTranslate2's specification of it: the switches that it is built with, and the tensors in it."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.checkpoint.foreign.features import FIXED
from tercet.models.stack import Stack
from tercet.nn import Attention, Block, FeedForward, Residual
from tercet.nn.positions import RotaryPositions

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def encoder_of(specs: Any, stack: Stack, *, tables: int = 1) -> Any:
    return specs.TransformerEncoderSpec(
        **_switches(specs, stack),
        num_source_embeddings=tables,
        embeddings_merge=specs.EmbeddingsMerge.ADD,
    )


def decoder_of(specs: Any, stack: Stack, *, cross: bool) -> Any:
    return specs.TransformerDecoderSpec(
        **_switches(specs, stack),
        with_encoder_attention=cross,
        external_pre_post_encoder_layers=cross and stack.spec.placement == "sandwich",
        alibi=stack.spec.position.kind == "alibi",
        alibi_use_positive_positions=False,
    )


def _switches(specs: Any, stack: Stack) -> dict[str, Any]:
    """What both of theirs are told of a stack."""
    spec, position = stack.spec, stack.position
    switches = {
        "num_layers": spec.n_layers,
        "num_heads": spec.n_heads,
        "num_heads_kv": None if spec.kv_heads == spec.n_heads else spec.kv_heads,
        "head_dim": spec.head_width,
        "pre_norm": spec.placement != "post",
        "pre_post_layer_norm": spec.placement == "sandwich",
        "rms_norm": spec.norm == "rms",
        "qk_norm": spec.qk_norm,
        "ffn_glu": spec.gated,
        "activation": getattr(specs.Activation, ACTIVATIONS[spec.activation]),
        "layernorm_embedding": not isinstance(stack.embedding_norm, nn.Identity),
    }
    if isinstance(position, RotaryPositions):
        switches |= {"rotary_dim": position.width, "rotary_interleave": False, "rotary_base": position.base}
    return switches


def fill_stack(theirs: Any, stack: Stack, *, max_len: int) -> None:
    """All but the embedding: positions, norms and blocks."""
    spec = stack.spec
    if spec.position.kind in FIXED:
        embedded = stack.position.embed(torch.arange(max_len)[None])
        theirs.position_encodings.encodings = torch.zeros(max_len, spec.d_model) if embedded is None else embedded[0]
    if not isinstance(stack.embedding_norm, nn.Identity):
        _norm(theirs.layernorm_embedding, stack.embedding_norm)
    if not isinstance(stack.final_norm, nn.Identity):
        _norm(theirs.layer_norm, stack.final_norm)
    for block, layer in zip(cast("Iterable[Block]", stack.blocks), theirs.layer, strict=True):
        _attention(layer.self_attention, block.self_attention, fused=("query", "key", "value"))
        _norms(layer, "self_attention", ("input_layer_norm", "post_attention_layer_norm"), block.self_residual)
        if block.cross_attention is not None and block.cross_residual is not None:
            _attention(layer.attention, block.cross_attention, fused=("key", "value"))
            names = ("external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm")
            _norms(layer, "attention", names, block.cross_residual)
        _feedforward(layer.ffn, block.feedforward)
        names = ("pre_feedforward_layer_norm", "post_feedforward_layer_norm")
        _norms(layer, "ffn", names, block.feedforward_residual)


def _norms(layer: Any, part: str, names: tuple[str, str], residual: Residual) -> None:
    """A sublayer has one norm, before it or after the sum; the layer has those of a sandwich."""
    own = [norm for norm in residual.children() if isinstance(norm, nn.LayerNorm | nn.RMSNorm)]
    theirs = [getattr(layer, part).layer_norm] if len(own) == 1 else [getattr(layer, name) for name in names]
    for norm, place in zip(own, theirs, strict=True):
        _norm(place, norm)


def _attention(theirs: Any, ours: Attention, *, fused: tuple[str, ...]) -> None:
    """What reads one input is one matrix; in cross-attention the queries read another."""
    *first, last = theirs.linear
    if "query" not in fused:
        fill_linear(first[0], ours.query)
    linears: list[nn.Linear] = [getattr(ours, name) for name in fused]
    first[-1].weight = torch.cat([linear.weight for linear in linears])
    biases = [bias for linear in linears if (bias := _bias(linear)) is not None]
    if biases:  # all have one, or none
        first[-1].bias = torch.cat(biases)
    fill_linear(last, ours.out)
    if not isinstance(ours.query_norm, nn.Identity):
        _norm(theirs.q_norm, ours.query_norm)
        _norm(theirs.k_norm, ours.key_norm)


def _feedforward(theirs: Any, ours: FeedForward) -> None:
    if ours.gate is None:
        fill_linear(theirs.linear_0, ours.up)
    else:
        fill_linear(theirs.linear_0, ours.gate)  # the one that is bent
        fill_linear(theirs.linear_0_noact, ours.up)
    fill_linear(theirs.linear_1, ours.down)


def fill_linear(theirs: Any, ours: nn.Linear) -> None:
    theirs.weight = ours.weight
    if (bias := _bias(ours)) is not None:
        theirs.bias = bias


def _norm(theirs: Any, ours: nn.Module) -> None:
    theirs.gamma = ours.weight
    if isinstance(ours, nn.LayerNorm):
        bias = _bias(ours)
        theirs.beta = torch.zeros(ours.normalized_shape) if bias is None else bias


def _bias(part: nn.Module) -> Tensor | None:
    """None where it was made without."""
    return dict(part.named_parameters(recurse=False)).get("bias")

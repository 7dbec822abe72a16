"""Conversion of the options and tensors of a stack to a specification of CTranslate2."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from tercet.checkpoint.foreign.features import FIXED_POSITIONS
from tercet.models.stack import Stack
from tercet.nn import Attention, Block, FeedForward, Residual
from tercet.nn.positions import RelativeBiasPositions, RotaryPositions
from tercet.nn.specs import Activation, LinearScaling

ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def encoder_of(specs: Any, stack: Stack, *, tables: int = 1) -> Any:
    """Return CTranslate2's specification of an encoder without tensors. Its `tables` embeddings are added."""
    return specs.TransformerEncoderSpec(
        **_switches(specs, stack),
        num_source_embeddings=tables,
        embeddings_merge=specs.EmbeddingsMerge.ADD,
    )


def decoder_of(specs: Any, stack: Stack, *, cross: bool) -> Any:
    """Return CTranslate2's specification of a decoder without tensors; it has cross-attention if `cross` is True."""
    return specs.TransformerDecoderSpec(
        **_switches(specs, stack),
        with_encoder_attention=cross,
        parallel_residual=stack.spec.parallel is not False,
        shared_layer_norm=stack.spec.parallel is True,
        external_pre_post_encoder_layers=cross and stack.spec.placement == "sandwich",
        alibi=stack.spec.position.kind == "alibi",
        alibi_use_positive_positions=False,
    )


def _switches(specs: Any, stack: Stack) -> dict[str, Any]:
    """Return the arguments that the specifications of encoders and decoders have in common."""
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
        "relative_attention_bias": isinstance(position, RelativeBiasPositions),
        "layernorm_embedding": not isinstance(stack.embedding_norm, nn.Identity),
    }
    if isinstance(position, RotaryPositions):
        switches |= {"rotary_dim": position.width, "rotary_interleave": False, "rotary_base": position.base}
        if isinstance(position.scaling, LinearScaling):
            linear = specs.attention_spec.RotaryScalingType.Linear
            switches |= {"rotary_scaling_type": linear, "rotary_scaling_factor": position.scaling.factor}
    return switches


def fill_stack(target: Any, stack: Stack, *, max_len: int) -> None:
    """Copy the tensors of a stack to its specification: positions for `max_len` tokens, norms and blocks.

    The embedding is not copied.
    """
    spec = stack.spec
    if spec.position.kind in FIXED_POSITIONS:
        position_table = stack.position.embed(torch.arange(max_len)[None])
        target.position_encodings.encodings = (
            torch.zeros(max_len, spec.d_model) if position_table is None else position_table[0]
        )
    if not isinstance(stack.embedding_norm, nn.Identity):
        _norm(target.layernorm_embedding, stack.embedding_norm)
    if not isinstance(stack.final_norm, nn.Identity):
        _norm(target.layer_norm, stack.final_norm)
    if isinstance(stack.position, RelativeBiasPositions):
        _relative_bias(target, stack.position)
    for block, layer in zip(cast("Iterable[Block]", stack.blocks), target.layer, strict=True):
        _attention(layer.self_attention, block.self_attention, fused_parts=("query", "key", "value"))
        if block.parallel:
            _parallel_norms(layer, block)
        else:
            _norms(layer, "self_attention", ("input_layer_norm", "post_attention_layer_norm"), block.self_residual)
            names = ("pre_feedforward_layer_norm", "post_feedforward_layer_norm")
            _norms(layer, "ffn", names, block.feedforward_residual)
        if block.cross_attention is not None and block.cross_residual is not None:
            _attention(layer.attention, block.cross_attention, fused_parts=("key", "value"))
            names = ("external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm")
            _norms(layer, "attention", names, block.cross_residual)
        assert isinstance(block.feedforward, FeedForward)  # others are not supported
        _feedforward(layer.ffn, block.feedforward)


def _relative_bias(target: Any, position: RelativeBiasPositions) -> None:
    """Copy the table of each layer, or the only table to all layers."""
    tables = list(position.tables) * (len(target.layer) // len(position.tables))
    for table, layer in zip(tables, target.layer, strict=True):
        layer.self_attention.relative_attention_bias = table.weight
        layer.self_attention.relative_attention_max_distance = np.int32(position.max_distance)


def _norms(layer: Any, part: str, names: tuple[str, str], residual: Residual) -> None:
    """Copy the norms of a sublayer: a single one to `layer.<part>`, or two (sandwich) to `layer.<name>` of `names`."""
    norms = [norm for norm in residual.children() if isinstance(norm, nn.LayerNorm | nn.RMSNorm)]
    target = [getattr(layer, part).layer_norm] if len(norms) == 1 else [getattr(layer, name) for name in names]
    for norm, place in zip(norms, target, strict=True):
        _norm(place, norm)


def _parallel_norms(layer: Any, block: Block) -> None:
    """Copy the norms of a decoder's parallel sublayers: a shared one, or one of each sublayer."""
    if block.parallel is True:
        _norm(layer.shared_layer_norm, block.self_residual.before)
    else:
        _norm(layer.input_layer_norm, block.self_residual.before)
        _norm(layer.post_attention_layer_norm, block.feedforward_residual.before)


def _attention(target: Any, source: Attention, *, fused_parts: tuple[str, ...]) -> None:
    """Copy attention. The projections `fused_parts`, which have the same input, become one matrix."""
    *first, last = target.linear
    if "query" not in fused_parts:
        fill_linear(first[0], source.query)
    linears: list[nn.Linear] = [getattr(source, name) for name in fused_parts]
    first[-1].weight = torch.cat([linear.weight for linear in linears])
    biases = [bias for linear in linears if (bias := _bias(linear)) is not None]
    if biases:  # either all of these projections have a bias, or none
        first[-1].bias = torch.cat(biases)
    fill_linear(last, source.out)
    if not isinstance(source.query_norm, nn.Identity):
        _norm(target.q_norm, source.query_norm)
        _norm(target.k_norm, source.key_norm)


def _feedforward(target: Any, source: FeedForward) -> None:
    if source.gate is None:
        fill_linear(target.linear_0, source.up)
    else:
        fill_linear(target.linear_0, source.gate)  # linear_0 is followed by the activation
        fill_linear(target.linear_0_noact, source.up)
    fill_linear(target.linear_1, source.down)


def fill_linear(target: Any, source: nn.Linear) -> None:
    """Copy the weight and bias of a linear layer to its specification."""
    target.weight = source.weight
    if (bias := _bias(source)) is not None:
        target.bias = bias


def _norm(target: Any, source: nn.Module) -> None:
    target.gamma = source.weight
    if isinstance(source, nn.LayerNorm):
        bias = _bias(source)
        target.beta = torch.zeros(source.normalized_shape) if bias is None else bias


def _bias(part: nn.Module) -> Tensor | None:
    """Return the bias of a module itself; None if it has none."""
    return dict(part.named_parameters(recurse=False)).get("bias")

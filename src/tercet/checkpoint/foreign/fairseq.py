"""Names, embeddings and settings that several families of `transformers` have in common: Marian, OPT and BART.

Their models were first trained with fairseq or Marian.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoint.foreign.config_keys import ACTIVATION_NAMES, read_activation, read_bool, read_value
from tercet.checkpoint.foreign.state_dict import merge_tied, strip_names
from tercet.config import Plain
from tercet.models import Dropout, EncoderDecoderSpec, StackSpec
from tercet.nn.specs import Placement, Position

SIDES = ("encoder", "decoder")
BIAS = "final_logits_bias"  # (1, V)
SHARED_EMBEDDING, EMBEDDINGS = "shared.weight", tuple(f"{side}.embed_tokens.weight" for side in SIDES)


def block_names(native: str, foreign: str) -> dict[str, str]:
    """Return the names of a block's parts in `transformers` by Tercet's, with norms before and after each sublayer.

    Args:
        native, foreign: Names of the block in both, with `N` for its number.
    """
    parts = {
        **{
            f"{attention}_attention.{part}": f"{foreign_attention}.{foreign_part}"
            for attention, foreign_attention in (("self", "self_attn"), ("cross", "encoder_attn"))
            for part, foreign_part in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj"))
        },
        "feedforward.up": "fc1",
        "feedforward.down": "fc2",
        **{
            f"{sublayer}_residual.{place}": f"{norm}_layer_norm"
            for sublayer, norm in (("self", "self_attn"), ("cross", "encoder_attn"), ("feedforward", "final"))
            for place in ("before", "after")
        },
    }
    return {f"{native}.{part}": f"{foreign}.{foreign_part}" for part, foreign_part in parts.items()}


def translator_names(
    config: Mapping[str, Any], state: Mapping[str, Tensor], kind: str
) -> tuple[dict[str, Tensor], bool]:
    """Return the tensors of a translator without the prefix "model.", and whether both sides share one embedding.

    If they do, the tensors contain the embedding only as `SHARED_EMBEDDING`. The bias of the logits has the shape (V,).

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        kind: Name of the model, for error messages.

    Raises:
        UserError: If tied tensors differ.
    """
    tensors = strip_names(state, prefix="model.", no_weight=lambda name: False)
    if BIAS in tensors and tensors[BIAS].ndim == 2 and len(tensors[BIAS]) == 1:
        tensors[BIAS] = tensors[BIAS][0]
    return tensors, _share(config, tensors, kind)


def _share(config: Mapping[str, Any], tensors: dict[str, Tensor], kind: str) -> bool:
    if not read_bool(config, "share_encoder_decoder_embeddings", True):
        return False
    if not read_bool(
        config, "tie_word_embeddings", True
    ):  # in this case, some versions of `transformers` share nothing and do not read `SHARED_EMBEDDING`
        shared_table = tensors.pop(SHARED_EMBEDDING, None)
        tables = [
            tensors.setdefault(name, shared_table) if shared_table is not None else tensors.get(name)
            for name in EMBEDDINGS
        ]
        if tables[0] is None or tables[1] is None or not torch.equal(tables[0], tables[1]):
            return False
    for name in EMBEDDINGS:
        merge_tied(tensors, name, SHARED_EMBEDDING, kind)
    return True


def read_stacks(config: Mapping[str, Any], *, position: Position, placement: Placement) -> tuple[StackSpec, StackSpec]:
    """Return the specs of encoder and decoder.

    Args:
        config: Content of config.json.
        position, placement: Settings of both that the model type determines.

    Raises:
        UserError: If a value is missing or invalid.
    """
    rate = read_value(config, "dropout", float)
    attention = read_value(config, "attention_dropout", float, 0.0)
    activation_rate = read_value(config, "activation_dropout", float, 0.0)
    encoder, decoder = (
        StackSpec(
            d_model=read_value(config, "d_model", int),
            n_layers=read_value(config, f"{side}_layers", int),
            n_heads=read_value(config, f"{side}_attention_heads", int),
            d_ff=read_value(config, f"{side}_ffn_dim", int),
            position=position,
            placement=placement,
            activation=read_activation(config, "activation_function"),
            dropout=Dropout(embedding=rate, attention=attention, activation=activation_rate, residual=rate),
        )
        for side in SIDES
    )
    return encoder, decoder


def config_of_stacks(spec: EncoderDecoderSpec) -> Plain:
    """Return the settings of encoder and decoder in `transformers`; the inverse of `read_stacks`."""
    dropout = spec.decoder.dropout
    config: Plain = {
        "is_encoder_decoder": True,
        "max_position_embeddings": spec.max_len,
        "d_model": spec.decoder.d_model,
        "activation_function": ACTIVATION_NAMES[spec.decoder.activation],
        "dropout": dropout.branches.feedforward,
        "attention_dropout": dropout.attention,
        "activation_dropout": dropout.activation,
        "scale_embedding": spec.scale_embedding,
        "tie_word_embeddings": spec.tie_embeddings,
    }
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        config |= {
            f"{side}_layers": stack.n_layers,
            f"{side}_attention_heads": stack.n_heads,
            f"{side}_ffn_dim": stack.inner_width,
        }
    return config

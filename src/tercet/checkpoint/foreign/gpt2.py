"""GPT-2 as the `transformers` library keeps it: matrices as (in, out), and queries, keys and values in one of them.

Radford et al. (2019). Old files have the causal mask of each layer among their tensors; it is no weight. The output's
matrix is the embedding's, as a rule, and then need not be there.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tercet.checkpoint.foreign.equal import (
    FIXED,
    check_equal,
    features_of_heads,
    features_of_stack,
    features_of_vocabulary,
    rewritten,
)
from tercet.checkpoint.foreign.reading import (
    NAMED,
    Source,
    activation,
    check_alike,
    check_kind,
    fill,
    fitting,
    plain_names,
    switch,
    take,
    their_name,
    their_state,
    untwin,
    with_ids,
)
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Learned

KIND = "GPT-2"
NAMES = {
    "embedding": "wte",
    "stack.position.table": "wpe",
    "stack.final_norm": "ln_f",
    "unembedding": "lm_head",
    "stack.blocks.N.self_attention.query": "h.N.attn.c_attn",
    "stack.blocks.N.self_attention.key": "h.N.attn.c_attn",
    "stack.blocks.N.self_attention.value": "h.N.attn.c_attn",
    "stack.blocks.N.self_attention.out": "h.N.attn.c_proj",
    "stack.blocks.N.self_residual.before": "h.N.ln_1",
    "stack.blocks.N.feedforward.up": "h.N.mlp.c_fc",
    "stack.blocks.N.feedforward.down": "h.N.mlp.c_proj",
    "stack.blocks.N.feedforward_residual.before": "h.N.ln_2",
}
FUSED = ("query", "key", "value")  # the order in which c_attn has them
MASK = re.compile(r"h\.\d+\.attn\.(?:bias|masked_bias)")
WANTED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}


def from_gpt2(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnly:
    """The model, in eval mode, of a GPT2LMHeadModel or GPT2Model.

    Args:
        config: what its config.json holds.
        state: its tensors by name.
        n_ids: how many ids the tokenizer has, where the embedding may have more rows.

    Raises:
        UserError: where the two do not belong together, or ask for what Tercet does not have.
    """
    tensors = plain_names(state, prefix="transformer.", no_weight=lambda name: MASK.fullmatch(name) is not None)
    spec = gpt2_spec(config, state, n_ids=n_ids)
    with fitting(KIND):
        model = DecoderOnly(spec)
    if model.spec.tie_embeddings:
        untwin(tensors, "lm_head.weight", "wte.weight", KIND)
    fill(model, tensors, _source, zero=(), kind=KIND)
    return model.eval()


def gpt2_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnlySpec:
    """The spec of what `from_gpt2` reads: the config says all of it. Raises as it does."""
    with fitting(KIND):
        return with_ids(_spec(config), n_ids)


def to_gpt2(model: DecoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """The inverse of `from_gpt2`: config and tensors of a GPT2LMHeadModel.

    Raises:
        UserError: naming what the model has and no GPT-2 does.
    """
    spec, stack = model.spec, model.spec.stack
    features = [
        *features_of_stack("stack", stack, placement="pre", positions=FIXED, gated=False),
        *features_of_heads("stack", stack),
        *features_of_vocabulary(spec, embedding_norm=False, tied=spec.tie_embeddings),
    ]
    check_equal(f"{KIND} of transformers", features)
    stack = replace(stack, position=Learned(), bias=True, norm_bias=True)
    equal = rewritten(model, replace(spec, pad_vocab_to=1, scale_embedding=False, stack=stack))
    state = their_state(own_tensors(equal), _source)
    return _config(equal.spec), {
        name if name.startswith("lm_head.") else f"transformer.{name}": tensor for name, tensor in state.items()
    }


def _config(spec: DecoderOnlySpec) -> Plain:
    stack = spec.stack
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": spec.vocab_size,
        "n_positions": spec.max_len,
        "n_embd": stack.d_model,
        "n_layer": stack.n_layers,
        "n_head": stack.n_heads,
        "n_inner": stack.d_ff,
        "activation_function": NAMED[stack.activation],
        "layer_norm_epsilon": stack.norm_eps,
        "embd_pdrop": stack.dropout.embedding,
        "attn_pdrop": stack.dropout.attention,
        "resid_pdrop": stack.dropout.branches.feedforward,
        "tie_word_embeddings": spec.tie_embeddings,
        **WANTED,
    }


def _spec(config: Mapping[str, Any]) -> DecoderOnlySpec:
    check_kind(config, "gpt2")
    check_alike(config, WANTED, KIND)
    width = take(config, "n_embd", int)
    return DecoderOnlySpec(
        vocab_size=take(config, "vocab_size", int),
        max_len=take(config, "n_positions", int),
        tie_embeddings=switch(config, "tie_word_embeddings", True),
        stack=StackSpec(
            d_model=width,
            n_layers=take(config, "n_layer", int),
            n_heads=take(config, "n_head", int),
            d_ff=take(config, "n_inner", int, 4 * width),
            position=Learned(),
            norm_eps=take(config, "layer_norm_epsilon", float),
            activation=activation(config, "activation_function"),
            dropout=Dropout(
                embedding=take(config, "embd_pdrop", float),
                attention=take(config, "attn_pdrop", float),
                residual=take(config, "resid_pdrop", float),
            ),
        ),
    )


def _source(ours: str) -> Source:
    name, part = their_name(ours, NAMES), ours.split(".")[-2]
    if part in FUSED:
        return Source(name=name, transposed=True, part=FUSED.index(part), parts=len(FUSED))
    return Source(name=name, transposed=part in ("out", "up", "down"))

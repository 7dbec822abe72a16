"""Export of encoders in the format of llama.cpp, by way of EuroBERT, ModernBERT and BERT of `transformers`.

llama.cpp computes the hidden states of a text and their mean or the first of them. The heads are left out. All tokens
have the first segment. EuroBERT's activation is SiLU, and BERT's is GELU by tanh, which is also used for models with
the exact GELU. Only ModernBERT's is stored, with its name in `transformers`; old versions always use GELU by tanh. If
no layer of a ModernBERT has a window, the keys of windows are missing, and all layers attend to all tokens.
"""

from collections.abc import Callable

from torch import Tensor

from tercet.checkpoint.foreign.bert import to_bert
from tercet.checkpoint.foreign.eurobert import to_eurobert
from tercet.checkpoint.foreign.features import Support, rewrite_model
from tercet.checkpoint.foreign.gguf_model import GATE, LLAMA_NAMES, settings_of_llama
from tercet.checkpoint.foreign.gguf_support import (
    EncoderArchitecture,
    gguf_support,
    nearest_encoder_architecture,
    without_heads,
)
from tercet.checkpoint.foreign.llama_layers import LOCAL
from tercet.checkpoint.foreign.modernbert import to_modernbert
from tercet.checkpoint.foreign.state_dict import foreign_name
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.config import Plain
from tercet.models import EncoderOnly

EUROBERT_NAMES = {
    name.removeprefix("model."): gguf_name for name, gguf_name in (LLAMA_NAMES | GATE).items() if name != "lm_head"
}
BERT_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.N.attention.self.query": "blk.N.attn_q",
    "encoder.layer.N.attention.self.key": "blk.N.attn_k",
    "encoder.layer.N.attention.self.value": "blk.N.attn_v",
    "encoder.layer.N.attention.output.dense": "blk.N.attn_output",
    "encoder.layer.N.attention.output.LayerNorm": "blk.N.attn_output_norm",
    "encoder.layer.N.intermediate.dense": "blk.N.ffn_up",
    "encoder.layer.N.output.dense": "blk.N.ffn_down",
    "encoder.layer.N.output.LayerNorm": "blk.N.layer_output_norm",
}
MODERNBERT_NAMES = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "layers.N.attn_norm": "blk.N.attn_norm",
    "layers.N.attn.Wqkv": "blk.N.attn_qkv",
    "layers.N.attn.Wo": "blk.N.attn_output",
    "layers.N.mlp_norm": "blk.N.ffn_norm",
    "layers.N.mlp.Wi": "blk.N.ffn_up",  # the half with the activation first, as in llama.cpp
    "layers.N.mlp.Wo": "blk.N.ffn_down",
    "final_norm": "output_norm",
}
ENCODER_NAMES: dict[EncoderArchitecture, dict[str, str]] = {
    "eurobert": EUROBERT_NAMES,
    "modern-bert": MODERNBERT_NAMES,
    "bert": BERT_NAMES,
}
POOLINGS = {"mean": 1, "first": 2}  # values of pooling_type


def to_gguf_encoder(model: EncoderOnly, sentence: SentenceSettings) -> tuple[Plain, dict[str, Tensor]]:
    """Return settings and tensors of a GGUF file for an encoder without its heads.

    Args:
        model: The model; `nearest_encoder_architecture` returns the architecture as which it is written.
        sentence: Settings by which the model computes the vector of a text; its pooling is exported.

    Raises:
        UserError: If this architecture does not support a feature of the model; the feature is named.
    """
    gguf_support(model.spec).check()
    Support("llama.cpp", [("pooling", sentence.pooling, list(POOLINGS))]).check()
    kind = nearest_encoder_architecture(model.spec)
    convert, write_settings = WRITERS[kind]
    config, state = convert(rewrite_model(model, without_heads(model.spec)))
    settings = write_settings(config) | {"attention.causal": False, "pooling_type": POOLINGS[sentence.pooling]}
    return (
        {
            "general.architecture": kind,
            **{f"{kind}.{key}": value for key, value in settings.items()},
            **({"tokenizer.ggml.token_type_count": config["type_vocab_size"]} if kind == "bert" else {}),
        },
        {foreign_name(name, ENCODER_NAMES[kind]): tensor for name, tensor in state.items()},
    )


def _settings_of_bert(config: Plain) -> Plain:
    return {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
    }


def _settings_of_modernbert(config: Plain) -> Plain:
    is_local = [kind == LOCAL for kind in config["layer_types"]]
    return {
        **_settings_of_bert(config | {"layer_norm_eps": config["norm_eps"]}),
        "hidden_activation": config["hidden_activation"],
        "rope.freq_base": float(config["global_rope_theta"]),
        **(_settings_of_window(config, is_local) if any(is_local) else {}),
    }


def _settings_of_window(config: Plain, is_local: list[bool]) -> Plain:
    """Return the settings of windows. Versions that read no list of layers read the interval of those without one."""
    intervals = range(1, len(is_local) + 1)
    has_interval = (n for n in intervals if is_local == [layer % n != 0 for layer in range(len(is_local))])
    return {
        "attention.sliding_window": config["local_attention"],
        "attention.sliding_window_pattern": next(has_interval, is_local),
        "rope.freq_base_swa": float(config["local_rope_theta"]),
    }


WRITERS: dict[
    EncoderArchitecture,
    tuple[Callable[[EncoderOnly], tuple[Plain, dict[str, Tensor]]], Callable[[Plain], Plain]],
] = {  # functions that convert a model to `transformers`, and its config to settings
    "eurobert": (to_eurobert, settings_of_llama),
    "modern-bert": (to_modernbert, _settings_of_modernbert),
    "bert": (to_bert, _settings_of_bert),
}

"""Export of encoders in the format of llama.cpp, by way of EuroBERT and BERT of `transformers`.

llama.cpp computes the hidden states of a text and their mean or the first of them. The heads are left out. All tokens
have the first segment. The activation is not stored: EuroBERT's is SiLU, and BERT's is GELU by tanh, which is
also used for models with the exact GELU.
"""

from torch import Tensor

from tercet.checkpoint.foreign.bert import to_bert
from tercet.checkpoint.foreign.eurobert import to_eurobert
from tercet.checkpoint.foreign.features import Support, rewrite_model
from tercet.checkpoint.foreign.gguf_model import GATE, LLAMA_NAMES, settings_of_llama
from tercet.checkpoint.foreign.gguf_support import gguf_support, is_eurobert, without_heads
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
POOLINGS = {"mean": 1, "first": 2}  # values of pooling_type


def to_gguf_encoder(model: EncoderOnly, sentence: SentenceSettings) -> tuple[Plain, dict[str, Tensor]]:
    """Return settings and tensors of a GGUF file for an encoder without its heads.

    Args:
        model: A model with rotary positions, which is written as a EuroBERT, or with the placement `post`, as a BERT.
        sentence: Settings by which the model computes the vector of a text; its pooling is exported.

    Raises:
        UserError: If this architecture does not support a feature of the model; the feature is named.
    """
    gguf_support(model.spec).check()
    Support("llama.cpp", [("pooling", sentence.pooling, list(POOLINGS))]).check()
    headless = rewrite_model(model, without_heads(model.spec))
    if is_eurobert(headless.spec):
        kind, names = "eurobert", EUROBERT_NAMES
        config, state = to_eurobert(headless)
        settings = settings_of_llama(config)
    else:
        kind, names = "bert", BERT_NAMES
        config, state = to_bert(headless)
        settings = _settings_of_bert(config)
    settings |= {"attention.causal": False, "pooling_type": POOLINGS[sentence.pooling]}
    return (
        {
            "general.architecture": kind,
            **{f"{kind}.{key}": value for key, value in settings.items()},
            **({"tokenizer.ggml.token_type_count": config["type_vocab_size"]} if kind == "bert" else {}),
        },
        {foreign_name(name, names): tensor for name, tensor in state.items()},
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

"""Configs of ONNX folders for optimum and transformers.js, which read from them the sizes of the KV cache.

The graph computes the model, so the config does not describe its architecture. A language model has the keys of Gemma
and a translator those of T5, because the cache of any model fits these: with the number of key/value heads and the
width of a head as separate keys.
"""

from collections.abc import Iterable

from tercet.checkpoint.chat_template import FILE
from tercet.checkpoint.foreign.auto_tokenizer import tokenizer_config
from tercet.checkpoint.foreign.export_files import generation_config, json_text, special_ids
from tercet.checkpoint.trained_model import TrainedModel
from tercet.config import Plain
from tercet.models import DecoderOnlySpec, EncoderDecoderSpec


def config_files(trained_model: TrainedModel, external: Iterable[str] = ()) -> dict[str, str]:
    """Return the configs by file name, and the chat template if there is one. Empty for an encoder.

    Args:
        trained_model: Exported model.
        external: Names of the graphs whose weights are in a separate file.
    """
    spec, template = trained_model.model.spec, trained_model.chat_template
    if isinstance(spec, DecoderOnlySpec):
        config = _gemma(spec)
    elif isinstance(spec, EncoderDecoderSpec):
        config = {**_t5(spec), "decoder_start_token_id": trained_model.tokenizer.bos_id}
    else:
        return {}
    # Browsers would look for a graph with 8-bit weights by default.
    browser = {"dtype": "fp32", "use_external_data_format": dict.fromkeys(external, 1)}
    config |= {**special_ids(trained_model.tokenizer), "transformers.js_config": browser}
    settings = tokenizer_config(trained_model.tokenizer, spec, has_chat_template=template is not None)
    return {
        "config.json": json_text(config),
        "generation_config.json": json_text(generation_config(trained_model)),
        "tokenizer_config.json": json_text(settings),
        **({} if template is None else {FILE: template}),
    }


def _gemma(spec: DecoderOnlySpec) -> Plain:
    stack = spec.stack
    return {
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.head_width,
        "hidden_size": stack.d_model,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
    }


def _t5(spec: EncoderDecoderSpec) -> Plain:
    decoder = spec.decoder
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "num_layers": spec.encoder.n_layers,
        "num_decoder_layers": decoder.n_layers,
        "num_heads": decoder.kv_heads,
        "d_kv": decoder.head_width,
        "d_model": decoder.kv_heads * decoder.head_width,  # optimum divides it by num_heads
        "vocab_size": spec.vocab_size,
        "n_positions": spec.max_len,
    }

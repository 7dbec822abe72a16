"""The keys of config.json and generation_config.json in `transformers`, and how Tercet treats them.

USED         keys that Tercet reads, by model_type
IRRELEVANT   keys without effect on results, with the reason
REJECTED     keys of which Tercet supports only the listed values; any other value is an error that names the key

A key in none of these lists is reported and ignored, unless it is off (null, false, 0 or empty).
"""

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from tercet.checkpoint.foreign.config_keys import is_any_of
from tercet.config import Plain, UserError
from tercet.messages import print_note, show
from tercet.reading.bounded_json import read_json_file

FILES = {  # names of files in folders of `transformers`, and their use
    **dict.fromkeys(
        ("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
         "pytorch_model.bin", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
         "chat_template.jinja", "vocab.json", "merges.txt", "source.spm", "target.spm", "target_vocab.json"),
        "used",
    ),
    **dict.fromkeys(
        ("vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "pytorch_model.bin.index.json"),
        "rejected without tokenizer.json or model.safetensors, which contain them",
    ),
    **dict.fromkeys(
        ("preprocessor_config.json", "video_preprocessor_config.json", "audio_tokenizer_config.json",
         "processor_config.json", "chat_template.json"),
        "irrelevant: for images and audio",
    ),
    "additional_chat_templates": "irrelevant: templates that are selected by name",
    "modelcard.json": "irrelevant: for people",
}  # fmt: skip
OFF = (None, False, 0, 0.0, "", {}, [])
LLAMA = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "attention_dropout",
)  # fmt: skip
WINDOW_KEYS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
BERT = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
    "layer_norm_eps", "position_embedding_type", "classifier_dropout", "is_decoder", "add_cross_attention",
    "id2label", "num_labels", "problem_type",
)  # fmt: skip
T5 = (
    "vocab_size", "n_positions", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads",
    "relative_attention_num_buckets", "relative_attention_max_distance", "dropout_rate", "layer_norm_epsilon",
    "feed_forward_proj", "dense_act_fn", "is_gated_act", "scale_decoder_outputs",
)  # fmt: skip
T5GEMMA = (
    "encoder", "decoder", "dropout_rate", "attention_dropout", "vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "query_pre_attn_scalar",
    "hidden_activation", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "partial_rotary_factor", "attention_bias", "sliding_window", "layer_types", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip
BART = (
    "vocab_size", "max_position_embeddings", "d_model", "activation_function", "dropout", "attention_dropout",
    "activation_dropout", "scale_embedding", "is_decoder",
    *(f"{side}_{size}" for side in ("encoder", "decoder") for size in ("layers", "attention_heads", "ffn_dim")),
)  # fmt: skip
USED = {
    "llama": (*LLAMA, "attention_bias", "mlp_bias"),
    "arcee": (*LLAMA, "attention_bias", "mlp_bias"),
    "olmo2": (*LLAMA, "attention_bias"),
    "mistral": (*LLAMA, "sliding_window"),
    "qwen2": (*LLAMA, *WINDOW_KEYS),
    "qwen3": (*LLAMA, *WINDOW_KEYS, "attention_bias"),
    "gemma": (*LLAMA, "attention_bias", "use_bidirectional_attention"),
    "gemma2": (
        *LLAMA, "attention_bias", "use_bidirectional_attention", "sliding_window", "layer_types",
        "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping",
    ),
    "gemma3_text": (
        *LLAMA, "attention_bias", "use_bidirectional_attention", "sliding_window", "sliding_window_pattern",
        "_sliding_window_pattern", "layer_types", "rope_local_base_freq", "query_pre_attn_scalar",
        "final_logit_softcapping", "attn_logit_softcapping",
    ),
    "smollm3": (
        *LLAMA, "attention_bias", "mlp_bias", "use_sliding_window", "sliding_window", "layer_types", "no_rope_layers",
        "no_rope_layer_interval", "max_window_layers",
    ),
    "gpt2": (
        "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function",
        "layer_norm_epsilon", "embd_pdrop", "attn_pdrop", "resid_pdrop", "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention",
    ),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), BERT),
    "distilbert": (
        "vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "activation", "dropout", "attention_dropout",
        "max_position_embeddings", "seq_classif_dropout", "id2label", "num_labels", "problem_type",
    ),
    "eurobert": (
        *LLAMA, "attention_bias", "mlp_bias", "classifier_pooling", "id2label", "num_labels", "problem_type",
    ),
    "modernbert": (
        "vocab_size", "hidden_size", "head_dim", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "hidden_activation", "max_position_embeddings", "norm_eps", "norm_bias", "rope_scaling", "rope_parameters",
        "global_rope_theta", "local_rope_theta", "attention_bias", "mlp_bias", "layer_types",
        "global_attn_every_n_layers", "local_attention", "sliding_window", "embedding_dropout", "attention_dropout",
        "mlp_dropout", "decoder_bias", "classifier_pooling", "classifier_dropout", "classifier_bias",
        "classifier_activation", "id2label", "num_labels", "problem_type",
    ),
    "marian": (
        *BART, "decoder_vocab_size", "share_encoder_decoder_embeddings", "normalize_before", "normalize_embedding",
        "add_final_layer_norm", "static_position_embeddings",
    ),
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "t5gemma": T5GEMMA,
    **dict.fromkeys(("bart", "mbart"), BART),
    "opt": (
        "vocab_size", "hidden_size", "word_embed_proj_dim", "num_hidden_layers", "num_attention_heads", "ffn_dim",
        "max_position_embeddings", "activation_function", "do_layer_norm_before", "_remove_final_layer_norm",
        "enable_bias", "layer_norm_elementwise_affine", "attention_dropout", "dropout",
    ),
    "gpt_neox": (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
        "max_position_embeddings", "layer_norm_eps", "rotary_pct", "rotary_emb_base", "rope_scaling", "rope_parameters",
        "use_parallel_residual", "attention_bias", "attention_dropout", "hidden_dropout", "head_dim",
    ),
}  # fmt: skip
TRANSLATORS = ("marian", "t5", "mt5", "umt5", "t5gemma", "bart", "mbart")
COMMON_KEYS = (
    "model_type", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
)  # fmt: skip
ALIASES = {  # by model_type: {other name: usual name}; as in `transformers`, the other name takes precedence
    "gpt2": {
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "distilbert": {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    **{
        kind: {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads",
               "num_hidden_layers": "encoder_layers"}
        for kind in ("marian", "bart", "mbart")
    },
    **{
        kind: {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
               "head_dim": "d_kv"}
        for kind in ("t5", "mt5", "umt5")
    },
}  # fmt: skip
IRRELEVANT = {
    **dict.fromkeys(
        ("architectures", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "tokenizer_class",
         "transformers.js_config", "is_llama_config", "unsloth_version", "unsloth_fixed", "finetuning_task"),
        "origin and purpose",
    ),
    **dict.fromkeys(("dtype", "torch_dtype"), "follows from the tensors"),
    **dict.fromkeys(
        ("use_cache", "output_hidden_states", "output_attentions", "return_dict", "chunk_size_feed_forward",
         "gradient_checkpointing", "attn_implementation", "_attn_implementation", "experts_implementation",
         "_attn_implementation_internal", "_experts_implementation_internal", "pretraining_tp", "torchscript",
         "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
         "repad_logits_with_grad", "output_past", "use_bfloat16", "tie_last_hidden_states",
         "keys_to_ignore_at_inference"),
        "execution settings",
    ),
    **dict.fromkeys(
        ("initializer_range", "initializer_factor", "initializer_cutoff_factor", "init_std",
         "encoder_layerdrop", "decoder_layerdrop", "layerdrop",
         "qa_dropout",
         "classif_dropout", "sinusoidal_pos_embds", "tie_weights_"),
        "training only, or initialization",
    ),
    **dict.fromkeys(
        ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
         "summary_last_dropout", "hidden_dropout", "classifier_dropout", "classifier_dropout_rate",
         "id2label", "num_labels", "problem_type"),
        "a head that is not read",
    ),
    **dict.fromkeys(
        ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
         "pooler_size_per_head", "pooler_type", "extra_pos_embeddings", "add_bias_logits", "n_ctx", "rope_interleaved",
         "_num_labels", "layer_norm_eps", "position_embedding_type"),
        "older files; not read by the classes of these types",
    ),
    "label2id": "the inverse of id2label",
    **dict.fromkeys(("rope_theta", "rope_scaling"), "the model_type has no rotation"),
    **dict.fromkeys(("cls_token_id", "sep_token_id", "mask_token_id"), "follows from the tokenizer"),
    **dict.fromkeys(("is_encoder_decoder", "is_decoder"), "follows from the model_type"),
    "cross_attention_hidden_size": "the width of the encoder",
    "prefix": "a text before a prompt in old pipelines",
    "task_specific_params": "settings of old pipelines",
}  # fmt: skip
REJECTED = {
    "per_layer_config": OFF,  # settings that differ between layers
    "pruned_heads": OFF,
    "quantization_config": OFF,
    "hidden_activation": (*OFF, "gelu_pytorch_tanh"),  # an older name of hidden_act in Gemma, the only one in Gemma 3
    "force_bos_token_to_be_generated": OFF,
}
# Settings of `generate` in generation_config.json, or in config.json of older folders.
GENERATION_USED = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
GENERATION_IRRELEVANT = {
    **dict.fromkeys(
        ("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
         "repetition_penalty", "num_beams", "length_penalty", "early_stopping", "max_length", "max_new_tokens",
         "max_time", "num_return_sequences", "num_beam_groups", "diversity_penalty", "penalty_alpha", "dola_layers"),
        "Tercet has its own settings of sampling and search",
    ),
    **dict.fromkeys(
        ("use_cache", "cache_implementation", "cache_config", "max_cache_len", "use_mtp", "compile_config",
         "disable_compile", "continuous_batching_config", "low_memory", "prefill_chunk_size", "output_attentions",
         "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "is_assistant",
         "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
         "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
         "target_lookbehind", "assistant_ensemble_weight", "speculation_type"),
        "execution settings",
    ),
    **dict.fromkeys(("renormalize_logits", "remove_invalid_values"), "probabilities are always normalized and finite"),
    "forced_eos_token_id": "a text of maximum length ends there",
    **dict.fromkeys(("transformers_version", "_commit_hash", "_from_model_config"), "program version"),
}  # fmt: skip
GENERATION_REJECTED = {
    "forced_bos_token_id": OFF,  # used for TRANSLATORS
    "guidance_scale": (*OFF, 1, 1.0),
    "token_healing": OFF,
}
GENERATION_REPORTED = (  # constraints on a text that Tercet does not support
    "min_length", "min_new_tokens", "stop_strings", "encoder_repetition_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "begin_suppress_tokens", "sequence_bias",
    "watermarking_config", "constraints", "force_words_ids",
)  # fmt: skip
SUPPRESSION_KEYS = ("bad_words_ids", "suppress_tokens")  # reported unless Tercet never generates these ids either
NEUTRAL = {"encoder_repetition_penalty": (1, 1.0)}  # values without effect


def rename_keys(config: Mapping[str, Any]) -> Plain:
    """Return a config of a supported model_type in which `ALIASES` are replaced by the usual keys."""
    aliases = ALIASES.get(str(config["model_type"]), {})
    return {**config, **{aliases[key]: value for key, value in config.items() if key in aliases and value is not None}}


def check_folder(folder: Path, config: Mapping[str, Any], *, silent_ids: Container[int] = ()) -> None:
    """Check every key of a folder's config.json and generation_config.json, and print the ignored keys.

    Args:
        folder: Folder of a model of a supported model_type.
        config: Content of config.json.
        silent_ids: Ids that Tercet never generates in a translation; settings that only forbid these are not reported.

    Raises:
        UserError: If Tercet does not support the value of a key; the message contains the first such key.
    """
    kind = str(config["model_type"])
    known_keys = {*USED[kind], *COMMON_KEYS, *IRRELEVANT, *ALIASES.get(kind, {})}
    generation_settings = {key: config[key] for key in generation_keys() - known_keys if key in config}
    rejected = {key: allowed for key, allowed in REJECTED.items() if key not in USED[kind]}
    _check({**config, **dict.fromkeys(generation_settings)}, folder / "config.json", known_keys, rejected)
    for side in ("encoder", "decoder"):
        if isinstance(module := config.get(side), dict):
            _check(cast("Plain", module), f"{folder / 'config.json'} ({side})", known_keys, rejected)
    rejected_generation = dict(GENERATION_REJECTED)
    if kind in TRANSLATORS:
        del rejected_generation["forced_bos_token_id"]
    path = folder / "generation_config.json"
    for settings, source in ((generation_settings, folder / "config.json"), (_read(path), path)):
        silent_keys = {
            key for key in SUPPRESSION_KEYS if all(number in silent_ids for number in _flatten(settings.get(key)))
        }
        neutral_keys = {key for key, values in NEUTRAL.items() if is_any_of(settings.get(key), values)}
        used_keys = {*GENERATION_USED, "forced_bos_token_id"}
        known_generation_keys = {*used_keys, *GENERATION_IRRELEVANT, *silent_keys, *neutral_keys}
        _check(settings, source, known_generation_keys, rejected_generation)


def generation_keys() -> set[str]:
    """Return every key of generation_config.json that is listed here."""
    return {*GENERATION_USED, *GENERATION_IRRELEVANT, *GENERATION_REJECTED, *GENERATION_REPORTED, *SUPPRESSION_KEYS}


def _check(
    settings: Mapping[str, Any],
    path: Path | str,
    known_keys: Container[str],
    allowed_values: Mapping[str, tuple[Any, ...]],
) -> None:
    for key, allowed in allowed_values.items():
        if not is_any_of(value := settings.get(key), allowed):
            raise UserError(f"{path}: {key} is {show(value)}, which Tercet does not support")
    active = [key for key, value in settings.items() if key not in allowed_values and not is_any_of(value, OFF)]
    if unknown := [key for key in active if key not in known_keys]:
        print_note(f"tercet: {path}: unsupported keys are ignored: {', '.join(map(show, unknown))}")


def _read(path: Path) -> Plain:
    return read_json_file(path) if path.is_file() else {}


def _flatten(ids: Any) -> Iterator[Any]:
    """Yield the ids of a list of ids, or of lists of one id each.

    For a longer inner list, whose ids are only forbidden as a sequence, yield -1. Yield nothing for other values.
    """
    for item in cast("list[Any]", ids) if isinstance(ids, list) else []:
        inner = cast("list[Any]", item) if isinstance(item, list) else [item]
        yield inner[0] if len(inner) == 1 else -1

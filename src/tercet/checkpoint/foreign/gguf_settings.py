"""The settings of a GGUF file: each key is used, irrelevant or rejected.

An unlisted key of the architecture is rejected unless it is off (false, 0 or empty), since it could change the model's
function. Other unlisted keys are reported and ignored.
"""

import re
from collections.abc import Mapping
from typing import Any

from tercet.checkpoint.foreign.config_keys import is_any_of
from tercet.config import UserError
from tercet.messages import print_note, show

SIZES = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
LLAMA = (
    *SIZES, "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "expert_count",
)  # fmt: skip
USED = {
    **dict.fromkeys(("llama", "qwen3", "arcee"), LLAMA),
    "gpt2": (*SIZES, "attention.layer_norm_epsilon"),
}  # fmt: skip
IRRELEVANT = {
    "vocab_size": "follows from the tokens",
    "tensor_data_layout": "program that wrote the file",
    "expert_used_count": "read only with expert_count, which is rejected",
    "rope.scaling.finetuned": "how the model was trained",
}  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {  # values without effect, or that Tercet assumes
    "attention.causal": (True,),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), (1.0,)),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
}
FILE_KEYS = (  # keys that do not depend on the architecture: those of the file and its tokenizer
    "general.architecture", "general.alignment", "general.quantization_version", "general.file_type", "general.type",
    *(f"tokenizer.ggml.{key}" for key in (
        "model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
        "eom_token_id", "unknown_token_id", "padding_token_id", "add_bos_token", "add_space_prefix",
    )),
    "tokenizer.chat_template",
)  # fmt: skip
IGNORED_PATTERNS = {  # regular expressions of further such keys, with the reason why they are ignored
    r"general\.(?:base_model|dataset|source|sampling|license)\b.*": "origin, and sampling settings",
    r"general\.(?:name|author|version|organization|finetune|basename|description|quantized_by|size_label|license|url|doi|"
    r"uuid|repo_url|tags|languages)": "names and authors",
    r"(?:quantize|imatrix)\..*": "details of the quantization",
    r"split\..*": "each part of a split file is read as one file",
    r"tokenizer\.(?:chat_templates|chat_template\..*|huggingface\.json|rwkv\.world)":
        "other forms of tokenizer and template",
    r"tokenizer\.ggml\.(?:seperator|mask|cls|fim_\w+|prefix|suffix|middle)_token_id": "tokens that no text contains",
    r"tokenizer\.ggml\.(?:token_type_count|add_sep_token|remove_extra_whitespaces|precompiled_charsmap)":
        "settings of the kinds bert and t5",
}  # fmt: skip
REPORTED_KEYS = ("tokenizer.ggml.add_eos_token",)  # llama.cpp appends eos to a prompt


def check_settings(settings: Mapping[str, Any], kind: str) -> None:
    """Check every key of a GGUF file, and print the unlisted keys that are ignored.

    Args:
        settings: Values by key.
        kind: Architecture, which is the prefix of its keys, such as "llama".

    Raises:
        UserError: If the file is not a model, or an unlisted key of the architecture is set (not false, 0 or empty);
            the first such key is named.
    """
    if settings.get("general.type", "model") != "model":
        raise UserError(f"its general.type is {show(settings['general.type'])}; only models are supported")
    unknown = list[str]()
    for key, value in settings.items():
        if is_any_of(value, (False, 0, 0.0, "", [])):
            continue
        if key.startswith(f"{kind}."):
            name = key.removeprefix(f"{kind}.")
            if name not in USED[kind] and name not in IRRELEVANT and not is_any_of(value, NEUTRAL.get(name, ())):
                raise UserError(f"its {key} is {show(value)}, which is not supported for {kind}")
        elif not is_listed(key):
            unknown.append(key)
    if unknown:
        print_note(f"tercet: unsupported keys of the GGUF file are ignored: {', '.join(map(show, unknown))}")


def is_listed(key: str) -> bool:
    """Return whether a key without the prefix of an architecture is in `FILE_KEYS` or `IGNORED_PATTERNS`."""
    return key in FILE_KEYS or any(re.fullmatch(pattern, key) for pattern in IGNORED_PATTERNS)

"""The keys of a `peft` LoRA adapter's settings, and their effect on the adapter's weights.

An unlisted key is rejected unless it is off (null, false, 0 or empty), since `peft` also writes the keys of variants
that the adapter does not use.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tercet.checkpoint.foreign.config_keys import is_any_of
from tercet.config import UserError, suggest
from tercet.messages import show

USED = {
    "peft_type": "must be LORA",
    "base_model_name_or_path": "path of the base model",
    "lora_alpha": "scaling of each product",
    "alpha_pattern": "other values of lora_alpha, by layer",
    "use_rslora": "divides lora_alpha by the root of the rank",
}
IRRELEVANT = {
    "r": "follows from the shapes of A and B",
    "rank_pattern": "follows from the shapes of A and B",
    "target_modules": "the file contains only the adapted layers",
    "exclude_modules": "as target_modules",
    "layers_to_transform": "as target_modules",
    "layers_pattern": "as target_modules",
    "modules_to_save": "the file contains their weights",
    "fan_in_fan_out": "layout of the base's matrices; that of B A is fixed",
    "lora_dropout": "training only",
    "inference_mode": "whether parameters are trainable",
    "task_type": "class that wraps the model",
    "auto_mapping": "class that wraps the model",
    "revision": "revision of the base on the hub",
    "peft_version": "program version",
    "runtime_config": "device settings",
    "loftq_config": "read only if init_lora_weights is loftq, which is rejected",
    "eva_config": "initialization of A",
    "corda_config": "read only if init_lora_weights is corda, which is rejected",
    "lora_ga_config": "read only if init_lora_weights is lora_ga, which is rejected",
    "megatron_core": "read only with megatron_config, which is rejected",
    "qalora_group_size": "read only with use_qalora, which is rejected",
}
OFF = (None, False, 0, "", {}, [])
# Initializations that do not change the weights of the base. The others (pissa, olora, corda, loftq, lora_ga) subtract
# the initial product of A and B, so that the adapter fits a modified base only.
INITIALIZATIONS = (None, True, False, "gaussian", "orthogonal", "eva")
REJECTED = {
    "init_lora_weights": INITIALIZATIONS,
    "bias": ("none", *OFF),
    "use_dora": OFF,
    "lora_bias": OFF,
    "use_qalora": OFF,
    "use_bdlora": OFF,
    "layer_replication": OFF,
    "trainable_token_indices": OFF,
    "target_parameters": OFF,
    "alora_invocation_tokens": OFF,
    "megatron_config": OFF,
    "velora_config": OFF,
    "monteclora_config": OFF,
    "arrow_config": OFF,
    "kasa_config": OFF,
    "ensure_weight_tying": OFF,
}


def check_settings(config: Mapping[str, Any], path: Path) -> None:
    """Reject an adapter whose update of the base's weights is not the scaled product of A and B.

    Args:
        config: Content of adapter_config.json.
        path: Path of this file, for error messages.

    Raises:
        UserError: If a key is unknown and not off, or has a value that changes the formula; the message contains the
            first such key.
    """
    if config.get("peft_type", "LORA") != "LORA":
        raise UserError(
            f"{path}: peft_type is {show(config['peft_type'])}, which Tercet does not support; supported: 'LORA'"
        )
    for key, allowed in REJECTED.items():
        if is_any_of(value := config.get(key), allowed):
            continue
        if key == "init_lora_weights":
            raise UserError(
                f"{path}: init_lora_weights is {show(value)}, which changes the weights of the base before training; "
                "save it in peft with path_initial_model_for_weight_conversion, or merge it there"
            )
        reads = "adapters without it" if allowed is OFF else show(allowed[0])
        raise UserError(f"{path}: {key} is {show(value)}, which Tercet does not support; supported: {reads}")
    for key, value in config.items():
        if key not in {*USED, *IRRELEVANT, *REJECTED} and not is_any_of(value, OFF):
            guess = suggest(key, [*USED, *IRRELEVANT, *REJECTED])
            raise UserError(f"{path}: {show(key)} is {show(value)}, an unknown key{guess}")

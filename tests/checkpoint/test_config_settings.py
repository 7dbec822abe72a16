"""Every key that `transformers` reads from config.json and generation_config.json is used, irrelevant or rejected."""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tercet.checkpoint.foreign.config_settings import (
    ALIASES,
    COMMON_KEYS,
    FILES,
    GENERATION_IRRELEVANT,
    GENERATION_REJECTED,
    GENERATION_REPORTED,
    GENERATION_USED,
    IRRELEVANT,
    REJECTED,
    SUPPRESSION_KEYS,
    USED,
    check_folder,
    generation_keys,
    rename_keys,
)
from tercet.checkpoint.foreign.readers import READERS
from tercet.config import UserError

METHODS = {"get_text_config", "to_dict", "sub_configs", "standardize_rope_params", "default_theta"}  # not keys


IMAGES = {"image_token_id", "mm_tokens_per_image", "text_config", "vision_config"}  # of another class in the file


def decided_keys(kind: str) -> set[str]:
    keys = {*USED[kind], *COMMON_KEYS, *IRRELEVANT, *REJECTED, *ALIASES.get(kind, {})}
    return keys | generation_keys()


def test_every_family_has_a_list_and_no_key_has_two_decisions() -> None:
    assert USED.keys() == READERS.keys()
    generation = [
        *GENERATION_USED,
        *GENERATION_IRRELEVANT,
        *GENERATION_REJECTED,
        *GENERATION_REPORTED,
        *SUPPRESSION_KEYS,
    ]
    assert len(generation) == len(set(generation))
    assert not set(IRRELEVANT) & {*REJECTED, *COMMON_KEYS}
    for kind in READERS:
        assert set(REJECTED) & set(USED[kind]) <= {"hidden_activation"}  # T5Gemma's only name of the activation


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(READERS))
def test_every_key_that_transformers_reads_is_decided(kind: str) -> None:
    from transformers import CONFIG_MAPPING
    from transformers.configuration_utils import PreTrainedConfig

    theirs = CONFIG_MAPPING[kind]
    fields = {field.name for field in dataclasses.fields(theirs)} | {*theirs.attribute_map}
    popped_keys = re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(PreTrainedConfig.__post_init__))
    file = Path(inspect.getfile(theirs))
    modeling = file.with_name(file.name.replace("configuration_", "modeling_")).read_text(encoding="utf-8")
    read = set(re.findall(r"\bconfig\.([a-z_]\w*)", modeling))
    read |= set(re.findall(r'getattr\((?:self\.)?config, "(\w+)"', modeling))
    others = METHODS | IMAGES if kind == "gemma3_text" else METHODS
    assert {*fields, *popped_keys, *read} - others - decided_keys(kind) == set()


@pytest.mark.slow
def test_every_file_that_transformers_reads_is_decided() -> None:
    import transformers
    from transformers import tokenization_utils_base, utils
    from transformers.utils import hub

    names = set[str]()
    for module in (utils, hub, tokenization_utils_base):
        text = Path(inspect.getfile(module)).read_text(encoding="utf-8")
        names |= set(re.findall(r'^[A-Z_]+(?:_NAME|_FILE|_DIR) = "([\w.]+)"', text, re.MULTILINE))
    for kind in ("Bert", "GPT2", "Roberta", "XLMRoberta", "Camembert", "Llama", "Qwen2", "Gemma", "T5", "Marian"):
        names |= set(getattr(transformers, f"{kind}Tokenizer").vocab_files_names.values())
    assert len(names) > 20
    assert names - FILES.keys() == {"transformers_modules"}  # belongs to a cache, not to a folder


@pytest.mark.slow
def test_every_key_of_generation_is_decided() -> None:
    from transformers import GenerationConfig

    read = set(re.findall(r'kwargs\.pop\("(\w+)"', inspect.getsource(GenerationConfig.__init__)))
    assert len(read) > 50
    assert read - generation_keys() == set()


@pytest.mark.slow
def test_another_name_of_a_key_takes_precedence_as_in_transformers() -> None:
    from transformers import CONFIG_MAPPING

    for kind, names in ALIASES.items():
        for alias, key in names.items():
            for entries in ({alias: 4}, {key: 2, alias: 4}):
                config = {"model_type": kind, **entries}
                assert rename_keys(config)[key] == 4 == getattr(CONFIG_MAPPING[kind](**entries), key), (kind, alias)


def add_generation_config(folder: Path, generation: dict[str, Any] | None = None) -> Path:
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize(
    ("config", "generation", "words"),
    [
        ({"per_layer_config": {"0": {"num_attention_heads": 2}}}, None, "config.json: per_layer_config is {'0': "),
        ({"pruned_heads": {"1": [0]}}, None, "config.json: pruned_heads is"),
        ({"quantization_config": {"bits": 4}}, None, "config.json: quantization_config is"),
        ({"forced_bos_token_id": 5}, None, "/config.json: forced_bos_token_id is 5, which Tercet does not support"),
        ({}, {"forced_bos_token_id": 5}, "generation_config.json: forced_bos_token_id is 5"),
        ({}, {"guidance_scale": 1.5}, "generation_config.json: guidance_scale is 1.5"),
    ],
)
def test_setting_that_changes_outputs_is_rejected(
    config: dict[str, Any], generation: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        check_folder(add_generation_config(tmp_path, generation), {"model_type": "gemma", **config})


def test_forced_first_token_of_a_translator_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_folder(add_generation_config(tmp_path, {"forced_bos_token_id": 5}), {"model_type": "mbart"})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("config", "generation", "expected_name"),
    [
        ({"attn_logit_softcapping": 50.0, "use_cache": True}, None, "'attn_logit_softcapping'"),
        ({"rms_norm_epsilon": 1e-5}, {"no_repeat_ngram_size": 3}, "'rms_norm_epsilon'"),
        ({}, {"stop_strings": ["."], "temperature": 0.6}, "'stop_strings'"),
        ({"no_repeat_ngram_size": 3}, None, "'no_repeat_ngram_size'"),
        ({}, {"bad_words_ids": [[0], [7]]}, "'bad_words_ids'"),
        ({}, {"bad_words_ids": [[0, 1]]}, "'bad_words_ids'"),
        ({}, {"suppress_tokens": [1, 0], "bad_words_ids": [[0]]}, ""),
        ({"new_idea": 0, "another": None, "id2label": {"0": "A"}}, {"encoder_repetition_penalty": 1.0}, ""),
        ({"guidance_scale": 1, "max_length": 20, "hidden_activation": "gelu_pytorch_tanh"}, {"num_beams": 4}, ""),
    ],
)
def test_ignored_setting_is_reported(
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    expected_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_folder(add_generation_config(tmp_path, generation), {"model_type": "gemma", **config}, silent_ids={0, 1})
    stderr = capsys.readouterr().err
    assert expected_name in stderr
    assert bool(stderr) == bool(expected_name)


@pytest.mark.parametrize(
    ("network", "is_read"),
    [
        ({"dense_act_fn": "gelu_new", "is_gated_act": True}, True),
        ({"dense_act_fn": "relu"}, False),
        ({"is_gated_act": False}, False),
    ],
)
def test_t5_network_may_be_defined_in_two_ways(network: dict[str, Any], is_read: bool) -> None:
    from tercet.checkpoint.foreign.t5 import t5_spec

    sizes = {"vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = {"model_type": "t5", "feed_forward_proj": "gated-gelu", **sizes, **network}
    if is_read:
        assert t5_spec(config, {}).encoder.gated
        return
    with pytest.raises(UserError, match=r"feed_forward_proj is 'gated-gelu', which contradicts"):
        t5_spec(config, {})

"""Every setting of a `peft` adapter is used, irrelevant or rejected; unknown ones never change numbers silently."""

from pathlib import Path
from typing import Any

import peft
import pytest

from tercet.checkpoint.adapter import Adapter
from tercet.checkpoint.adapter_settings import IRRELEVANT, REJECTED, USED, check_settings
from tercet.checkpoint.foreign.peft_folder import import_adapter
from tercet.config import UserError

PATH = Path("adapter_config.json")
PLAIN = peft.LoraConfig(target_modules=["q_proj"]).to_dict() | {"peft_type": "LORA", "target_modules": ["q_proj"]}


def test_every_key_of_the_library_has_one_decision() -> None:
    lists = (USED, IRRELEVANT, REJECTED)
    keys = {*PLAIN, "runtime_config"}
    assert {key: sum(key in group for group in lists) for key in keys} == dict.fromkeys(keys, 1)
    assert all(len(reason) > 5 for reason in (*USED.values(), *IRRELEVANT.values()))


def test_default_config_of_the_library_is_read() -> None:
    check_settings(PLAIN, PATH)
    check_settings({"peft_type": "LORA"}, PATH)
    for name in (True, False, "gaussian", "orthogonal", "eva", None):
        check_settings(PLAIN | {"init_lora_weights": name}, PATH)


@pytest.mark.parametrize("name", ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "new"])
def test_initializations_that_change_the_base_are_rejected(name: str) -> None:
    """peft#1929, transformers#34468, peft#2270, peft PR 1626: the adapter belongs to another model than its base."""
    with pytest.raises(UserError, match=f"init_lora_weights is '{name}', which changes the weights of the base"):
        check_settings(PLAIN | {"init_lora_weights": name}, PATH)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True), ("bias", "all"), ("lora_bias", True), ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 1]]), ("target_parameters", ["mlp"]), ("ensure_weight_tying", True),
        ("arrow_config", {"top_k": 2}), ("use_qalora", True), ("peft_type", "VERA"),
    ],
)  # fmt: skip
def test_other_formulas_are_rejected_by_their_key(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{key} is .*, which Tercet does not support; supported:"):
        check_settings(PLAIN | {key: value}, PATH)


def test_unknown_key_is_rejected_unless_it_is_off() -> None:
    check_settings(PLAIN | {"use_next": False, "next_config": None, "next_list": []}, PATH)
    with pytest.raises(UserError, match=r"'use_dorra' is True, an unknown key; did you mean"):
        check_settings(PLAIN | {"use_dorra": True}, PATH)


@pytest.mark.parametrize("name", ["transformer.wte.weight", "lm_head.weight"])
def test_saved_module_of_a_tied_model_is_rejected(name: str) -> None:
    """The library gives the new weight to one of the two modules that share it."""
    from adapted_models import MODELS

    from tercet.config import parse
    from tercet.models import SPECS, build

    plain = {**MODELS["gpt2"], "vocab_size": 13}
    for tied in (True, False):
        model = build(parse(SPECS["decoder-only"], {**plain, "tie_embeddings": tied}), seed=1)
        adapter = Adapter(base="", layers={}, full_weights={name: model.embedding.weight.detach()})
        if tied:
            with pytest.raises(UserError, match=f"has its own {name}, but its model has a single matrix"):
                import_adapter(adapter, model, Path("adapter"), {})

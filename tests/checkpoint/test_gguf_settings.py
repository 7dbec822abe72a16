"""Every GGUF key is used, irrelevant or rejected."""

from collections.abc import Iterator
from typing import Any

import pytest
from gguf.constants import Keys

from tercet.checkpoint.foreign.gguf_settings import IRRELEVANT, REPORTED_KEYS, USED, check_settings, is_listed
from tercet.config import UserError


def keys_of(group: Any) -> Iterator[str]:
    for name, value in vars(group).items():
        if isinstance(value, type):
            yield from keys_of(value)
        elif not name.startswith("_") and isinstance(value, str):
            yield value.format(arch="llama", id=0, name="tool_use", dense="dense")


def test_every_key_of_the_file_and_its_tokenizer_is_decided() -> None:
    keys = [*keys_of(Keys.General), *keys_of(Keys.Tokenizer), *keys_of(Keys.Split), *keys_of(Keys.IMatrix)]
    assert len(keys) > 70
    assert [key for key in keys if not is_listed(key) and key not in REPORTED_KEYS] == []


def test_key_of_another_model_is_rejected_by_name() -> None:
    for key in [*keys_of(Keys.LLM), *keys_of(Keys.Attention), *keys_of(Keys.Rope), *keys_of(Keys.SSM)]:
        is_known = key.removeprefix("llama.") in {*USED["llama"], *IRRELEVANT}
        check_settings({key: 0}, "llama")  # off
        if is_known:
            check_settings({key: 3}, "llama")
        else:
            with pytest.raises(UserError, match=f"its {key} is 3, which is not supported for llama"):
                check_settings({key: 3}, "llama")
    check_settings({"llama.attention.causal": True, "general.type": "model"}, "llama")
    with pytest.raises(UserError, match=r"its general\.type is 'adapter'"):
        check_settings({"general.type": "adapter"}, "llama")


def test_ignored_keys_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    check_settings({"general.name": "a", "tokenizer.ggml.add_eos_token": False, "x.y": 0}, "gpt2")
    assert not capsys.readouterr().err
    check_settings({"tokenizer.ggml.add_eos_token": True, "x.y": 1}, "gpt2")
    assert (
        "unsupported keys of the GGUF file are ignored: 'tokenizer.ggml.add_eos_token', 'x.y'\n"
        in capsys.readouterr().err
    )

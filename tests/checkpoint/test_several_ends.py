"""A text ends at any of the end ids in a model's settings, in every kind of folder and after export."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import auto_tokenizer
from folders_of_others import words
from gguf_models import BYTES, llama, save_folder
from tokenizers import processors

from tercet.checkpoint import LanguageModel, convert, load_model
from tercet.config import UserError
from tercet.generation import Sampling, generate
from tercet.generation.text import end_ids
from tercet.tokens import Tokenizer
from tercet.tokens.chat_template import ChatTemplate, plain_template

ENDS = [2, 70, 71]


@pytest.mark.parametrize("to", [None, "hf", "gguf"])
def test_all_end_ids_survive_every_kind_of_folder(to: str | None, tmp_path: Path) -> None:
    """vllm#4180, vllm#4182, mlx-vlm#309, exllamav2#449: `eos_token_id` is a list, but only one id stops."""
    source = save_folder(tmp_path / "ours", llama(), BYTES.with_ids(eos_id=2).with_other_end_ids([71, 70]))
    tokenizer = load_model(convert(source, tmp_path / "out", to)).tokenizer
    assert tokenizer.end_ids == ENDS
    assert end_ids(tokenizer) == frozenset(ENDS)
    assert tokenizer.with_opening([1]).with_ids(pad_id=5).end_ids == ENDS
    if to == "hf":
        for name in ("config.json", "generation_config.json"):
            assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == ENDS


def test_more_end_ids_than_llama_cpp_supports_are_rejected(tmp_path: Path) -> None:
    source = save_folder(tmp_path / "ours", llama(), BYTES.with_ids(eos_id=2).with_other_end_ids([70, 71, 72]))
    with pytest.raises(UserError, match=r"any of the ids \[2, 70, 71, 72\], but llama.cpp supports at most three"):
        convert(source, tmp_path / "out", "gguf")


def foreign_llama(folder: Path, **settings: Any) -> Path:
    library = words(11)
    library.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>").save_pretrained(
        folder
    )
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=5, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=37, bos_token_id=1, **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("place", ["config.json", "generation_config.json"])
def test_any_end_id_of_a_folder_stops_as_in_transformers(place: str, tmp_path: Path) -> None:
    folder = foreign_llama(tmp_path / "theirs", eos_token_id=2)
    theirs: Any = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    ids = auto_tokenizer(folder)("w5 w6", return_tensors="pt").input_ids
    free = theirs.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)[0, ids.shape[1] :].tolist()
    path = folder / place
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [2, free[3]]}))
    if place == "config.json":
        (folder / "generation_config.json").unlink()
    reloaded: Any = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    expected = reloaded.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :].tolist()
    ours = load_model(folder)
    assert isinstance(ours, LanguageModel)
    assert ours.tokenizer.end_ids == sorted({2, free[3]})
    completion = generate(ours.model, ours.tokenizer, ["w5 w6"], Sampling(temperature=0, max_new_tokens=6))[0]
    assert list(completion.ids) == expected
    assert completion.finish == "eos"


def test_translator_with_several_end_ids_is_rejected(tmp_path: Path) -> None:
    from tercet.tokens.foreign import load_tokenizers

    Tokenizer(words(11)).save(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="eos_token_id has 2 tokens"):
        load_tokenizers(tmp_path, {"decoder_start_token_id": 3, "eos_token_id": [2, 5]})


def test_exported_chat_template_is_not_split_into_letters(tmp_path: Path) -> None:
    """transformers#29279, OpenRLHF#1069: ids must be those of training, with special tokens unsplit."""
    template = plain_template(BYTES)
    out = convert(save_folder(tmp_path / "ours", llama(), BYTES, template), tmp_path / "out", "hf")
    theirs, messages = auto_tokenizer(out), [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}]
    messages.append({"role": "user", "content": "more"})
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == ChatTemplate(template, BYTES).encode(messages)
    assert BYTES.eos_id in ids
    plain = auto_tokenizer(convert(save_folder(tmp_path / "plain", llama()), tmp_path / "plain-out", "hf"))
    name = BYTES.tokens([BYTES.eos_id or 0])[0]
    assert plain(name).input_ids == BYTES.encode(name), "without a template, special tokens in a text stay text"

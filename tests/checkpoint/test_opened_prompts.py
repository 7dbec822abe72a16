"""Tokens that start a text: a Llama's bos precedes a prompt, as in `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from converted import auto_tokenizer
from folders_of_others import words
from gguf_models import BYTES, llama, save_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from tercet.checkpoint import convert, load_model
from tercet.generation import encode_prompt
from tercet.tokens import Tokenizer

TEXTS = ("the cat", " sat\non", "", "<bos>", "w5 w6")
BOS, EOS = ("<s>", 1), ("</s>", 2)


def make_tokenizer(*, single: str, special: tuple[tuple[str, int], ...] = (BOS, EOS)) -> Tokenizer:
    library = words(11)
    library.post_processor = processors.TemplateProcessing(single=single, pair=None, special_tokens=list(special))
    return Tokenizer(library)


@pytest.mark.parametrize(
    ("single", "opening"),
    [
        ("<s> $A", (1,)),
        ("<s> </s> $A", (1, 2)),
        ("$A", ()),
        ("<s> $A </s>", ()),
        ("$A </s>", ()),
    ],
)
def test_opening_is_read_from_the_post_processor(single: str, opening: tuple[int, ...]) -> None:
    tokenizer = make_tokenizer(single=single)
    assert tokenizer.opening == opening
    assert tokenizer.encode("w5 w6") == [5, 6], "a document's ids have no prefix"
    assert encode_prompt(tokenizer, "w5 w6") == [*opening, 5, 6]
    assert Tokenizer.from_json(tokenizer.to_json()).opening == opening
    assert tokenizer.with_ids(eos_id=7).opening == opening


def test_opening_is_read_from_a_sequence_of_post_processors() -> None:
    library = words(11)
    template = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[BOS])
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    assert Tokenizer(library).opening == (1,)
    second = processors.TemplateProcessing(single="</s> $A", pair=None, special_tokens=[EOS])
    library.post_processor = processors.Sequence([template, second])
    tokenizer = Tokenizer(library)
    assert encode_prompt(tokenizer, "w5") == library.encode("w5").ids == [1, 5]
    library.post_processor = processors.BertProcessing(EOS, BOS)
    assert Tokenizer(library).opening == ()


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 10), max_size=3))
def test_another_opening_is_kept(ids: list[int]) -> None:
    tokenizer = Tokenizer(words(11)).with_ids(eos_id=7, pad_id=3)
    opening_tokenizer = tokenizer.with_opening(ids)
    assert opening_tokenizer.opening == tuple(ids)
    restored = Tokenizer.from_json(opening_tokenizer.to_json())
    assert restored.opening == tuple(ids)
    assert (opening_tokenizer.eos_id, opening_tokenizer.pad_id, opening_tokenizer.bos_id) == (7, 3, 1)
    assert opening_tokenizer.encode("w5") == restored.encode("w5") == [5]
    assert opening_tokenizer.with_opening([]).opening == ()


def test_invalid_opening_id_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"no id 11; ids are 0 to 10"):
        Tokenizer(words(11)).with_opening([11])


def test_empty_prompt_is_the_opening() -> None:
    assert encode_prompt(BYTES.with_opening([1]), "") == [1]
    assert encode_prompt(BYTES, "") == [2]


def a_llama(folder: Path, tokenizer: Any) -> Path:
    """Save a Llama by `transformers` and return the folder."""
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=5, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=37, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("opens", [True, False])
def test_prompts_match_llama_in_transformers(opens: bool, tmp_path: Path) -> None:
    names = ["<unk>", "<s>", "</s>", "▁", *"thecaswon456"]
    tokenizer = transformers.LlamaTokenizer(
        vocab={name: number for number, name in enumerate(names)}, merges=[], add_bos_token=opens
    )
    folder = a_llama(tmp_path / "theirs", tokenizer)
    theirs, ours = auto_tokenizer(folder), load_model(folder).tokenizer
    assert ours.opening == ((1,) if opens else ())
    for text in ("the cat", "w5 w6", "sea", "a  sat"):
        assert encode_prompt(ours, text) == theirs(text).input_ids, text
    reloaded = load_model(convert(folder, tmp_path / "ours")).tokenizer
    out = convert(tmp_path / "ours", tmp_path / "out", "hf")
    for text in ("the cat", "sea"):
        assert encode_prompt(reloaded, text) == auto_tokenizer(out)(text).input_ids == theirs(text).input_ids


@pytest.mark.parametrize("add_bos", [True, False, None])
def test_add_bos_setting_changes_nothing_as_in_transformers(add_bos: bool | None, tmp_path: Path) -> None:
    library = words(11)
    library.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[BOS])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>")
    folder = a_llama(tmp_path / "theirs", tokenizer)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("add_bos_token", None)
    path.write_text(json.dumps(config if add_bos is None else {**config, "add_bos_token": add_bos}))
    assert encode_prompt(load_model(folder).tokenizer, "w5 w6") == auto_tokenizer(folder)("w5 w6").input_ids


def test_opening_survives_every_kind_of_folder(tmp_path: Path) -> None:
    source = save_folder(tmp_path / "ours", llama(), BYTES.with_opening([1]))
    for to in (None, "hf", "gguf"):
        folder = convert(source, tmp_path / str(to), to)
        tokenizer = load_model(folder).tokenizer
        for text in TEXTS:
            assert encode_prompt(tokenizer, text) == [1, *BYTES.encode(text)], (to, text)
    theirs = auto_tokenizer(tmp_path / "hf")
    assert theirs("the cat").input_ids == [1, *BYTES.encode("the cat")]

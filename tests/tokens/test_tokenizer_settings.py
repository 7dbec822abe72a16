"""Settings in the files next to a tokenizer.json are applied as in `transformers`, or rejected by name."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tercet.config import UserError
from tercet.tokens.chat_template import ChatTemplate
from tercet.tokens.foreign import load_tokenizers
from tercet.tokens.tokenizer_settings import IRRELEVANT, USED

TEXT = "The Café 中文 sat on a MAT"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
INTERNAL = {"tokenizer_object", "gguf_file", "post_processor", "tokenizer_truncation", "tokenizer_padding", "args",
            "kwargs", "self", "model_specific_special_tokens", "fix_mistral_regex", "tokenizer"}  # fmt: skip


def wordpiece(**flags: Any) -> Tokenizer:
    letters = sorted(set(TEXT + TEXT.lower() + "e") - {" "})
    names = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    library = Tokenizer(models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(**flags)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    pair = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    library.post_processor = pair
    return library


def bytes_level(*, adds_space: bool) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({name: n for n, name in enumerate(["<|endoftext|>", *alphabet])}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return library


def write_folder(folder: Path, tokenizer: Tokenizer, model_type: str, **files: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in {"config": {"model_type": model_type}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def ours(folder: Path, model_type: str) -> Any:
    return load_tokenizers(folder, {"model_type": model_type})[0]


@pytest.mark.slow
@pytest.mark.parametrize("stored_flags", [{"lowercase": True}, {"lowercase": False, "strip_accents": False}])
@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": False},
        {"do_lower_case": True},
        {"tokenizer_class": "BertTokenizerFast"},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
    ],
)
def test_flags_of_bert_are_applied(settings: dict[str, Any], stored_flags: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = write_folder(tmp_path, wordpiece(**stored_flags), "bert", tokenizer_config=settings)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert ours(folder, "bert").encode(TEXT) == theirs.encode(TEXT, add_special_tokens=False)


@pytest.mark.slow
@pytest.mark.parametrize("adds_space", [True, False])
@pytest.mark.parametrize("setting", [True, False, None])
def test_prefix_space_of_gpt2_is_applied(adds_space: bool, setting: bool | None, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    settings = {"tokenizer_class": "GPT2Tokenizer", **({} if setting is None else {"add_prefix_space": setting})}
    folder = write_folder(tmp_path, bytes_level(adds_space=adds_space), "gpt2", tokenizer_config=settings)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert ours(folder, "gpt2").encode("a b") == theirs.encode("a b", add_special_tokens=False)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer_config": {"added_tokens_decoder": {"999": {"content": "<new>"}}}}, "has the token '<new>'"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": {"content": "<|endoftext|>"}}}}, "with another id than"),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"0": {"content": "<|endoftext|>", "rstrip": True}}}},
            "has the token '<|endoftext|>' with another rstrip than tokenizer.json; save it with AutoTokenizer",
        ),
        ({"tokenizer_config": {"extra_special_tokens": {"image": "<image>"}}}, "has the token '<image>'"),
        ({"special_tokens_map": {"additional_special_tokens": ["<user>"]}}, "map.json has the token '<user>'"),
        ({"added_tokens": {"<user>": 300}}, "added_tokens.json has the token '<user>', which"),
        (
            {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": True}},
            "add_prefix_space is true, but tokenizer.json adds no space before texts",
        ),
    ],
)  # fmt: skip
def test_setting_that_changes_the_tokenizer_is_rejected(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, bytes_level(adds_space=False), "llama", **files)
    with pytest.raises(UserError, match=re.escape(words)):
        ours(folder, "llama")


def test_redundant_settings_are_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "added_tokens_decoder": {"0": {"content": "<|endoftext|>", "lstrip": False, "special": True}},
        "additional_special_tokens": ["<|endoftext|>", "a"], "add_prefix_space": False, "padding_side": "left",
    }  # fmt: skip
    folder = write_folder(tmp_path, bytes_level(adds_space=False), "llama", tokenizer_config=settings,
                       added_tokens={"<|endoftext|>": 0})  # fmt: skip
    assert ours(folder, "llama").encode("ab") == bytes_level(adds_space=False).encode("ab").ids
    assert not capsys.readouterr().err
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "reverse": True, "other": None}))
    ours(folder, "llama")
    assert "tokenizer_config.json: unsupported keys are ignored: 'reverse'\n" in capsys.readouterr().err


@pytest.mark.slow
def test_every_key_that_transformers_reads_is_decided() -> None:
    import transformers
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    names = (
        "Bert",
        "GPT2",
        "Roberta",
        "XLMRoberta",
        "Camembert",
        "Llama",
        "Qwen2",
        "Gemma",
        "T5",
        "DistilBert",
        "Marian",
    )
    read = {key for name in names for key in inspect.signature(getattr(transformers, f"{name}Tokenizer")).parameters}
    for base in (PreTrainedTokenizerBase, TokenizersBackend):
        read |= set(re.findall(r'kwargs\.(?:pop|get|setdefault)\("(\w+)"', inspect.getsource(base.__init__)))
    read = {key for key in read if not key.startswith("_")} - INTERNAL
    assert len(read) > 40
    assert read - {*USED, *IRRELEVANT} == set()


STRIPS = [(False, False), (True, False), (False, True), (True, True)]
MESSAGES = [{"role": "user", "content": " who \t<|end|>"}, {"role": "assistant", "content": "me "}]


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), STRIPS)
def test_special_tokens_absorb_white_space_as_in_transformers(left: bool, right: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    library = bytes_level(adds_space=False)
    library.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False, lstrip=left, rstrip=right)])
    folder = write_folder(tmp_path, library, "llama", tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    template = "{% for m in messages %}{{ m['role'] }} \n {{ m['content'] }} \u2003<|end|> \t\n\x1c \n{% endfor %}"
    messages = [{**message, "content": message["content"].replace("<|end|>", "")} for message in MESSAGES]
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs.encode(theirs.apply_chat_template(messages, chat_template=template, tokenize=False))
    chat = ChatTemplate(template, ours(folder, "llama"))
    assert chat.encode(messages) == expected
    assert chat.encode(MESSAGES).count(257) == 2  # special tokens in a user's message stay text


def test_special_token_with_single_word_is_rejected(tmp_path: Path) -> None:
    library = bytes_level(adds_space=False)
    library.add_special_tokens([AddedToken("<|end|>", special=True, single_word=True)])
    tokenizer = ours(write_folder(tmp_path, library, "llama"), "llama")
    with pytest.raises(UserError, match="single_word"):
        ChatTemplate("{{ messages[0]['content'] }}", tokenizer)

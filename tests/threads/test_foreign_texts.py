"""Texts and chats of other libraries keep their spaces and first token, and broken folders are rejected."""

import json
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tercet.checkpoint import Card, convert, load_model, save_model
from tercet.config import UserError
from tercet.models import build, model_spec
from tercet.tokens import BPE, Tokenizer
from tercet.tokens.chat_template import ChatTemplate

TALK = [
    {"role": "user", "content": "hello you"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": " go on"},
]
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
RENDERED = "<s>[INST] hello you [/INST]yes </s>[INST]  go on [/INST]"


@cache
def metaspace(scheme: str) -> tokenizers.Tokenizer:
    """Return a Llama tokenizer that adds a space before the first part, each part, or none."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helouysgin[]INST/"]
    library = tokenizers.Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return library


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_chat_has_the_spaces_of_the_library(scheme: str) -> None:
    library = metaspace(scheme)
    chat = ChatTemplate(LLAMA, Tokenizer.from_json(library.to_str()))
    assert chat.render(TALK) == RENDERED
    expected = library.encode(RENDERED, add_special_tokens=False).ids
    assert chat.encode(TALK) == expected
    if scheme != "always":  # an answer is encoded separately and then has a space
        conversation, _ = chat.encode_conversation(TALK[:2])
        assert conversation == expected[: len(conversation)]
        assert conversation[-1] == library.token_to_id("</s>")


@pytest.mark.slow
def test_a_chat_has_one_first_token() -> None:
    tokenizer = Tokenizer.train(BPE(vocab_size=270, bos=True), ["hello you yes go on"])
    assert tokenizer.bos_id is not None
    opened = tokenizer.with_opening([tokenizer.bos_id])
    ids = ChatTemplate(LLAMA, opened).encode(TALK)
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1
    conversation, _ = ChatTemplate(LLAMA, opened).encode_conversation(TALK[:2])
    assert conversation.count(tokenizer.bos_id) == 1


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Return a small Llama with an untied output matrix, as transformers saves it."""
    tokenizer = Tokenizer.train(BPE(vocab_size=260), ["hello you"])
    stack = {"d_model": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "d_ff": 12}
    spec = model_spec({"preset": "llama", "vocab_size": tokenizer.vocab_size, "max_len": 16, "stack": stack})
    save_model(tmp_path / "ours", build(spec), tokenizer, Card())
    return convert(tmp_path / "ours", tmp_path / "theirs", "hf")


@pytest.mark.slow
def test_a_head_next_to_tied_embeddings_is_rejected(llama: Path) -> None:
    load_model(llama)
    config = json.loads((llama / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    (llama / "manifest.json").unlink()
    (llama / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(UserError, match=r"lm_head\.weight"):
        load_model(llama)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.model"])
def test_a_folder_without_a_tokenizer_is_rejected(llama: Path, name: str) -> None:
    (llama / "manifest.json").unlink()
    (llama / "tokenizer.json").unlink()
    (llama / name).write_text("hello\nyou\n")
    with pytest.raises(UserError, match="tokenizer"):
        load_model(llama)


@pytest.mark.slow
def test_a_space_before_punctuation_is_restored(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.train(BPE(vocab_size=270), ["hello you ! do n't , he said"])
    stack = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 12}
    spec = model_spec({"preset": "gpt2", "vocab_size": tokenizer.vocab_size, "max_len": 16, "stack": stack})
    save_model(tmp_path / "ours", build(spec), tokenizer, Card())
    theirs = AutoTokenizer.from_pretrained(convert(tmp_path / "ours", tmp_path / "theirs", "hf"))
    for text in ("hello !", "do n't , he said .", "you 's ?"):
        assert theirs(text).input_ids == tokenizer.encode(text)
        assert theirs.decode(theirs(text).input_ids) == text == tokenizer.decode(tokenizer.encode(text))

"""tiktoken's ranks turned into merges must give tiktoken's ids; these ranks are learnt here, so no download."""

import json
import sys
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.tokens import BPE, GPT2, Tokenizer, gpt2
from tercet.tokens.decoding import byte_characters

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
TEXT = "It's what they'll say: the thing that thought the other thing. 1234 naïve naïve  \n\n über über 🙂🙂 " * 4


def learnt_ranks() -> dict[bytes, int]:
    """Bytes in GPT-2's order, then the merges of a BPE of ours."""
    names = json.loads(Tokenizer.train(BPE(vocab_size=330, eos=False), [TEXT]).to_json())["model"]["vocab"]
    value = {character: byte for byte, character in enumerate(byte_characters())}
    tokens = [bytes(value[character] for character in name) for name in sorted(names, key=names.__getitem__)]
    return {token: rank for rank, token in enumerate(tokens)}


RANKS = learnt_ranks()
SPECIAL = {"<|endoftext|>": len(RANKS)}
THEIRS = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens=SPECIAL)
OURS = Tokenizer(gpt2.from_ranks(RANKS, PATTERN, SPECIAL))


@given(text=st.text(st.characters(codec="utf-8")) | st.text(st.sampled_from("thing 's'll\n\t ü🙂1"), max_size=40))
def test_ids_are_tiktokens(text: str) -> None:
    assert OURS.encode(text) == THEIRS.encode(text, disallowed_special=())
    assert OURS.decode(OURS.encode(text)) == text


def test_merges_are_used() -> None:
    assert max(len(token) for token in RANKS) > 3
    assert len(OURS.encode(TEXT)) < len(TEXT.encode()) / 2


def test_end_of_text_is_eos_and_never_from_text() -> None:
    assert OURS.eos_id == SPECIAL["<|endoftext|>"]
    assert OURS.eos_id not in OURS.encode("<|endoftext|>")
    assert Tokenizer.from_json(OURS.to_json()).hash == OURS.hash


def test_without_tiktoken_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UserError, match=r"pip install 'tercet\[gpt2\]'"):
        Tokenizer.train(GPT2(), [])


def test_without_ranks_or_network_it_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpt2, "FILE", "http://127.0.0.1:9/r50k_base.tiktoken")
    monkeypatch.delenv("TERCET_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(UserError, match=r"cannot be downloaded.*set TIKTOKEN_CACHE_DIR"):
        Tokenizer.train(GPT2(), [])
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    with pytest.raises(UserError, match="downloads are switched off"):
        Tokenizer.train(GPT2(), [])

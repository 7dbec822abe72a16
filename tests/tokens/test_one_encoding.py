"""A text has one encoding: joined pieces equal the whole, and the text shown matches the prompt plus its completion."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_encoding_kinds import LINES, MAKERS, foreign

from tercet.data.encode import document_ids
from tercet.data.encode.document_ids import encode_pieces
from tercet.data.sources import documents
from tercet.data.sources.documents import DocumentTexts
from tercet.tokens import Tokenizer

KINDS = pytest.mark.parametrize("kind", MAKERS)
parts = st.lists(st.sampled_from(["the cat", " sat", "\n", " ", "on", "  x", "é", "日本", "1234"]), max_size=60)


def joined_ids(tokenizer: Tokenizer, text: str, *, skip: int = 0) -> list[int]:
    pieces = encode_pieces(DocumentTexts(name="x", texts=(text,)), tokenizer, skip=skip)
    return np.concatenate([[], *(piece.ids for piece in pieces)]).astype(int).tolist()


@KINDS
@given(text=parts.map("".join), size=st.integers(1, 40))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
def test_joined_pieces_equal_the_whole(kind: str, text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp PR 2810, tokenizers#1258: a space before every part that is encoded separately."""
    tokenizer, library = foreign(kind)
    monkeypatch.setattr(documents, "PIECE", size)
    assert joined_ids(tokenizer, text) == library.encode(text, add_special_tokens=False).ids


@KINDS
def test_long_text_in_pieces_has_the_ids_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, library = foreign(kind)
    monkeypatch.setattr(documents, "PIECE", 50)
    text = LINES * 6
    pieces = list(encode_pieces(DocumentTexts(name="x", texts=(text,)), tokenizer))
    assert len(pieces) > 5
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert sum(piece.n_bytes for piece in pieces) == len(text.encode())
    ids = np.concatenate([piece.ids for piece in pieces]).tolist()
    assert ids == library.encode(text, add_special_tokens=False).ids
    for skip in (1, len(pieces) - 1):  # as when an interrupted writer is resumed
        rest = np.concatenate([piece.ids for piece in pieces[skip:]]).tolist()
        assert joined_ids(tokenizer, text, skip=skip) == rest


def test_search_for_a_safe_split_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, _ = foreign("Llama 2")
    monkeypatch.setattr(document_ids, "CUT_TRIES", 0)
    monkeypatch.setattr(documents, "PIECE", 50)
    assert tokenizer.decode(joined_ids(tokenizer, LINES * 3)) == LINES * 3


@KINDS
@given(before=parts.map("".join), after=parts.map("".join))
@settings(max_examples=12, suppress_health_check=[HealthCheck.differing_executors])
def test_stream_shows_what_it_adds_to_the_prompt(kind: str, before: str, after: str) -> None:
    """transformers#22710, transformers#28776: the first space of text written by Llama or Mistral is lost."""
    tokenizer, library = foreign(kind)
    prompt = [*tokenizer.opening, *tokenizer.encode(before)]
    new = tokenizer.encode_batch([after], continued=[True])[0].tolist()
    stream = tokenizer.stream(after=prompt)
    streamed_text = "".join(map(stream.push, new)) + stream.flush()
    assert library.decode(prompt) + streamed_text == library.decode(prompt + new) or not library.decode(prompt)


def test_stream_continues_after_a_long_prompt_of_bytes() -> None:
    tokenizer, library = foreign("Llama 2")
    prompt, new = tokenizer.encode("日本" * 20), tokenizer.encode_batch(["語 the cat"], continued=[True])[0].tolist()
    stream = tokenizer.stream(after=prompt)
    assert "".join(map(stream.push, new)) + stream.flush() == "語 the cat"
    assert library.decode(prompt + new) == "日本" * 20 + "語 the cat"

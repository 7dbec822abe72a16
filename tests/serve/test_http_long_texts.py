"""Texts that exceed the context: the server reads them in chunks as Python and the commands do, or counts the cuts."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from http_served import LABELS, READER, ROOM, TEXTS, client, trained_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tercet.api import Run
from tercet.checkpoint import save_model
from tercet.checkpoint.card import Card
from tercet.cli.main import main
from tercet.limits import MAX_CHUNKS
from tercet.serve.http import long_texts

LONG = "the cat sat on the mat and a dog ran until the mat was worn " * 6
DOCUMENTS = [TEXTS[0], "", LONG, "a dog ran " * 30]
RUN = Run(trained_model=trained_model("bert"))
LENGTHS = [len(READER.encode(text)) for text in DOCUMENTS]
WORDS = st.sampled_from(["the", "cat", "sat", "on", "a", "dog", "ran", "mat", "unbelievable"])


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("bert", "texts", "sets", "numbers", "words", "pairs") as models:
        yield models


def post(test_client: TestClient, path: str, **body: Any) -> Any:
    answer = test_client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def embed(test_client: TestClient, texts: Any, **body: Any) -> tuple[np.ndarray, dict[str, int]]:
    answer = post(test_client, "/v1/embeddings", model="bert", input=texts, **body)
    return np.array([item["embedding"] for item in answer["data"]], np.float32), answer["usage"]


@pytest.mark.parametrize(
    "lengths", [{}, {"chunk": 12}, {"chunk": 9, "overlap": 4}, {"overlap": 0}, {"chunk": 3}], ids=str
)
@pytest.mark.parametrize("options", [{}, {"pooling": "first"}, {"normalize": False}, {"pooling": "max"}], ids=str)
def test_vectors_of_long_texts_equal_those_of_embed(
    test_client: TestClient, lengths: dict[str, Any], options: dict[str, Any]
) -> None:
    vectors, usage = embed(test_client, DOCUMENTS, **lengths, **options)
    np.testing.assert_allclose(vectors, RUN.embed(DOCUMENTS, **lengths, **options), atol=1e-6)
    chunks = RUN.embed_chunks(DOCUMENTS, **lengths).chunks
    tokens = sum(chunk.tokens for chunk in chunks)
    assert usage == {
        "prompt_tokens": tokens, "total_tokens": tokens, "chunks": len(chunks), "truncated_texts": 0,
        "truncated_tokens": 0,
    }  # fmt: skip
    assert len(chunks) > len(DOCUMENTS)


def test_vectors_equal_those_that_the_command_writes(test_client: TestClient, tmp_path: Any) -> None:
    model = trained_model("bert")
    save_model(tmp_path / "bert", model.model, model.tokenizer, Card(name="bert"))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    files = ["--input", str(tmp_path / "texts.jsonl"), "--output", str(tmp_path / "vectors.npz")]
    assert main(["embed", str(tmp_path / "bert"), *files]) == 0
    expected = np.load(tmp_path / "vectors.npz")["vectors"]
    np.testing.assert_allclose(embed(test_client, DOCUMENTS)[0], expected, atol=1e-6)
    packed = post(test_client, "/v1/embeddings", model="bert", input=DOCUMENTS, encoding_format="base64")["data"]
    vectors = np.stack([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in packed])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_ids_of_long_texts_have_the_vectors_of_their_texts(test_client: TestClient) -> None:
    texts = [text for text in DOCUMENTS if text]  # a list of ids is not empty
    vectors, usage = embed(test_client, [READER.encode(text) for text in texts])
    expected, usage_of_texts = embed(test_client, texts)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert usage == usage_of_texts


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(WORDS, max_size=70).map(" ".join), min_size=1, max_size=4),
    chunk=st.integers(6, ROOM),
    overlap=st.one_of(st.none(), st.integers(0, 3)),
)
def test_vectors_of_any_texts_equal_those_of_embed(
    test_client: TestClient, texts: list[str], chunk: int, overlap: int | None
) -> None:
    lengths: dict[str, Any] = {"chunk": chunk, "overlap": overlap}
    vectors, usage = embed(test_client, texts, **lengths)
    np.testing.assert_allclose(vectors, RUN.embed(texts, **lengths), atol=1e-6)
    assert usage["chunks"] == len(RUN.embed_chunks(texts, **lengths).chunks)


@pytest.mark.parametrize(
    ("body", "length"),
    [
        ({"truncate": True}, ROOM),
        ({"truncate_prompt_tokens": -1}, ROOM),
        ({"truncate_prompt_tokens": 12}, 12),
        ({"truncate_prompt_tokens": 12, "truncate": True}, 12),
        ({"truncate_prompt_tokens": ROOM}, ROOM),
    ],
)
def test_texts_that_are_cut_are_counted(test_client: TestClient, body: dict[str, Any], length: int) -> None:
    vectors, usage = embed(test_client, DOCUMENTS, **body)
    kept = [ids[: length - 2] for ids in map(READER.encode, DOCUMENTS)]
    expected = embed(test_client, [READER.decode(ids) for ids in kept])[0]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    n_kept = sum(map(len, kept))
    assert usage == {
        "prompt_tokens": n_kept, "total_tokens": n_kept, "chunks": len(DOCUMENTS),
        "truncated_texts": sum(count > length - 2 for count in LENGTHS), "truncated_tokens": sum(LENGTHS) - n_kept,
    }  # fmt: skip
    if length == ROOM:
        np.testing.assert_allclose(vectors, RUN.embed(DOCUMENTS, truncate=True), atol=1e-6)


@pytest.mark.parametrize("lengths", [{}, {"chunk": 14, "overlap": 5}], ids=str)
def test_predictions_for_long_texts_equal_those_of_classify(test_client: TestClient, lengths: dict[str, Any]) -> None:
    def classify(model: str) -> Any:
        return post(test_client, "/classify", model=model, text=DOCUMENTS, **lengths)

    answer = classify("texts")
    expected = Run(trained_model=trained_model("texts")).classify(DOCUMENTS, **lengths)
    for found, result in zip(answer["answers"], expected, strict=True):
        assert found["scores"] == pytest.approx(result.scores, abs=1e-6)
        assert set(found["scores"]) == set(LABELS)
        assert (found["label"], found["truncated"], found["chunks"]) == (result.label, False, result.chunks)
    assert answer["usage"]["chunks"] == sum(result.chunks for result in expected) > len(DOCUMENTS)
    assert answer["usage"]["truncated_texts"] == 0
    sets = Run(trained_model=trained_model("sets")).classify_multi_label(DOCUMENTS, **lengths)
    assert [found["labels"] for found in classify("sets")["answers"]] == [
        pytest.approx({label: result.scores[label] for label in result.labels}, abs=1e-6) for result in sets
    ]
    numbers = Run(trained_model=trained_model("numbers")).regress(DOCUMENTS, **lengths)
    assert [(found["value"], found["chunks"]) for found in classify("numbers")["answers"]] == [
        (pytest.approx(result.value, rel=1e-6), result.chunks) for result in numbers
    ]


def test_words_and_pairs_are_cut_and_counted(test_client: TestClient) -> None:
    answer = post(test_client, "/classify", model="words", text=DOCUMENTS)
    assert [text["truncated"] for text in answer["answers"]] == [count > ROOM - 2 for count in LENGTHS]
    kept = sum(min(count, ROOM - 2) for count in LENGTHS)
    assert answer["usage"] == {
        "prompt_tokens": kept, "total_tokens": kept, "chunks": 4, "truncated_texts": 2,
        "truncated_tokens": sum(LENGTHS) - kept,
    }  # fmt: skip
    answer = post(test_client, "/classify", model="texts", text=DOCUMENTS, text_pair=["a dog"] * 4)
    kept = sum(min(count + 2, ROOM - 3) for count in LENGTHS)
    assert [text["truncated"] for text in answer["answers"]] == [count + 2 > ROOM - 3 for count in LENGTHS]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["truncated_texts"]) == (kept, 2)
    assert answer["usage"]["truncated_tokens"] == sum(LENGTHS) + 8 - kept
    for body in ({"model": "words"}, {"model": "texts", "text_pair": "b"}):
        assert post(test_client, "/classify", text="a", truncate=True, truncate_prompt_tokens=-1, **body)["answers"]
        for field in ("chunk", "overlap", "truncate_prompt_tokens"):
            error = test_client.post("/classify", json={"text": "a", field: 9, **body}).json()["error"]
            assert error["param"] == field
            assert "which are cut to the context; omit it" in error["message"]


def test_too_many_chunks_are_rejected_before_they_are_made(
    test_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "the " * (MAX_CHUNKS + 1)
    body = {"model": "bert", "input": ["a", words], "chunk": 3}
    monkeypatch.setattr(long_texts, "chunk_rows", None)
    for limit in ("MAX_CHUNKS", "MAX_CHUNK_TOKENS"):
        answer = test_client.post("/v1/embeddings", json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert f"the texts have up to {MAX_CHUNKS + 1:,} chunks of 3 tokens, more than" in error["message"]
        assert error["message"].endswith("send fewer or shorter texts at once, or truncate: true")
        monkeypatch.setattr(long_texts, limit, 1 << 40)
        monkeypatch.setattr(long_texts, "MAX_CHUNK_TOKENS", 3 * MAX_CHUNKS + 2)
    cut = {"model": "bert", "input": words, "truncate": True}
    assert test_client.post("/v1/embeddings", json=cut).json()["usage"]["truncated_tokens"] == MAX_CHUNKS + 3 - ROOM

"""/v1/rerank, and pairs of texts in /classify: answers equal those of the Python functions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from http_served import client, trained_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tercet.api import Run
from tercet.encoding import classify

QUERY = "the dog"
DOCUMENTS = ["the cat sat", "", "a dog ran", "a dog ran " * 20, "the cat sat on the mat"]
RERANKER = Run(trained_model=trained_model("pairs"))
WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "dog", "ran", "mat"]), max_size=8).map(" ".join)


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("pairs", "texts", "words", "numbers", "bert") as test_client:
        yield test_client


def rerank(test_client: TestClient, **body: Any) -> Any:
    answer = test_client.post("/v1/rerank", json={"model": "pairs", "query": QUERY, "documents": DOCUMENTS, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_ranking_equals_that_of_rerank(test_client: TestClient) -> None:
    expected = RERANKER.rerank(QUERY, DOCUMENTS)
    response = rerank(test_client)
    assert [result["index"] for result in response["results"]] == [document.index for document in expected]
    scores = [result["relevance_score"] for result in response["results"]]
    assert scores == pytest.approx([document.score for document in expected], abs=1e-5)
    assert len(set(scores)) == len(DOCUMENTS)
    assert [result["truncated"] for result in response["results"]] == [document.truncated for document in expected]
    assert [result["document"]["text"] for result in response["results"]] == [
        DOCUMENTS[document.index] for document in expected
    ]
    encode, room = RERANKER.tokenizer.encode, RERANKER.model.max_len - 3
    lengths = [len(encode(QUERY)) + len(encode(document)) for document in DOCUMENTS]
    tokens, cut = sum(min(length, room) for length in lengths), sum(max(0, length - room) for length in lengths)
    assert cut > 0
    assert response["usage"] == {
        "prompt_tokens": tokens, "total_tokens": tokens, "chunks": 5, "truncated_texts": 1, "truncated_tokens": cut,
    }  # fmt: skip


def test_top_n_and_texts_are_optional(test_client: TestClient) -> None:
    order = [document.index for document in RERANKER.rerank(QUERY, DOCUMENTS)]
    some = rerank(test_client, top_n=2, return_documents=False)["results"]
    assert [(result["index"], result["document"]) for result in some] == [(index, None) for index in order[:2]]
    assert [result["index"] for result in rerank(test_client, top_n=100)["results"]] == order


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_any_documents_are_sorted_by_their_scores(test_client: TestClient, query: str, documents: list[str]) -> None:
    results = rerank(test_client, query=query, documents=documents)["results"]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in results) == list(range(len(documents)))
    for result in results:
        [alone] = RERANKER.rerank(query, [documents[result["index"]]])
        assert result["relevance_score"] == pytest.approx(alone.score, abs=1e-5)


def test_lengths_of_chunks_are_rejected_for_pairs(test_client: TestClient) -> None:
    answer = test_client.post("/v1/rerank", json={"model": "pairs", "query": "a", "documents": ["b"], "overlap": 1})
    assert answer.status_code == 400
    assert "overlap does not apply to pairs of a query and a document, which are cut" in answer.text


def test_models_with_one_score_support_the_route(test_client: TestClient) -> None:
    routes = {model["id"]: model["routes"] for model in test_client.get("/v1/models").json()["data"]}
    assert {name for name, supported in routes.items() if "/v1/rerank" in supported} == {"pairs", "numbers"}


@pytest.mark.parametrize("lengths", [{}, {"chunk": 9}, {"truncate": True}], ids=str)
def test_vector_model_ranks_by_similarity(lengths: dict[str, Any]) -> None:
    run = Run(trained_model=trained_model("vectors"))
    expected = run.embed(DOCUMENTS, **lengths) @ run.embed(QUERY)
    with client("vectors", "pairs") as test_client:
        body = {"query": QUERY, "documents": DOCUMENTS, **lengths}
        response = test_client.post("/v1/rerank", json={"model": "vectors", **body}).json()
        assert test_client.post("/v1/rerank", json={**body, "chunk": None}).json()["model"] == "pairs"
    results = response["results"]
    assert [result["index"] for result in results] == np.argsort(-expected, kind="stable").tolist()
    scores = [result["relevance_score"] for result in results]
    assert scores == pytest.approx(np.sort(expected)[::-1].tolist(), abs=1e-6)
    is_cut = bool(lengths.get("truncate"))
    assert [result["truncated"] for result in results] == [is_cut and result["index"] == 3 for result in results]
    assert (response["usage"]["chunks"] == len(DOCUMENTS) + 1) == is_cut


def test_labels_of_pairs_equal_those_of_classify(test_client: TestClient) -> None:
    model = trained_model("texts").require("classify")
    pairs = [(QUERY, document) for document in DOCUMENTS]
    expected = classify(model.model, model.tokenizer, pairs)
    body = {"model": "texts", "text": [QUERY] * len(DOCUMENTS), "text_pair": DOCUMENTS}
    response = test_client.post("/classify", json=body).json()["answers"]
    alone = test_client.post("/classify", json={"model": "texts", "text": QUERY}).json()["answers"][0]
    for answer, expected_answer in zip(response, expected, strict=True):
        assert answer["scores"] == pytest.approx(expected_answer.scores, abs=1e-5)
        assert answer["truncated"] == expected_answer.truncated
        assert answer["scores"] != pytest.approx(alone["scores"], abs=1e-3)


def test_words_of_pairs_are_rejected(test_client: TestClient) -> None:
    answer = test_client.post("/classify", json={"model": "words", "text": "a", "text_pair": "b"})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "text_pair requires a model with labels of texts; omit it", "type": "invalid_request_error",
        "param": "text_pair", "code": None,
    }  # fmt: skip

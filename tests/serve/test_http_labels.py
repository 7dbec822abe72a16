"""/classify for label sets and numbers: answers equal those of `tercet classify` and match the OpenAPI document."""

from collections.abc import Iterator
from typing import Any

import pytest
from http_served import LABELS, client, fill_with_nan, trained_model
from starlette.testclient import TestClient

from tercet.api import Run

TEXTS = ["the cat sat", "", "a dog ran " * 20]


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("texts", "sets", "numbers", models={"broken": fill_with_nan(trained_model("numbers"))}) as test_client:
        yield test_client


def answers(test_client: TestClient, model: str, **body: Any) -> Any:
    answer = test_client.post("/classify", json={"model": model, "text": TEXTS, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["answers"]


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 0.9, 1.0])
def test_label_sets_equal_those_of_classify(test_client: TestClient, threshold: float | None) -> None:
    options = {} if threshold is None else {"threshold": threshold}
    expected = Run(trained_model=trained_model("sets")).classify_multi_label(TEXTS, truncate=True, **options)
    response, limit = answers(test_client, "sets", truncate=True, **options), 0.5 if threshold is None else threshold
    for answer, expected_answer in zip(response, expected, strict=True):
        assert list(answer["labels"]) == [label for label, p in expected_answer.scores.items() if p > limit]
        assert answer["scores"] == pytest.approx(expected_answer.scores, abs=1e-5)
        assert set(answer["scores"]) == set(LABELS)
        assert (answer["text"] in TEXTS, answer["truncated"]) == (True, expected_answer.truncated)
    assert response[2]["truncated"]


def test_numbers_equal_those_of_classify(test_client: TestClient) -> None:
    expected = Run(trained_model=trained_model("numbers")).regress(TEXTS, truncate=True)
    response = answers(test_client, "numbers", truncate=True)
    assert [answer["value"] for answer in response] == pytest.approx(
        [expected_answer.value for expected_answer in expected], rel=1e-6
    )
    assert all(set(answer) == {"text", "value", "truncated", "chunks"} for answer in response)
    assert len({answer["value"] for answer in response}) == 3


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        ("texts", {"threshold": 0.3}, "threshold requires a model with several labels per text"),
        ("numbers", {"threshold": 0.3}, "threshold requires a model with several labels per text"),
        ("sets", {"threshold": 1.3}, "threshold"),
        ("broken", {}, "training diverged"),
    ],
)
def test_unsuitable_thresholds_and_models_are_rejected(
    test_client: TestClient, model: str, body: dict[str, Any], words: str
) -> None:
    answer = test_client.post("/classify", json={"model": model, "text": "a dog", **body})
    assert answer.status_code in (400, 422, 500)
    assert words in answer.json()["error"]["message"]


def test_the_openapi_document_describes_the_answers(test_client: TestClient) -> None:
    schemas = test_client.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["MultiLabeledText"]["properties"]) == {"labels", "scores", "text", "truncated", "chunks"}
    assert set(schemas["RegressedText"]["properties"]) == {"value", "text", "truncated", "chunks"}
    assert "threshold" in schemas["ClassifyRequest"]["properties"]

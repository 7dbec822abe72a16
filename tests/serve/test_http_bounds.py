"""No request delays others for long: answers are bounded, and large ones are encoded outside the event loop."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from http_served import client
from starlette.testclient import TestClient

from tercet.limits import MAX_FILLED_CHARACTERS
from tercet.serve.http.item_list import LARGE, item_list_response
from tercet.serve.http.long_texts import make_usage
from tercet.serve.http.requests import MAX_INPUT_TEXTS
from tercet.serve.http.responses import ClassifyResponse, RegressedText


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("bert", "translator") as models:
        yield models


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "[MASK] " * 310, "top": 1000}, "top"),
        ({"text": ["a [MASK]" + " the" * 5000] * 49, "top": 20}, "top"),
        ({"text": "[MASK] <mask> " * 155, "top": 1, "only": ["cat", "dog"] * 500}, "only"),  # each word is scored
    ],
)
def test_candidates_of_a_request_are_bounded(test_client: TestClient, body: dict[str, object], param: str) -> None:
    answer = test_client.post("/fill-mask", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert f"the limit of {MAX_FILLED_CHARACTERS / 1e6:.0f} million" in error["message"]


def test_a_usual_request_is_within_the_bound(test_client: TestClient) -> None:
    assert test_client.post("/fill-mask", json={"text": ["the [MASK] sat"] * 8, "top": 1000}).status_code == 200


def test_lines_of_a_request_are_bounded(test_client: TestClient) -> None:
    answer = test_client.post("/translate", json={"text": "a\n" * (MAX_INPUT_TEXTS + 1) + "a"})
    assert answer.status_code == 400
    assert "lines; send at most 2,048 at once" in answer.json()["error"]["message"]


@pytest.mark.parametrize("size", [LARGE, LARGE + 1])
def test_large_answers_are_encoded_in_another_thread(size: int) -> None:
    threads = set[threading.Thread]()

    def describe(number: int) -> RegressedText:
        threads.add(threading.current_thread())
        return RegressedText(text=f"\u00e9{number}", value=number, truncated=False, chunks=1)

    usage = make_usage([3, 4], [0, 0])
    whole = ClassifyResponse(model="m", usage=usage, answers=[describe(1), describe(2)])
    threads.clear()
    empty = ClassifyResponse(model="m", usage=usage, answers=[])
    response = asyncio.run(item_list_response(empty, "answers", [1, 2], describe, characters=size))
    assert json.loads(bytes(response.body)) == whole.model_dump()
    assert response.media_type == "application/json"
    assert (threads == {threading.current_thread()}) == (size <= LARGE)

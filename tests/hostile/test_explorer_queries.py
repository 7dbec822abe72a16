"""Explorer queries that its page would never send are answered, or rejected in one line."""

import copy
import json
import math
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from explored import BERTS, TRANSLATORS, trained_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report import count_inputs
from starlette.testclient import TestClient

from tercet.explorer import Answers, Query
from tercet.explorer.queries import QUERIES
from tercet.explorer.server import application
from tercet.limits import MAX_ERROR_CHARACTERS

SCALE = int(os.environ.get("TERCET_HOSTILE", "1"))
JSON = {"Content-Type": "application/json"}
KINDS = ("pre, learned", next(iter(BERTS)), next(iter(TRANSLATORS)))
SAMPLING = {"temperature": 0.5, "top_k": 2, "top_p": 0.5, "min_p": 0.1, "seed": 1}
EDIT = {"name": "layers.0.self_attention", "heads": [0], "positions": [0]}
VALID_QUERY: dict[str, Any] = {
    "ask": {"text": "abc", "target": "ab", "ids": [1, 2], "target_ids": [1], "original_ids": [1, 2], "edits": [EDIT]},
    "at": 0, "id": 1, "name": "layers.0", "parameters": False, "size": 2, "sampling": SAMPLING,
}  # fmt: skip
ODD = [
    None, True, "", "\0", "\ud800", "é\U0001f600", "a" * 3000, -1, 0, 1, 5, 2**31, 2**63, 2**64, 10**9, 10**12, 10**400,
    0.5, 5e-324, 1e39, 1.7e308, math.nan, math.inf, -math.inf, [], {}, [[]], [-1], [2**63], [10**400], [0] * 3000,
    [None], {"a": 1}, [{}], [EDIT] * 50, {"k" * 5000: 1}, [True], [0.5], "layers.0", "",
]  # fmt: skip

NO_QUERIES = [
    b"", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b"NaN", b"{}", b'{"ask": {}}', b"\xff", b'{"ask":1}{}',
]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def test_client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    answers = Answers(trained_model(request.param), start=Query(text="abc"))
    with TestClient(application(answers), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield client


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in a JSON value."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*at, key))


def check(answer: Any) -> None:
    count_inputs(taken=answer.status_code == 200, refused=answer.status_code != 200)
    if answer.status_code == 200:
        return
    assert 400 <= answer.status_code < 500, answer.text
    assert set(error := answer.json()) == {"error"}
    assert "\n" not in error["error"]
    assert len(error["error"]) <= MAX_ERROR_CHARACTERS


@pytest.mark.slow
@settings(max_examples=50 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([*QUERIES, "export"]), st.randoms(use_true_random=False))
def test_odd_values(test_client: TestClient, name: str, rng: random.Random) -> None:
    fields = {"ask"} if name == "export" else set(QUERIES[name].__dataclass_fields__)
    body = json.loads(json.dumps({key: value for key, value in VALID_QUERY.items() if key in fields}))
    for key in ("target", "ids", "target_ids", "original_ids", "edits"):
        if "ask" in body and rng.random() < 0.7:
            del body["ask"][key]
    for _ in range(rng.choice((1, 1, 2))):
        ways = list(paths(body))
        if not ways:
            break
        *way, last = rng.choice(ways)
        place = body
        for key in way:
            place = place[key]
        place[last] = copy.deepcopy(rng.choice(ODD))
    check(test_client.post(f"/api/{name}", content=json.dumps(body), headers=JSON))


def test_an_unpaired_surrogate_is_rejected(test_client: TestClient) -> None:
    """With ids the text is never encoded, and the answer would repeat it."""
    body = {"ask": {"text": "\ud800", "ids": [1, 2]}}
    answer = test_client.post("/api/look", content=json.dumps(body), headers=JSON)
    assert (answer.status_code, answer.json()) == (400, {"error": "the query is not valid JSON"})


@pytest.mark.slow
def test_invalid_queries_are_rejected(test_client: TestClient) -> None:
    for name in [*QUERIES, "export", "\ud800", "x" * 5000]:
        quoted_name = "".join(f"%{byte:02x}" for byte in name.encode("utf-8", "surrogatepass"))
        for body in NO_QUERIES:
            check(test_client.post(f"/api/{quoted_name}", content=body, headers=JSON))

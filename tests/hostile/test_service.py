"""Requests that no client would send are answered or rejected with OpenAI's errors, never with a server error."""

import json
import math
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from http_served import LIMITS, client, index_texts
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from report import count_inputs
from starlette.testclient import TestClient

from tercet.limits import MAX_BODY_BYTES, MAX_ERROR_CHARACTERS
from tercet.serve.http import bounded_request
from tercet.serve.http.app import REQUESTS

SCALE = int(os.environ.get("TERCET_HOSTILE", "1"))
JSON = "application/json"
MODELS = ("gpt", "chat", "bert", "texts", "words", "translator")
VALID_BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "gpt", "prompt": "the cat", "max_tokens": 3},
    "/v1/chat/completions": {"model": "chat", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
    "/v1/embeddings": {"model": "bert", "input": "the cat"},
    "/v1/search": {"model": "bert", "query": "the cat"},
    "/translate": {"model": "translator", "text": "a dog ran"},
    "/fill-mask": {"model": "bert", "text": "the [MASK] sat"},
    "/classify": {"model": "texts", "text": "the cat"},
}
WORDS = [
    "",
    "a",
    "the cat",
    "\0",
    "\ud800",
    "\udfff\ud800",
    "é中\U0001f600\u202e",
    "[MASK]",
    "<eos>",
    "a" * 5000,
    "null",
]
NUMBERS = [
    0, 1, -1, 3, 2**31, 2**32, 2**62, 2**63, 2**64, 10**9, 10**12, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.0, 1.5,
    1e-300, 5e-324, 10.0, 1e3, 1e38, 1e39, 1e300, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf,
]  # fmt: skip


EXTREMES = [-1, 10**12, 10**400, 1e39, math.nan]


def nest(depth: int) -> Any:
    value: Any = []
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


ODD = [
    None, True, False, *WORDS, *NUMBERS, [], {}, [[]], [None], [[0], [1]], ["a", 1], nest(90), nest(300),
    ["a"] * 3000, list(range(3000)), [0] * 40, [10**9], [-1], {"a": "b"}, {str(n): 100 for n in range(3000)}, [{}],
    [{"type": "text", "text": "a"}], [{"role": "user", "content": [{"type": "image_url"}]}], [{"role": "x" * 999}],
    [{"role": "user", "content": "a", "k" * 99999: 1}],
]  # fmt: skip


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client(*MODELS, indexes={"bert": index_texts("bert")}) as service:
        yield service


def check(answer: Any) -> int:
    """Check that this is an answer, or an error in one line in OpenAI's format."""
    body = answer.content
    count_inputs(taken=answer.status_code == 200, refused=answer.status_code != 200)
    if answer.status_code == 200:
        if answer.headers["content-type"].startswith(JSON):
            json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        return 200
    assert 400 <= answer.status_code < 500, (answer.status_code, body)
    assert set(response := json.loads(body)) == {"error"}
    assert set(error := response["error"]) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) <= MAX_ERROR_CHARACTERS
    assert error["type"] in ("invalid_request_error", "authentication_error", "permission_error", "timeout_error")
    return answer.status_code


def fields(path: str) -> list[str]:
    return sorted(REQUESTS[path].model_fields)  # type: ignore[index]


@pytest.mark.slow
@settings(max_examples=50 if SCALE == 1 else 100 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(VALID_BODIES)), st.randoms(use_true_random=False))
def test_odd_values_of_known_fields(test_client: TestClient, path: str, rng: random.Random) -> None:
    body = dict(VALID_BODIES[path])
    for field in rng.sample(fields(path), rng.choice((1, 1, 2))):
        body[field] = rng.choice((*ODD, *NUMBERS, *(rng.random() * 10.0**n for n in (-3, 0, 3))))
    check(test_client.post(path, content=json.dumps(body), headers={"Content-Type": JSON}))


@pytest.mark.slow
@pytest.mark.parametrize("path", VALID_BODIES)
def test_each_number_in_each_field(test_client: TestClient, path: str) -> None:
    """Numbers are also tested together with a second field that enables the first one."""
    enabling_fields: list[dict[str, Any]] = (
        [{"sample": True}, {"length_penalty": "gnmt"}] if path == "/translate" else []
    )
    for field in fields(path):
        for number in NUMBERS if SCALE > 1 else EXTREMES:
            for extra in ({}, *enabling_fields):
                check(
                    test_client.post(
                        path,
                        content=json.dumps({**VALID_BODIES[path], **extra, field: number}),
                        headers={"Content-Type": JSON},
                    )
                )


@pytest.mark.parametrize("alpha", [16.0, 16.5, 99.0, 1e3, 1e300, 1.7e308])
def test_a_length_penalty_is_finite_or_rejected(test_client: TestClient, alpha: float) -> None:
    """A large power raises OverflowError before it becomes infinite."""
    for norm in ("average", "gnmt"):
        body = {"model": "translator", "text": "a dog " * 12, "alpha": alpha, "length_penalty": norm}
        assert check(test_client.post("/translate", json=body)) == (200 if alpha <= 16 else 400)


@pytest.mark.slow
@settings(max_examples=30 if SCALE == 1 else 60 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(VALID_BODIES)), st.randoms(use_true_random=False))
def test_damaged_bodies(test_client: TestClient, path: str, rng: random.Random) -> None:
    body = bytearray(json.dumps(VALID_BODIES[path]).encode())
    for _ in range(rng.choice((1, 2, 5))):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(4):
            case 0:
                del body[at : at + rng.randrange(1, 9)]
            case 1:
                body[at:at] = rng.choice(
                    (b"\0", b"\xff", b"\\ud800", b'"', b"{", b"]", b"1e999", b"NaN", b"/*", b"\r\n")
                )
            case 2:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case _:
                del body[at:]
    check(test_client.post(path, content=bytes(body), headers={"Content-Type": JSON}))


DEEP = 100_000
BODIES = {
    "nothing": b"",
    "deep lists": b"[" * DEEP,
    "deep lists, closed": b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a long number": b'{"max_tokens": ' + b"9" * DEEP + b"}",
    "a long fraction": b'{"temperature": 0.' + b"1" * DEEP + b"}",
    "a large exponent": b'{"temperature": 1e999999999}',
    "twice the same key": b'{"prompt": "a", "prompt": "b", "input": "a", "text": "[MASK]"}',
    "a long key": b'{"' + b"k" * DEEP + b'": 1}',
    "many keys": json.dumps({str(n): n for n in range(30_000)}).encode(),
    "many stops": json.dumps({"prompt": "a", "stop": ["a"] * DEEP}).encode(),
    "absurd biases": json.dumps({"prompt": "a", "logit_bias": {"\ud800": 1e308, "-1": 5}}).encode(),
    "many biases": json.dumps({"prompt": "a", "logit_bias": {str(n): 1 for n in range(50_000)}}).encode(),
    "many samples": b'{"model": "gpt", "prompt": "a", "n": 1000000000, "max_tokens": 1000000000000}',
    "a mark before": b"\xef\xbb\xbf" + b'{"prompt": "a"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "latin-1": '{"prompt": "é"}'.encode("latin-1"),
    "half a pair": b'{"prompt": "\\ud800", "text": "\\ud800", "input": "\\udc00"}',
    "an encoded half": b'{"prompt": "\xed\xa0\x80"}',
    "a raw NUL": b'{"prompt": "\x00"}',
    "a form": b"prompt=a&max_tokens=3",
    "a number": b"7",
    "two objects": b"{}{}",
    "as long as may be": b'{"prompt": "' + b"a" * (MAX_BODY_BYTES - 14) + b'"}',
    "too long": b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}',
}


@pytest.mark.parametrize("name", BODIES)
def test_invalid_bodies_are_rejected(test_client: TestClient, name: str) -> None:
    for path in VALID_BODIES:
        check(test_client.post(path, content=BODIES[name], headers={"Content-Type": JSON}))


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "application/jsonp",
        "application/json; charset=utf-16",
        "multipart/form-data",
        "\xff",
        "a" * 9999,
    ],
)
@pytest.mark.parametrize("encoding", [None, "gzip", "br, gzip", "x" * 999])
def test_content_types_and_encodings(test_client: TestClient, kind: str | None, encoding: str | None) -> None:
    optional_headers = {b"Content-Type": kind, b"Content-Encoding": encoding}
    headers = {name: value.encode("latin-1") for name, value in optional_headers.items() if value is not None}
    for path, body in VALID_BODIES.items():
        status = check(test_client.post(path, content=json.dumps(body), headers=headers))
        assert status == 415 or kind == "application/json; charset=utf-16"


@settings(max_examples=30 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "BREW"]), st.text(max_size=30), st.booleans())
@example("GET", "\ud800", True)
@example("GET", "..%2f..%00%ff", False)
@example("POST", "x" * 9999, True)
def test_invalid_paths_are_rejected(test_client: TestClient, method: str, text: str, under_models: bool) -> None:
    path = text.encode("utf-8", "surrogatepass")
    quoted_path = "".join(f"%{byte:02x}" for byte in path)
    answer = test_client.request(method, f"/v1/models/{quoted_path}" if under_models else f"/{quoted_path}")
    if method != "HEAD" and (text or under_models):
        check(answer)


def test_memory_for_bodies_is_bounded(test_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for all requests together, and rejected bodies are released."""
    monkeypatch.setattr(bounded_request, "MAX_BODIES_BYTES", 200)
    long = {**VALID_BODIES["/classify"], "text": "a " * 100}
    for _ in range(3):
        answer = test_client.post("/classify", json=long)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert test_client.post("/classify", json=VALID_BODIES["/classify"]).status_code == 200


def test_no_state_is_left_after_attacks(test_client: TestClient) -> None:
    """After all attacks every slot is free, and valid requests are answered."""
    for path, body in VALID_BODIES.items():
        assert check(test_client.post(path, json=body)) == 200
    service = test_client.app.state.service  # type: ignore[attr-defined]
    assert service.body_bytes == 0
    for model in service.registry.models.values():
        for task, worker in model.workers.items():
            assert (worker.running, worker.waiting) == (0, 0), (model.name, task)
    assert LIMITS.slots == 3

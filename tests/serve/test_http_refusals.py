"""Rejected requests get an error in OpenAI's format with a suitable status and remedy.

No answer has status 422, and none has status 500 unless the server is at fault.
"""

import json
import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from http_served import LIMITS, ROOM, WRITER, client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tercet.serve.http.context import SHORT_BODY
from tercet.serve.http.guard import AccessRules
from tercet.tokens import Tokenizer
from tercet.web.access import SECURITY_HEADERS, AllowedNames

JSON = {"Content-Type": "application/json"}
COMPLETE, CHAT, EMBED = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
RERANK, SEARCH = "/v1/rerank", "/v1/search"
LONG = "mat " * 100


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("gpt", "chat", "bert", "texts", "translator", rules=AccessRules(max_body=20_000)) as models:
        yield models


def check_rejection(answer: Any, status: int) -> dict[str, Any]:
    """Return the error of an answer after checking its format."""
    assert answer.status_code == status, answer.text
    response = answer.json()
    assert set(response) == {"error"}
    assert set(response["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in response["error"]["message"]
    return response["error"]


@pytest.mark.parametrize(
    ("path", "body", "param", "expected"),
    [
        (COMPLETE, {"promt": "a"}, "promt", "unknown field 'promt'; did you mean 'prompt'?"),
        (COMPLETE, {"model": "gpt"}, "prompt", "missing field: prompt"),
        (COMPLETE, {"prompt": 7}, "prompt", "prompt must be a text, a list of 1 to 2,048 texts, a list of token ids"),
        (COMPLETE, {"prompt": None}, "prompt", "prompt must be a text"),
        (COMPLETE, {"prompt": []}, "prompt", "prompt must be a text"),
        (COMPLETE, {"prompt": ["a", 1]}, "prompt", "prompt must be a text"),
        (COMPLETE, {"prompt": [True]}, "prompt", "prompt must be a text"),
        (COMPLETE, {"prompt": [[]]}, "prompt", "prompt must be a text"),
        (COMPLETE, {"prompt": [-1]}, "prompt", "prompt must be a text"),
        (COMPLETE, {"prompt": [9999]}, "prompt", f"not in the vocabulary; ids are 0 to {WRITER.vocab_size - 1}"),
        (COMPLETE, {"prompt": "a" * 200}, "prompt", f"context of gpt ({ROOM}); shorten it by "),
        (COMPLETE, {"prompt": ["a", "b" * 200]}, "prompt", "prompt 2 has 200 tokens"),
        (COMPLETE, {"prompt": "a", "max_tokens": 51}, "max_tokens", "request at most 50"),
        (COMPLETE, {"prompt": "a", "max_tokens": -1}, "max_tokens", "max_tokens should be greater than or equal to 0"),
        (COMPLETE, {"prompt": "a", "max_tokens": 1.5}, "max_tokens", "max_tokens should be a valid integer"),
        (COMPLETE, {"prompt": "a", "temperature": "hot"}, "temperature", "temperature should be a valid number"),
        (COMPLETE, {"prompt": "a", "temperature": -1}, "temperature", "greater than or equal to 0"),
        (COMPLETE, {"prompt": "a", "top_p": 0}, "top_p", "top_p should be greater than 0"),
        (COMPLETE, {"prompt": "a", "repetition_penalty": 1e-320}, "repetition_penalty", "equal to 0.01"),
        (COMPLETE, {"prompt": "a", "n": 0}, "n", "n should be greater than or equal to 1"),
        (COMPLETE, {"prompt": ["a"] * 65, "n": 2}, "prompt", "65 prompts with 2 samples each exceed"),
        (COMPLETE, {"prompt": "a", "best_of": 3}, "best_of", "best_of must be 1 or omitted"),
        (COMPLETE, {"prompt": "a", "suffix": "b"}, "suffix", "suffix must be omitted"),
        (COMPLETE, {"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty", "must be 0 or omitted"),
        (COMPLETE, {"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias", "must be empty or omitted"),
        (COMPLETE, {"prompt": "a", "stop": ["a"] * 33}, "stop", "stop must be a text or a list of up to 32 texts"),
        (COMPLETE, {"prompt": "a", "stop": ""}, "stop", "stop must be a text or a list of up to 32 texts"),
        (COMPLETE, {"prompt": "a", "logprobs": 21}, "logprobs", "less than or equal to 20"),
        (COMPLETE, {"prompt": "a", "seed": -1}, "seed", "greater than or equal to 0"),
        (COMPLETE, {"prompt": "a", "model": None}, "model", "several models support /v1/completions: gpt, chat"),
        (COMPLETE, {"prompt": "a", "model": "bert"}, "model", "is a masked language model, which does not support"),
        (CHAT, {"messages": [], "model": "chat"}, "messages", "messages should have at least 1 item"),
        (CHAT, {"messages": [{"role": "user"}], "model": "chat"}, "messages", "missing field: messages.0.content"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "model": "gpt"}, "model", "gpt has no chat template"),
        (CHAT, {"messages": [{"role": "tool", "content": "a"}], "model": "chat"}, None, "no role tool"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "model": "chat"}, "messages", "the conversation has"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": []}, "tools", "unknown field 'tools'"),
        (EMBED, {"model": "bert"}, "input", "missing field: input"),
        (EMBED, {"input": LONG, "model": "bert", "chunk": 38}, "chunk", "a chunk has 3 to 37 tokens, the context"),
        (EMBED, {"input": LONG, "model": "bert", "overlap": 35}, "overlap", "can share 0 to 34, because two are bos"),
        (EMBED, {"input": "a", "model": "bert", "truncate": True, "overlap": 1}, "overlap", "exclude each other"),
        (EMBED, {"input": "a", "model": "bert", "truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "-1, or 3 to"),
        (EMBED, {"input": "a", "model": "bert", "truncate_prompt_tokens": ROOM + 1}, "truncate_prompt_tokens", "to 37"),
        (EMBED, {"input": "a", "dimensions": 3, "model": "bert"}, "dimensions", "have 24 dimensions"),
        (EMBED, {"input": "a", "encoding_format": "int8", "model": "bert"}, "encoding_format", "'float' or 'base64'"),
        ("/translate", {"text": "a", "temperature": 1.0}, "temperature", "add sample: true"),
        ("/translate", {"text": "a", "sample": True, "beam": 2}, "beam", "cannot be combined with beam"),
        ("/translate", {"text": "a", "beam": 2, "n_best": 3}, "beam", "try beam=3"),
        ("/translate", {"text": "a", "prefix": LONG}, None, "the maximum is max_len"),
        ("/translate", {"text": []}, "text", "text must be a text or a list of 1 to 2,048 texts"),
        ("/fill-mask", {"text": "no gap"}, None, "no mask in 'no gap'; write [MASK] where a word is missing"),
        ("/fill-mask", {"text": LONG + "[MASK]"}, None, f"is beyond the model's context of {ROOM} tokens"),
        ("/fill-mask", {"text": "[MASK]", "only": ["\u4e2d"]}, None, "the vocabulary has no"),
        ("/fill-mask", {"text": "[MASK]", "only": []}, "only", "only should have at least 1 item"),
        ("/classify", {"text": "a", "model": "gpt"}, "model", "gpt is a language model, which does not support"),
        ("/classify", {"text": "a", "model": "texts", "text_pair": ["b", "c"]}, "text_pair", "send one for each"),
        ("/classify", {"text": "a", "model": "texts", "text_pair": []}, "text_pair", "text_pair must be a text or a"),
        ("/classify", {"text": "a", "model": "texts", "text_pair": "b", "chunk": 9}, "chunk", "to pairs of texts"),
        (SEARCH, {"query": "a"}, "model", "has no documents to search; start it with `tercet serve RUN --input"),
        (SEARCH, {"query": "a", "model": "bert"}, "model", "bert has no documents to search; start it with `tercet"),
        (SEARCH, {"query": "a", "model": "gpt"}, "model", "is a language model, which does not support /v1/search"),
        (SEARCH, {"query": "a", "top": 0}, "top", "greater than or equal to 1"),
        (SEARCH, {"query": []}, "query", "query must be a text or a list of 1 to 128 texts"),
        (RERANK, {"query": "a", "documents": ["b"], "model": "texts"}, "model", "has several labels"),
        (RERANK, {"query": "a", "documents": ["b"], "model": "bert"}, "model", "which does not support /v1/rerank"),
        (RERANK, {"query": "a", "documents": []}, "documents", "documents should have at least 1 item"),
        (RERANK, {"query": "a", "documents": ["b"], "top_n": 0}, "top_n", "greater than or equal to 1"),
        (RERANK, {"query": ["a"], "documents": ["b"]}, "query", "query should be a valid string"),
        (RERANK, {"query": "a", "documents": ["b"]}, "model", "no model on this server supports /v1/rerank"),
    ],
)  # fmt: skip
def test_an_invalid_request_gets_a_400_with_a_remedy(
    test_client: TestClient, path: str, body: dict[str, Any], param: str | None, expected: str
) -> None:
    if path == COMPLETE and "model" not in body:
        body = {"model": "gpt"} | body
    error = check_rejection(test_client.post(path, json=body), 400)
    assert expected in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b"{", "the body is not valid JSON: EOF while parsing an object"),
        (b'{"prompt": "\xff"}', "the body is not valid JSON: invalid unicode"),
        (b'{"prompt": "\\ud800"}', "the body is not valid JSON: "),
        (b'{"prompt": "a", "temperature": NaN}', "the body is not valid JSON: "),
        (b'{"model": "gpt", "prompt": "a", "temperature": 1e999}', "temperature should be less than or equal to 1000"),
        (b"[" * 10_000, "the body is not valid JSON: recursion limit exceeded"),
        (b'{"prompt":' * 1000 + b"1" + b"}" * 1000, "the body is not valid JSON: recursion limit exceeded"),
        (b"[1]", "the body must be a JSON object"),
        (b"null", "the body must be a JSON object"),
        (b'"a"', "the body must be a JSON object"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "the body is not valid JSON: number out of range"),
    ],
)
def test_an_invalid_body_is_rejected(test_client: TestClient, body: bytes, expected: str) -> None:
    error = check_rejection(test_client.post(COMPLETE, content=body, headers=JSON), 400)
    assert expected in error["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None])
def test_a_form_of_another_page_is_rejected(test_client: TestClient, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    error = check_rejection(
        test_client.post(COMPLETE, content=b'{"model": "gpt", "prompt": "a"}', headers=headers), 415
    )
    assert "Content-Type: application/json" in error["message"]


def test_a_json_content_type_with_a_charset_is_accepted(test_client: TestClient) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    body = b'{"model": "gpt", "prompt": "a", "max_tokens": 1}'
    assert test_client.post(COMPLETE, content=body, headers=headers).status_code == 200


def test_the_size_of_a_body_is_limited(test_client: TestClient) -> None:
    """With and without a Content-Length."""
    whole = json.dumps({"model": "gpt", "prompt": "a" * 30_000}).encode()
    error = check_rejection(test_client.post(COMPLETE, content=whole, headers=JSON), 413)
    assert error["message"] == "the body exceeds 20,000 bytes; send less at once"
    error = check_rejection(
        test_client.post(COMPLETE, content=(whole[i : i + 999] for i in range(0, len(whole), 999)), headers=JSON), 413
    )
    assert error["code"] == "too_large"
    largest_body = json.dumps({"model": "gpt", "prompt": "a", "max_tokens": 1}).encode().ljust(20_000)
    assert test_client.post(COMPLETE, content=largest_body, headers=JSON).status_code == 200


def test_unknown_models_and_paths_get_a_404(test_client: TestClient) -> None:
    error = check_rejection(test_client.post(COMPLETE, json={"model": "gtp", "prompt": "a"}), 404)
    assert error["message"] == "no model 'gtp' on this server; did you mean 'gpt'?"
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    error = check_rejection(test_client.post(COMPLETE, json={"model": "../etc/passwd", "prompt": "a"}), 404)
    assert "known: bert, chat, gpt, texts, translator" in error["message"]
    assert "known: bert, chat" in check_rejection(test_client.get("/v1/models/nothing-like-it"), 404)["message"]
    for path in ("/nothing", "/v1", "/v1/models/a/b", "/v1/completions/", "/docs/", "/redoc", "/..%2f..%2fetc"):
        assert "available paths: /, /docs, /health" in check_rejection(test_client.get(path), 404)["message"]


def test_other_methods_are_rejected(test_client: TestClient) -> None:
    answer = test_client.get(COMPLETE)
    assert check_rejection(answer, 405)["message"] == "method not allowed: GET; use POST"
    assert answer.headers["allow"] == "POST"
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        check_rejection(test_client.request(method, COMPLETE), 405)


def test_the_models_are_listed(test_client: TestClient) -> None:
    response = test_client.get("/v1/models").json()
    assert [model["id"] for model in response["data"]] == ["gpt", "chat", "bert", "texts", "translator"]
    assert response["data"][1]["routes"] == [COMPLETE, CHAT]
    assert test_client.get("/v1/models/bert").json() == response["data"][2]
    assert response["data"][2]["context"] == ROOM


def test_the_only_model_of_a_kind_needs_no_name(test_client: TestClient) -> None:
    assert test_client.post("/translate", json={"text": "a"}).json()["model"] == "translator"
    assert test_client.post("/classify", json={"text": "a"}).json()["model"] == "texts"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "192.168.1.5", "127.0.0.1.evil.example", "", "[::2]"]
)
def test_another_host_name_is_rejected(test_client: TestClient, host: str) -> None:
    for path in ("/", "/health", "/ready", "/v1/models"):
        error = check_rejection(test_client.get(path, headers={"Host": host}), 403)
        assert "is not a name of this machine" in error["message"]


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.5:80", "[::1]:8000", "LOCALHOST"])
def test_the_host_names_of_this_machine_are_accepted(test_client: TestClient, host: str) -> None:
    assert test_client.get("/health", headers={"Host": host}).status_code == 200


OPEN_PATHS = AllowedNames(local=False, hosts=("box.example",))


@pytest.mark.slow
def test_the_api_key_is_required() -> None:
    with client("bert", rules=AccessRules(key="a key of mine", names=OPEN_PATHS)) as test_client:
        assert test_client.get("/health", headers={"Host": "box.example:80"}).json() == {"status": "alive"}
        assert test_client.get("/ready", headers={"Host": "box.example:80"}).json() == {"status": "ready", "models": 1}
        assert test_client.get("/").status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            answer = test_client.get(path)
            error = check_rejection(answer, 401)
            assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
            assert answer.headers["www-authenticate"] == "Bearer"
            for header in (
                "Bearer",
                "Bearer a key of min",
                "Bearer a key of mine2",
                "Basic a key of mine",
                "a key of mine",
            ):
                check_rejection(test_client.get(path, headers={"Authorization": header}), 401)
            check_rejection(test_client.get(path, headers={"Authorization": b"Bearer \xff\xfe"}), 401)  # type: ignore[dict-item]
        headers = {"Authorization": "Bearer a key of mine"}
        assert test_client.get("/v1/models", headers=headers).status_code == 200
        assert test_client.post(EMBED, json={"input": "a"}, headers=headers).status_code == 200
        check_rejection(test_client.post(EMBED, json={"input": "a"}), 401)
        assert check_rejection(test_client.get("/health", headers={"Host": "any.example"}), 403)["code"] == "wrong_host"
        for name in (
            "203.0.113.7:8000",
            "[2001:db8::1]",
            socket.gethostname(),
            "localhost",
        ):  # names that no other machine can claim
            assert test_client.get("/health", headers={"Host": name}).status_code == 200, name
        response = test_client.get("/openapi.json", headers=headers).json()
        assert response["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert "a key of mine" not in repr(AccessRules(key="a key of mine"))


@pytest.mark.parametrize("key", ["", " ", "k\u00e9", "a\nb", " k", "k "])
def test_a_key_must_be_valid_in_a_header(key: str) -> None:
    with pytest.raises(ValueError, match="the key must be printable ASCII, not empty, without leading"):
        AccessRules(key=key)


def test_other_origins_are_rejected_unless_allowed(test_client: TestClient) -> None:
    origin = {"Origin": "https://a.example"}
    for foreign in ("https://a.example", "null", "http://127.0.0.1:81", "http://127.0.0.1.a.example", "x" * 9999):
        for answer in (
            test_client.get("/v1/models", headers={"Origin": foreign}),
            test_client.get("/", headers={"Origin": foreign}),
        ):
            assert check_rejection(answer, 403)["code"] == "wrong_origin"
            assert "access-control-allow-origin" not in answer.headers
    assert (
        test_client.get("/v1/models", headers={"Origin": "http://127.0.0.1"}).status_code == 200
    )  # the server's own page
    preflight = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    check_rejection(test_client.options(COMPLETE, headers=preflight), 403)
    with client("bert", rules=AccessRules(names=AllowedNames(origins=("https://a.example",)), key="k")) as open_client:
        answer = open_client.options(COMPLETE, headers=preflight)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://a.example")
        response = open_client.get("/v1/models", headers=origin)
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (401, "https://a.example")
        assert open_client.options(COMPLETE, headers={**preflight, "Origin": "https://b.example"}).status_code == 400
        openai = "authorization,content-type,x-stainless-arch,x-stainless-retry-count,x-stainless-timeout"
        answer = open_client.options(COMPLETE, headers={**preflight, "Access-Control-Request-Headers": openai})
        assert (answer.status_code, answer.headers["access-control-allow-headers"]) == (200, openai)


def test_every_answer_has_security_headers(test_client: TestClient) -> None:
    for answer in (
        test_client.get("/"),
        test_client.get("/v1/models"),
        test_client.get("/no"),
        test_client.get("/", headers={"Host": "evil.example"}),
    ):
        assert set(SECURITY_HEADERS) <= set(answer.headers)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_the_openapi_document_has_models_and_limits(test_client: TestClient) -> None:
    response = test_client.get("/openapi.json").json()
    fields = response["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["model"]["anyOf"][0]["enum"] == ["gpt", "chat"]
    assert fields["max_tokens"]["anyOf"][0]["maximum"] == LIMITS.max_new_tokens
    assert "422" not in json.dumps(response["paths"])
    assert all(
        {"400", "401", "429", "503"} <= set(path["post"]["responses"])
        for path in response["paths"].values()
        if "post" in path
    )


@pytest.mark.slow
def test_the_openapi_document_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with client("bert") as test_client:
        first = test_client.get("/openapi.json")
        monkeypatch.setattr(test_client.app, "openapi", lambda: pytest.fail("the document is built again"))
        assert test_client.get("/openapi.json").content == first.content


def test_short_texts_are_encoded_without_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[str]()
    encode = Tokenizer.encode_batch

    def encode_batch(self: Tokenizer, texts: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(self, texts)

    with client("bert") as test_client:
        monkeypatch.setattr(Tokenizer, "encode_batch", encode_batch)
        for text in ("the cat", "the cat " * SHORT_BODY):
            test_client.post(EMBED, json={"input": text})
        short, long = threads
    assert short != long
    assert "AnyIO" in long


def test_metrics_count_requests_and_tokens(test_client: TestClient) -> None:
    def number(name: str) -> float:
        lines = test_client.get("/metrics").text.splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)), 0.0)

    expected = {
        'tercet_requests_total{route="/v1/completions",status="200"}': 1,
        'tercet_requests_total{route="/v1/completions",status="404"}': 1,
        'tercet_requests_total{route="other",status="404"}': 1,
        'tercet_tokens_total{kind="read",model="gpt"}': 1,
        'tercet_tokens_total{kind="written",model="gpt"}': 5,
        'tercet_time_to_first_token_seconds_count{model="gpt"}': 1,
        'tercet_time_per_token_seconds_count{model="gpt"}': 4,
        'tercet_request_seconds_count{route="/v1/completions"}': 2,
    }
    before = {name: number(name) for name in expected}
    test_client.post(COMPLETE, json={"model": "gpt", "prompt": "a", "max_tokens": 5, "seed": 3})
    test_client.post(COMPLETE, json={"model": "invented", "prompt": "a"})
    test_client.get("/invented")
    assert {name: number(name) - before[name] for name in expected} == expected
    assert "invented" not in test_client.get("/metrics").text  # clients cannot create metric series
    assert number('tercet_running{model="gpt",task="write"}') == 0
    assert number("process_resident_memory_bytes") > 1e7


SAMPLING_FIELDS = "temperature top_p top_k min_p repetition_penalty max_tokens seed n logprobs echo stream stop"
LONG_FIELDS = "truncate truncate_prompt_tokens chunk overlap"
WORDS = st.sampled_from(["the cat", "", "[MASK]", "é\u4e2d\U0001f600", "\u0000", "a" * 60, "<eos>", "null"])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["gpt", "chat", "bert", "texts", "translator"]),
    "prompt": WORDS | st.lists(WORDS, max_size=3) | st.lists(st.integers(0, 300), max_size=5),
    "input": WORDS | st.lists(WORDS, max_size=3),
    "text": WORDS | st.lists(WORDS, max_size=3),
    "messages": st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "x"]), "content": WORDS}), max_size=2),
    "temperature": st.floats(0, 1e300) | st.just(5e-324),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(0, 10**9),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.01, 100) | st.sampled_from([5e-324, 1e300]),
    "max_tokens": st.integers(0, 4),
    "seed": st.integers(0, 2**63),
    "n": st.integers(0, 3),
    "logprobs": st.integers(0, 20) | st.booleans(),
    "echo": st.booleans(),
    "stream": st.booleans(),
    "stop": WORDS | st.lists(WORDS, max_size=5),
    "top": st.integers(0, 3),
    "only": st.lists(WORDS, max_size=2),
    "beam": st.integers(0, 3),
    "n_best": st.integers(0, 3),
    "sample": st.booleans(),
    "prefix": WORDS,
    "threshold": st.floats(-1, 2),
    "truncate": st.booleans(),
    "truncate_prompt_tokens": st.integers(-1, 40),
    "chunk": st.integers(0, 40),
    "overlap": st.integers(0, 40),
    "text_pair": WORDS | st.lists(WORDS, max_size=3),
}


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([COMPLETE, CHAT, EMBED, "/translate", "/fill-mask", "/classify"]),
    st.fixed_dictionaries({}, optional={name: field | ANY_JSON for name, field in FIELDS.items()}),
)
def test_any_request_is_answered_or_rejected(test_client: TestClient, path: str, body: dict[str, Any]) -> None:
    fields = {
        COMPLETE: f"prompt {SAMPLING_FIELDS}", CHAT: f"messages {SAMPLING_FIELDS}", EMBED: f"input {LONG_FIELDS}",
        "/fill-mask": "text top only", "/classify": f"text text_pair threshold {LONG_FIELDS}",
        "/translate": f"text prefix sample beam n_best {SAMPLING_FIELDS}",
    }  # fmt: skip
    request = {name: value for name, value in body.items() if name in ("model", *fields[path].split())}
    answer = test_client.post(path, content=json.dumps(request).encode(), headers=JSON)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        check_rejection(answer, answer.status_code)
    elif answer.headers["content-type"].startswith("application/json"):
        response = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert all(math.isfinite(x) for x in response.get("usage", {"": 0}).values())
    else:
        assert answer.text.endswith("data: [DONE]\n\n")

"""Structured output in the server: each row of a batch has its own grammar, and other rows are not affected."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from http_served import client
from scheduled import MODEL, EventListener, scheduler, submit_request
from small_writer import assert_completes, unbatched_completion
from starlette.testclient import TestClient

from tercet.config import UserError
from tercet.generation import Sampling
from tercet.serve.engine import TokenEvent
from tercet.serve.engine import scheduler as scheduler_module

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
NUMBER = {
    "type": "object",
    "properties": {"n": {"enum": [1, 20, 300]}},
    "required": ["n"],
    "additionalProperties": False,
}
SAMPLINGS = [
    Sampling(max_new_tokens=25, seed=1),
    Sampling(max_new_tokens=60, seed=2, json_schema=NUMBER),
    Sampling(max_new_tokens=25, seed=3, regex="[abc]{20}"),
    Sampling(max_new_tokens=25, seed=4, temperature=0),
    Sampling(max_new_tokens=4, seed=5, regex="[abc]{20}", temperature=0.5),
]


def check_all_complete() -> None:
    """Check that each request gets the text that it gets without other requests."""
    with scheduler(MODEL) as engine:
        listeners = [submit_request(engine, "the cat", sampling) for sampling in SAMPLINGS]
        for sampling, listener in zip(SAMPLINGS, listeners, strict=True):
            assert_completes(listener.wait(), unbatched_completion(MODEL, "the cat", sampling))


def test_rows_with_and_without_grammars_share_a_batch() -> None:
    check_all_complete()
    finishes = [unbatched_completion(MODEL, "the cat", sampling).finish for sampling in SAMPLINGS]
    assert finishes[1:3] == ["stop", "stop"]
    assert finishes[4] == "length"


def test_rows_with_grammars_have_a_batch_of_their_own_if_there_are_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "can_capture", lambda *_args: True)
    with scheduler(MODEL) as engine:
        assert engine._batch is not engine._grammar_batch
    check_all_complete()


def test_invalid_grammar_is_rejected_when_the_request_is_submitted() -> None:
    with scheduler(MODEL) as engine, pytest.raises(UserError, match="regex: unclosed group"):
        submit_request(engine, "a", Sampling(regex="("))


def test_dead_end_fails_only_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from tercet.generation.grammar import GrammarState

    def fail(*_: Any) -> None:
        raise UserError("cannot continue")

    monkeypatch.setattr(GrammarState, "advance", fail)
    with scheduler(MODEL) as engine:
        listeners: list[EventListener] = [submit_request(engine, "a", sampling) for sampling in SAMPLINGS[:2]]
        assert str(listeners[1].wait()[-1]) == "cannot continue"
        last = listeners[0].wait()[-1]
        assert isinstance(last, TokenEvent)
        assert last.finish is not None


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("gpt", "chat") as models:
        yield models


FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": NUMBER}}},
    {"structured_outputs": {"json": NUMBER}},
    {"structured_outputs": {"json": json.dumps(NUMBER)}},
]


@pytest.mark.parametrize("form", FORMS)
def test_completion_accepts_each_form_of_a_schema(test_client: TestClient, form: dict[str, Any]) -> None:
    body = {"model": "gpt", "prompt": ["a", "the cat"], "max_tokens": 50, "n": 2, "seed": 3, **form}
    choices = test_client.post(COMPLETE, json=body).json()["choices"]
    assert len(choices) == 4
    for choice in choices:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), NUMBER)


def test_chat_and_streams_are_structured_as_well(test_client: TestClient) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "max_tokens": 20, "seed": 1, **FORMS[0]}
    text = test_client.post(CHAT, json=body).json()["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(text), NUMBER)
    events = test_client.post(CHAT, json={**body, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


def test_json_object_text_and_regex(test_client: TestClient) -> None:
    body = {"model": "gpt", "prompt": "a", "max_tokens": 50, "seed": 3}
    text = test_client.post(COMPLETE, json={**body, "response_format": {"type": "json_object"}}).json()
    assert text["choices"][0]["text"].startswith("{")
    plain = test_client.post(COMPLETE, json=body).json()["choices"]
    assert test_client.post(COMPLETE, json={**body, "response_format": {"type": "text"}}).json()["choices"] == plain
    answer = test_client.post(COMPLETE, json={**body, "structured_outputs": {"regex": "yes|no"}}).json()
    assert answer["choices"][0]["text"] in ("yes", "no")
    short = test_client.post(COMPLETE, json={**body, "max_tokens": 2, "structured_outputs": {"regex": "a{9}"}}).json()
    assert short["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "type must be text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "must have the field json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
            "response_format",
            "json_schema: Invalid type: strin",
        ),
        ({"response_format": "json"}, "response_format", "response_format must be a JSON object; send {...}"),
        ({"stream": True, "stream_options": 1}, "stream_options", "stream_options must be a JSON object; send {...}"),
        ({"structured_outputs": {}}, "structured_outputs", "must have one of the fields json and regex"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "regex: unclosed group"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "json_schema: not valid JSON"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs", "exceed the maximum of 32,768"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "exclude each other",
        ),
    ],
)
def test_invalid_format_is_rejected_with_its_field(
    test_client: TestClient, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = test_client.post(COMPLETE, json={"model": "gpt", "prompt": "a", "max_tokens": 5, **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]

"""The official `openai` client works over a socket. Its retries are off, so that it reports each error."""

from collections.abc import Iterator
from typing import Any

import pytest
from http_served import WRITER, PacedWorker, fill_with_nan, on_a_socket, registry, trained_model

from tercet.api import Run
from tercet.serve.http.guard import AccessRules

openai = pytest.importorskip("openai")

KEY = "a key for the tests"


def connect_openai(address: str, key: str = KEY) -> Any:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def openai_client() -> Iterator[Any]:
    with (
        registry("gpt", "chat", "bert") as models,
        on_a_socket(models, AccessRules(key=KEY)) as address,
        connect_openai(address) as openai_client,
    ):
        yield openai_client


def test_models(openai_client: Any) -> None:
    assert [model.id for model in openai_client.models.list()] == ["gpt", "chat", "bert"]
    assert openai_client.models.retrieve("bert").owned_by == "tercet"
    with pytest.raises(openai.NotFoundError, match="no model 'brt' on this server; did you mean 'bert'"):
        openai_client.models.retrieve("brt")


def test_completions(openai_client: Any) -> None:
    expected = Run(trained_model=trained_model("gpt")).generate("the cat", max_new_tokens=12, temperature=0)
    result = openai_client.completions.create(model="gpt", prompt="the cat", max_tokens=12, temperature=0)
    assert result.choices[0].text == expected
    assert result.usage is not None
    assert result.usage.prompt_tokens == len(WRITER.encode("the cat"))
    pieces = list(
        openai_client.completions.create(model="gpt", prompt="the cat", max_tokens=12, temperature=0, stream=True)
    )
    assert "".join(piece.choices[0].text for piece in pieces) == expected
    assert pieces[-1].choices[0].finish_reason in ("stop", "length")
    assert len(pieces) > 3


def test_all_settings_are_accepted(openai_client: Any) -> None:
    result = openai_client.completions.create(
        model="gpt", prompt=["the cat", "a"], max_tokens=9, temperature=0.8, top_p=0.9, n=2, seed=5, stop=["zz"],
        logprobs=2, echo=True, user="somebody", frequency_penalty=0, presence_penalty=0, best_of=1,
        extra_body={"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.05},
    )  # fmt: skip
    assert [choice.index for choice in result.choices] == [0, 1, 2, 3]
    assert [
        choice.text.startswith(prompt)
        for choice, prompt in zip(result.choices, ["the cat"] * 2 + ["a"] * 2, strict=True)
    ]
    found = result.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert "".join(found.tokens[: len(WRITER.encode("the cat"))]) == "the cat"


def test_usage_in_a_stream(openai_client: Any) -> None:
    pieces = list(
        openai_client.completions.create(
            model="gpt", prompt="the", max_tokens=7, stream=True, stream_options={"include_usage": True}, seed=1
        )
    )
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens <= 7


@pytest.mark.slow
def test_chat(openai_client: Any) -> None:
    how = {"model": "chat", "messages": [{"role": "user", "content": "cat"}], "max_completion_tokens": 8, "seed": 4}
    result = openai_client.chat.completions.create(**how, logprobs=True, top_logprobs=2)  # type: ignore[call-overload]
    assert result.choices[0].message.role == "assistant"
    assert len(result.choices[0].logprobs.content[0].top_logprobs) == 2
    pieces = openai_client.chat.completions.create(**how, stream=True)  # type: ignore[call-overload]
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == result.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="gpt has no chat template"):
        openai_client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "the cat"}])


def test_embeddings(openai_client: Any) -> None:
    expected = Run(trained_model=trained_model("bert")).embed(["the cat", "a dog"])
    result = openai_client.embeddings.create(
        model="bert", input=["the cat", "a dog"]
    )  # base64 unless requested otherwise
    assert [vector.embedding for vector in result.data] == [pytest.approx(row.tolist(), abs=1e-6) for row in expected]
    plain = openai_client.embeddings.create(model="bert", input="the cat", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(result.data[0].embedding, abs=1e-6)
    assert result.usage.total_tokens > 0


def test_client_errors_have_their_exception_classes(openai_client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'gtp' on this server") as missing:
        openai_client.completions.create(model="gtp", prompt="a")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="shorten it by") as long:
        openai_client.completions.create(model="gpt", prompt="a" * 300)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature should be"):
        openai_client.completions.create(model="gpt", prompt="a", temperature=-1)
    with pytest.raises(openai.AuthenticationError, match="the API key is wrong") as key:
        openai_client.with_options(api_key="another").models.list()
    assert key.value.code == "invalid_api_key"


@pytest.mark.slow
def test_server_errors_have_their_exception_classes() -> None:
    worker = PacedWorker(room=0)
    with (
        registry("gpt", scheduler=worker) as models,
        on_a_socket(models) as address,
        connect_openai(address) as openai_client,
    ):
        with pytest.raises(openai.RateLimitError, match="the queue is full") as full:
            openai_client.completions.create(model="gpt", prompt="a")
        assert full.value.response.headers["retry-after"] == "7"
        worker.closed = True
        with pytest.raises(openai.InternalServerError, match="shutting down") as closing:
            openai_client.completions.create(model="gpt", prompt="a")
        assert closing.value.status_code == 503
    with (
        registry(models={"gpt": fill_with_nan(trained_model("gpt"))}) as models,
        on_a_socket(models) as address,
        connect_openai(address) as openai_client,
    ):
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="use an earlier checkpoint"):
                openai_client.completions.create(model="gpt", prompt="a", stream=stream)


@pytest.mark.slow
def test_a_failure_during_a_stream_raises_an_error() -> None:
    worker = PacedWorker(pause=0.02)
    worker.go.set()
    with (
        registry("gpt", scheduler=worker) as models,
        on_a_socket(models) as address,
        connect_openai(address) as openai_client,
    ):
        pieces = openai_client.completions.create(model="gpt", prompt="a", max_tokens=50, stream=True)
        assert next(pieces).choices[0].text == "a"
        worker.fails = ZeroDivisionError()
        with pytest.raises(openai.APIError, match="internal server error"):
            list(pieces)

"""HTTP answers equal those of the command line, also with concurrent requests."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from http_served import LABELS, READER, ROOM, TEMPLATE, WRITER, client, trained_model
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tercet.api import Run
from tercet.config import UserError
from tercet.generation import Beam, Sampling, generate, translate
from tercet.generation.text import TextRow
from tercet.models import DecoderOnly, EncoderDecoder
from tercet.serve.engine import SampledToken, TokenEvent
from tercet.serve.http.logprobs import CertainTokens, OffsetLogprob
from tercet.serve.http.requests import CompletionRequest
from tercet.tokens.chat_template import ChatTemplate

PROMPTS = ["the cat", "unbelievable dogs sat", "é"]


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("gpt", "chat", "bert", "texts", "words", "translator") as test_client:
        yield test_client


def post_json(test_client: TestClient, path: str, **body: Any) -> Any:
    answer = test_client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(test_client: TestClient, path: str, **body: Any) -> list[Any]:
    """Return the events of a stream up to its end."""
    with test_client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        response = "".join(answer.iter_text()).split("\n\n")
    assert response[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in response[:-2]]


def generate_completions(prompt: str, *, samples: int = 1, **sampling: Any) -> list[Any]:
    model = trained_model("gpt").model
    assert isinstance(model, DecoderOnly)
    return generate(model, WRITER, [prompt], Sampling(max_new_tokens=11, **sampling), samples=samples)


def round_floats(value: Any) -> Any:
    """Round floats, since sums over batches of different sizes differ in the last digits."""
    return json.loads(json.dumps(value), parse_float=lambda text: round(float(text), 3))


@pytest.mark.slow
def test_greedy_completions_equal_those_of_generate(test_client: TestClient) -> None:
    for prompt in PROMPTS:
        (expected,) = generate_completions(prompt, temperature=0)
        response = post_json(test_client, "/v1/completions", model="gpt", prompt=prompt, max_tokens=11, temperature=0)
        assert response["choices"][0]["text"] == expected.text
        assert response["choices"][0]["finish_reason"] == ("length" if expected.finish == "length" else "stop")
        n = len(WRITER.encode(prompt))
        assert response["usage"] == {
            "prompt_tokens": n, "completion_tokens": len(expected.ids), "total_tokens": n + len(expected.ids)
        }  # fmt: skip


@pytest.mark.slow
def test_samples_and_seeds_equal_those_of_generate(test_client: TestClient) -> None:
    sampling = {"temperature": 1.3, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 41}
    for stop in ((), ("e",), ("at", "the")):
        expected = [
            completion
            for prompt in PROMPTS
            for completion in generate_completions(prompt, samples=3, stop=stop, **sampling)
        ]
        response = post_json(
            test_client, "/v1/completions", model="gpt", prompt=PROMPTS, max_tokens=11, n=3, stop=list(stop), **sampling
        )
        assert [completion["text"] for completion in response["choices"]] == [
            completion.text for completion in expected
        ]
        assert [completion["index"] for completion in response["choices"]] == list(range(9))
        assert [completion["seed"] for completion in response["choices"]] == [41, 42, 43] * 3
        assert [completion["finish_reason"] == "length" for completion in response["choices"]] == [
            completion.finish == "length" for completion in expected
        ]


def test_a_random_seed_is_returned_and_reproduces_the_answer(test_client: TestClient) -> None:
    fields = {"model": "gpt", "prompt": "the", "max_tokens": 11}
    choices = [post_json(test_client, "/v1/completions", **fields)["choices"][0] for _ in range(2)]
    assert len({choice["seed"] for choice in choices}) == 2
    repeated_choice = post_json(test_client, "/v1/completions", **fields, seed=choices[0]["seed"])["choices"][0]
    assert repeated_choice["text"] == choices[0]["text"]


def test_token_ids_and_text_are_equivalent_prompts(test_client: TestClient) -> None:
    fields = {"model": "gpt", "max_tokens": 9, "temperature": 0, "echo": True}
    choices_of_texts = post_json(test_client, "/v1/completions", prompt=PROMPTS, **fields)["choices"]
    choices_of_ids = post_json(
        test_client, "/v1/completions", prompt=[WRITER.encode(prompt) for prompt in PROMPTS], **fields
    )["choices"]
    assert [choice["text"] for choice in choices_of_texts] == [choice["text"] for choice in choices_of_ids]
    choices_of_one_prompt = post_json(test_client, "/v1/completions", prompt=WRITER.encode(PROMPTS[0]), **fields)[
        "choices"
    ]
    assert [choice["text"] for choice in choices_of_one_prompt] == [choices_of_texts[0]["text"]]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [[], ["at", "the"]])
def test_a_joined_stream_equals_the_whole_answer(test_client: TestClient, stop: list[str]) -> None:
    fields: dict[str, Any] = {"model": "gpt", "prompt": PROMPTS, "n": 2, "max_tokens": 11, "seed": 5, "stop": stop}
    fields |= {"logprobs": 3, "echo": True}
    whole = post_json(test_client, "/v1/completions", **fields)
    assert whole["usage"]["prompt_tokens"] == sum(len(WRITER.encode(prompt)) for prompt in PROMPTS)  # independent of n
    pieces = events(test_client, "/v1/completions", **fields, stream_options={"include_usage": True})
    assert pieces[-1]["choices"] == []
    assert pieces[-1]["usage"] == whole["usage"]
    assert all(piece["usage"] is None for piece in pieces[:-1])
    assert len({piece["id"] for piece in pieces}) == 1
    for choice in whole["choices"]:
        parts = [part for piece in pieces[:-1] for part in piece["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        for name, values in choice["logprobs"].items():
            assert round_floats([value for part in parts for value in part["logprobs"][name]]) == round_floats(values)


def test_a_stream_has_usage_only_if_requested(test_client: TestClient) -> None:
    pieces = events(test_client, "/v1/completions", model="gpt", prompt="the", max_tokens=5)
    assert all("usage" not in piece and len(piece["choices"]) == 1 for piece in pieces)


def test_logprobs_equal_those_of_the_model(test_client: TestClient) -> None:
    """Log-probabilities of prompt and completion equal those of one forward pass over the whole text."""
    prompt = "the cat sat"
    response = post_json(
        test_client, "/v1/completions", model="gpt", prompt=prompt, max_tokens=11, temperature=0, logprobs=4, echo=True
    )["choices"][0]
    (expected,) = generate_completions(prompt, temperature=0)
    ids = [*WRITER.encode(prompt), *expected.ids[:11]]
    model = trained_model("gpt").model
    with torch.no_grad():
        scores = model(torch.tensor([ids]))[0].log_softmax(-1)  # (T, V)
    logprobs = response["logprobs"]
    assert logprobs["tokens"] == [WRITER.tokens([token])[0] for token in ids]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(
        [scores[i, ids[i + 1]].item() for i in range(len(ids) - 1)], abs=1e-4
    )
    for place, top in enumerate(logprobs["top_logprobs"][1:]):
        best = scores[place].topk(4)
        expected_top = {
            WRITER.tokens([token])[0]: value
            for token, value in zip(*(tensor.tolist() for tensor in best[::-1]), strict=True)
        }
        assert {name: top[name] for name in expected_top} == pytest.approx(expected_top, abs=1e-4)
        assert set(top) - set(expected_top) <= {logprobs["tokens"][place + 1]}
    text = response["text"]
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        if "\\x" not in token:  # part of a character
            assert text[offset:].startswith(token)


def test_echo_works_with_zero_new_tokens(test_client: TestClient) -> None:
    """Programs that score given texts send such requests."""
    response = post_json(
        test_client, "/v1/completions", model="gpt", prompt="the cat sat", max_tokens=0, logprobs=0, echo=True
    )
    choice = response["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("the cat sat", "length")
    assert len(choice["logprobs"]["tokens"]) == response["usage"]["prompt_tokens"] == len(WRITER.encode("the cat sat"))
    assert choice["logprobs"]["top_logprobs"] == [None] * len(choice["logprobs"]["tokens"])
    assert response["usage"]["completion_tokens"] == 0


@pytest.mark.slow
def test_a_chat_is_its_template_continued(test_client: TestClient) -> None:
    messages = [
        {"role": "user", "content": "the"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "a"},
    ]
    ids = [WRITER.bos_id]
    for message in messages:
        ids += [*WRITER.encode(f"{message['role']}: {message['content']}"), WRITER.eos_id]
    ids += WRITER.encode("assistant: ")
    fields = {"max_tokens": 13, "temperature": 0.7, "seed": 3}
    expected = post_json(test_client, "/v1/completions", model="chat", prompt=ids, **fields)
    response = post_json(test_client, "/v1/chat/completions", model="chat", messages=messages, **fields)
    assert response["choices"][0]["message"] == {
        "role": "assistant",
        "content": expected["choices"][0]["text"],
        "refusal": None,
    }
    assert response["usage"] == expected["usage"]
    pieces = events(
        test_client, "/v1/chat/completions", model="chat", messages=messages, **fields, logprobs=True, top_logprobs=2
    )
    assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [piece["choices"][0]["delta"].get("content", "") for piece in pieces]
    assert "".join(deltas) == expected["choices"][0]["text"]
    tokens = [
        token
        for piece in pieces
        if piece["choices"][0]["logprobs"]
        for token in piece["choices"][0]["logprobs"]["content"]
    ]
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in tokens)
    assert len(tokens) in (expected["usage"]["completion_tokens"], expected["usage"]["completion_tokens"] - 1)


@pytest.mark.slow
def test_a_template_renders_as_transformers_does() -> None:
    from transformers import PreTrainedTokenizerFast

    transformers_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=WRITER._library, bos_token="<bos>", eos_token="<eos>"
    )
    messages = [{"role": "user", "content": "the  cat\n"}, {"role": "assistant", "content": "<b> & 'sat'"}]
    sources = [
        TEMPLATE,
        "{%- for m in messages %}\n  {{ m | tojson }}\n  {%- if loop.first %}{% continue %}{% endif %}\n{% endfor %}\n",
        "  {% set ns = namespace(n=0) %}\n{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}\n{{ ns.n }}",
        "{{ strftime_now('%Y')[:2] }}",
    ]
    for source in sources:
        expected = transformers_tokenizer.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=True
        )
        assert ChatTemplate(source, WRITER).render(messages) == expected
    expected = transformers_tokenizer.apply_chat_template(messages, chat_template=TEMPLATE, add_generation_prompt=True)[
        "input_ids"
    ]
    ids = ChatTemplate(TEMPLATE, WRITER).encode(messages)
    assert WRITER.decode(ids, skip_special=False) == WRITER.decode(expected, skip_special=False)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(["<eos>", "<bos>", "eos>", "<", "the", "\ue000", "é"]), min_size=1).map("".join))
def test_special_tokens_in_user_content_are_text(content: str) -> None:
    ids = ChatTemplate(TEMPLATE, WRITER).encode([{"role": "user", "content": content}])
    assert ids.count(WRITER.eos_id) == ids.count(WRITER.bos_id) == 1
    assert ids[1 : ids.index(WRITER.eos_id)] == WRITER.encode(f"user: {content}")


def test_a_message_may_have_any_character() -> None:
    """This includes characters from the private use areas."""
    content = "".join(map(chr, [*range(0xE000, 0xF900), 0xF0000, 0x10FFFD]))
    ids = ChatTemplate("{{ messages[0].content }}", WRITER).encode([{"role": "user", "content": f"{content}<eos>"}])
    assert ids == WRITER.encode(f"{content}<eos>")
    with pytest.raises(UserError, match=r"half a surrogate pair \(U\+D800\) at character 1; remove it"):
        ChatTemplate(TEMPLATE, WRITER).encode([{"role": "user", "content": "a\ud800"}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "rejects these messages"),
        ("{{ messages.append(1) }}", "rejects these messages"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "rejects these messages"),
        ("{% for a in range(999999999) %}{% endfor %}", "rejects these messages"),
        ("{{ raise_exception('only one message') }}", "only one message"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include '/etc/passwd' %}", "rejects these messages"),
        ("", "gives an empty text for these messages"),
    ],
)
def test_a_template_runs_in_a_sandbox(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ChatTemplate(source, WRITER).encode([{"role": "user", "content": "a"}])


def test_an_invalid_template_is_rejected() -> None:
    with pytest.raises(UserError, match="the chat template cannot be read"):
        ChatTemplate("{% if %}", WRITER)


def test_vectors_equal_those_of_embed(test_client: TestClient) -> None:
    texts = ["the cat", "", "a dog ran until the mat was worn", "the cat"]
    for options in ({}, {"pooling": "first"}, {"normalize": False}):
        expected = Run(trained_model=trained_model("bert")).embed(texts, truncate=True, **options)
        response = post_json(test_client, "/v1/embeddings", model="bert", input=texts, **options)
        found = np.array([item["embedding"] for item in response["data"]], np.float32)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    packed = post_json(
        test_client, "/v1/embeddings", model="bert", input=texts, encoding_format="base64", normalize=False
    )
    vectors = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in packed["data"]]
    np.testing.assert_allclose(np.stack(vectors), expected, atol=1e-6)
    n = sum(len(READER.encode(text)) for text in texts)
    assert packed["usage"] == {
        "prompt_tokens": n, "total_tokens": n, "chunks": 4, "truncated_texts": 0, "truncated_tokens": 0,
    }  # fmt: skip
    ids = post_json(
        test_client, "/v1/embeddings", model="bert", input=[READER.encode(text) for text in texts[2:]], normalize=False
    )
    np.testing.assert_allclose(np.array([item["embedding"] for item in ids["data"]]), expected[2:], atol=1e-6)
    assert post_json(test_client, "/v1/embeddings", model="bert", input="a", dimensions=24)["data"][0]["index"] == 0


@pytest.mark.slow
def test_translations_equal_those_of_translate(test_client: TestClient) -> None:
    texts = ["the cat sat", "", "a dog ran until", " on the mat "]
    model = trained_model("translator").model
    assert isinstance(model, EncoderDecoder)
    searches: list[tuple[dict[str, Any], Any]] = [
        ({}, Beam()),
        (
            {"beam": 3, "n_best": 2, "length_penalty": "gnmt", "alpha": 0.6},
            Beam(size=3, n_best=2, length_penalty="gnmt", alpha=0.6),
        ),
        ({"sample": True, "seed": 9, "top_k": 20}, Sampling(seed=9, top_k=20, max_new_tokens=1 << 20)),
    ]
    for body, search in searches:
        expected = translate(model, READER, texts, search)
        response = post_json(test_client, "/translate", text=texts, **body)["answers"]
        assert [[translation["text"] for translation in answer["translations"]] for answer in response] == [
            [translation.text for translation in expected_translations] for expected_translations in expected
        ]
        for answer, expected_translations in zip(response, expected, strict=True):
            assert [translation["score"] for translation in answer["translations"]] == pytest.approx(
                [translation.score for translation in expected_translations], abs=1e-4
            )
    (completed_prefix,) = translate(model, READER, ["a dog"], Beam(), prefixes=["the"])
    (response,) = post_json(test_client, "/translate", text="a dog", prefix="the")["answers"]
    assert response["translations"][0]["text"] == completed_prefix[0].text


def test_a_text_of_several_lines_is_translated_line_by_line(test_client: TestClient) -> None:
    lines, body = ["the cat sat", "", "a dog ran", "the mat"], {"beam": 3, "n_best": 2}
    answers_of_lines = [post_json(test_client, "/translate", text=line, **body)["answers"][0] for line in lines]
    answers = post_json(test_client, "/translate", text=["\n".join(lines), "a dog ran"], **body)["answers"]
    assert [choice["text"] for choice in answers[1]["translations"]] == [
        choice["text"] for choice in answers_of_lines[2]["translations"]
    ]
    assert answers[0]["source"] == "\n".join(lines)
    for rank, choice in enumerate(answers[0]["translations"]):
        parts = [answer["translations"][min(rank, len(answer["translations"]) - 1)] for answer in answers_of_lines]
        assert choice["text"] == "\n".join(part["text"] for part in parts)
        assert choice["tokens"] == sum(part["tokens"] for part in parts)
        assert choice["logprob"] == pytest.approx(sum(part["logprob"] for part in parts), abs=1e-4)
        assert choice["score"] == pytest.approx(sum(part["score"] for part in parts), abs=1e-4)
    assert len(answers[0]["translations"]) == 2


def test_filled_masks_equal_those_of_fill(test_client: TestClient) -> None:
    texts = ["the [MASK] sat", "a <mask> [MASK]"]
    for options in ({}, {"top": 3}, {"only": ["cat", "dog"]}, {"only": ["cat", "dog"], "top": 1}):
        expected = Run(trained_model=trained_model("bert")).fill(texts, **options)
        response = post_json(test_client, "/fill-mask", text=texts, **options)["answers"]
        for answer, expected_answer in zip(response, expected, strict=True):
            assert [[c["word"] for c in mask] for mask in answer["masks"]] == [
                [c.word for c in mask] for mask in expected_answer.masks
            ]
            for mask, expected_candidates in zip(answer["masks"], expected_answer.masks, strict=True):
                assert [c["probability"] for c in mask] == pytest.approx(
                    [c.probability for c in expected_candidates], abs=1e-5
                )
                assert [c["text"] for c in mask] == [c.text for c in expected_candidates]


def test_labels_equal_those_of_classify(test_client: TestClient) -> None:
    texts = ["the cat sat", "", "a dog ran " * 20]
    expected = Run(trained_model=trained_model("texts")).classify(texts, truncate=True)
    response = post_json(test_client, "/classify", model="texts", text=texts, truncate=True)["answers"]
    for answer, expected_answer in zip(response, expected, strict=True):
        assert (answer["label"], answer["truncated"]) == (expected_answer.label, expected_answer.truncated)
        assert answer["scores"] == pytest.approx(expected_answer.scores, abs=1e-5)
        assert set(answer["scores"]) == set(LABELS)
    assert response[2]["truncated"]
    expected_tags = Run(trained_model=trained_model("words")).tag([text.split() for text in texts])
    response = post_json(test_client, "/classify", model="words", text=texts)["answers"]
    for answer, expected_answer in zip(response, expected_tags, strict=True):
        assert [word["word"] for word in answer["words"]] == list(expected_answer.words)
        assert [word["label"] for word in answer["words"]] == [tag and tag.label for tag in expected_answer.tags]


@pytest.mark.slow
def test_concurrent_requests_get_their_own_answers(test_client: TestClient) -> None:
    """Requests of every kind from many threads each get the answer of the same request without others."""
    questions: list[tuple[str, dict[str, Any]]] = [
        *(("/v1/completions", {"model": "gpt", "prompt": prompt, "seed": 3, "max_tokens": 9}) for prompt in PROMPTS),
        *(("/v1/embeddings", {"model": "bert", "input": text}) for text in ("the cat", "a dog ran", "mat")),
        *(("/translate", {"text": text}) for text in ("the cat", "a dog ran")),
        *(("/fill-mask", {"text": text}) for text in ("the [MASK]", "[MASK] dog")),
        *(("/classify", {"model": "texts", "text": text}) for text in ("the cat", "a dog ran")),
    ]  # fmt: skip

    def answer_question(question: tuple[str, dict[str, Any]]) -> Any:
        response = post_json(test_client, question[0], **question[1])
        return round_floats({name: value for name, value in response.items() if name not in ("id", "created")})

    separate_answers = [answer_question(question) for question in questions]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer_question, questions)) == separate_answers


def read_with_logprobs(ids: list[int], stop: list[str], echo: int) -> tuple[TextRow, list[OffsetLogprob]]:
    """Return the text of these tokens, and the tokens that are sent with it."""
    text, certain, tokens = TextRow(WRITER, tuple(stop)), CertainTokens(WRITER, echo="x" * echo), []
    for place, token in enumerate(ids):
        finish = "eos" if token == WRITER.eos_id else "length" if place == len(ids) - 1 else None
        sampled_token = SampledToken(id=token, logprob=-1.0, finish=finish)
        piece = text.read(sampled_token)
        over = text.finish if text.finish == "stop" or finish else None
        tokens += certain.push(TokenEvent(text=piece, token=sampled_token, finish=over))
        if over:
            break
    return text, tokens


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, WRITER.vocab_size - 1), min_size=1, max_size=12),
    st.lists(st.sampled_from(["the", "e", " c", "é", "\ufffd"]), max_size=3),
    st.integers(0, 5),
)
def test_token_offsets_lie_within_the_text(ids: list[int], stop: list[str], echo: int) -> None:
    """For any split into pieces, offsets never decrease and lie within the text. Without a cut, all tokens are sent."""
    text, tokens = read_with_logprobs(ids, stop, echo)
    whole = "".join(text.pieces)
    offsets = [offset for offset, _ in tokens]
    assert offsets == sorted(offsets)
    assert all(echo <= offset <= echo + len(whole) for offset in offsets)
    if text.finish == "length":
        assert len(tokens) == len(text.tokens)
    else:
        assert len(tokens) <= len(text.tokens) - (text.finish == "eos")


def test_tokens_of_a_stop_string_are_not_sent() -> None:
    text, tokens = read_with_logprobs(WRITER.encode("a dog ran until"), [" until"], echo=2)
    assert (text.finish, "".join(text.pieces)) == ("stop", "a dog ran")
    assert "".join(token.token for _, token in tokens) == "a dog ran"


def test_neutral_values_of_other_clients_are_accepted() -> None:
    """Requests that the schema allows can be made, including the neutral values that other clients send."""
    request = CompletionRequest.model_validate(
        {"prompt": "a", "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "best_of": 1, "user": "me",
         "suffix": None, "stop": None, "stream_options": None, "temperature": 1, "top_p": None}
    )  # fmt: skip
    assert request.samples == 1
    assert request.stops == ()
    assert ROOM == 37

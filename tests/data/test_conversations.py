"""Conversations in files: parsing, splitting, ids with marked answers, and one line per error."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.config import UserError, parse
from tercet.data import ConversationFile, ConversationsSpec, conversation_rows, prepare_conversations
from tercet.tokens import BPE, Tokenizer
from tercet.tokens.chat_template import ChatTemplate

TOKENIZER = Tokenizer.train(BPE(vocab_size=280, bos=True), ["is there any tea, one or two"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def make_talk(question: str, *answers: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and?"}]
    return {"messages": messages}


def file(folder: Path, rows: list[Any], name: str = "chat.jsonl") -> str:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


TALKS = [make_talk(f"question {n}", *(f"answer {n}.{k}" for k in range(n % 3))) for n in range(12)]


@pytest.mark.slow
def test_ids_and_answers_are_those_of_the_template(tmp_path: Path) -> None:
    corpus = prepare_conversations(ConversationsSpec(source=file(tmp_path, TALKS)), tokenizer=TOKENIZER)
    second = prepare_conversations(ConversationsSpec(source=file(tmp_path, TALKS)), tokenizer=TOKENIZER)
    chat, found = ChatTemplate(corpus.template, TOKENIZER), list[tuple[list[int], list[bool]]]()
    for part in (corpus.train, corpus.validation):
        for start, end, first in zip(part.starts[:-1], part.starts[1:], part.first_answers, strict=True):
            found.append((part.ids[start:end].tolist(), part.answers[start:end].tolist()))
            assert found[-1][1].index(True) == first
    expected = [chat.encode_conversation(talk["messages"]) for talk in TALKS if len(talk["messages"]) > 1]
    assert sorted(found) == sorted(expected)
    assert corpus.skipped == 4
    assert len(corpus.validation) == 1
    assert corpus.hash == second.hash
    assert corpus.is_plain


@pytest.mark.slow
def test_another_template_is_another_corpus(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}")
    source = file(tmp_path, TALKS)
    plain = prepare_conversations(ConversationsSpec(source=source), tokenizer=TOKENIZER)
    custom = prepare_conversations(ConversationsSpec(source=source, chat_template=str(template)), tokenizer=TOKENIZER)
    reused = prepare_conversations(ConversationsSpec(source=source), tokenizer=TOKENIZER, template=custom.template)
    assert plain.hash != custom.hash == reused.hash
    assert custom.template == template.read_text()
    assert not custom.is_plain


def test_a_table_of_prompts_and_responses(tmp_path: Path) -> None:
    path = file(tmp_path, ["prompt,response,source", '"tea, please",yes,a', "more,no,b"], "chat.csv.gz")
    first, second = ConversationFile(path=Path(path)).examples()
    assert first.messages == ({"role": "user", "content": "tea, please"}, {"role": "assistant", "content": "yes"})
    assert second.location.endswith("line 3")


USER, TEA = {"role": "user", "content": "tea?"}, {"role": "assistant", "content": "yes"}
EXCHANGE = {"prompt": "tea?", "response": "yes"}
SHAREGPT = [{"from": "human", "value": "tea?"}, {"from": "gpt", "value": "yes"}]
QUESTIONS = {"prompt_field": "question", "response_field": "answer"}


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (EXCHANGE, {}),
        ({"question": "tea?", "answer": "yes", "prompt": "no"}, QUESTIONS),
        ({"conversations": SHAREGPT, "id": "1"}, {}),
        ({"messages": SHAREGPT}, {}),
        ({"conversations": [USER, TEA]}, {}),
        ({"messages": [USER, TEA], "conversations": [], **EXCHANGE}, {}),
        ({"question": "tea?", "answer": "yes", "messages": []}, QUESTIONS),
        ({"messages": [USER, TEA]}, QUESTIONS),
        ({"talk": SHAREGPT, "messages": []}, {"messages_field": "talk"}),
        ("question,answer,prompt\ntea?,yes,no", QUESTIONS),
    ],
)
def test_the_same_conversation_in_every_form(tmp_path: Path, row: Any, fields: dict[str, str]) -> None:
    path = file(tmp_path, [row], "chat.csv" if isinstance(row, str) else "chat.jsonl")
    [conversation] = ConversationFile(path=Path(path), **fields).examples()
    assert conversation.messages == (USER, TEA)


@pytest.mark.slow
def test_fields_of_other_names_are_another_corpus_and_the_usual_ones_are_not(tmp_path: Path) -> None:
    rows = [{**EXCHANGE, "prompt": f"{n}?", "question": f"{n}!", "answer": "no"} for n in range(4)]
    source = file(tmp_path, rows)
    usual, explicit, renamed = (
        prepare_conversations(ConversationsSpec(source=source, **fields), tokenizer=TOKENIZER)
        for fields in ({}, {"prompt_field": "prompt", "response_field": "response"}, QUESTIONS)
    )
    assert usual.hash == explicit.hash != renamed.hash
    assert "!" in renamed.tokenizer.decode(renamed.train.ids)
    with pytest.raises(UserError, match="prompt_field and response_field are both 'prompt'"):
        parse(ConversationsSpec, {"source": source, "response_field": "prompt"})


def test_rows_are_cut_and_their_answers_marked(tmp_path: Path) -> None:
    part = prepare_conversations(ConversationsSpec(source=file(tmp_path, TALKS)), tokenizer=TOKENIZER).train
    for max_len in (1, 20, 999):
        numbers = np.arange(len(part))[::-1]
        rows = conversation_rows(part, numbers, max_len=max_len, pad=7)
        assert rows.mask is not None
        for number, tokens, mask in zip(numbers, rows.tokens, rows.mask, strict=True):
            start, length = part.starts[number], min(part.lengths[number], max_len + 1)
            assert tokens[:length].tolist() == part.ids[start : start + length].tolist()
            assert mask[:length].tolist() == part.answers[start : start + length].tolist()
            assert set(tokens[length:]) <= {7}
            assert not mask[length:].any()
            assert (number in part.learnable(max_len)) == mask[1:].any()


def test_equal_questions_are_in_one_part(tmp_path: Path) -> None:
    talks = [make_talk(f"question {n % 20}", f"answer {n}") for n in range(60)]
    corpus = prepare_conversations(ConversationsSpec(source=file(tmp_path, talks)), tokenizer=TOKENIZER)
    sides = [
        {tuple(part.ids[s : s + f].tolist()) for s, f in zip(part.starts, part.first_answers, strict=False)}
        for part in (corpus.train, corpus.validation)
    ]
    assert len(sides[0]) + len(sides[1]) == 20
    assert sides[1]


def test_custom_key_and_validation_file(tmp_path: Path) -> None:
    train = file(tmp_path, [{"talk": talk["messages"]} for talk in TALKS])
    held_out = file(tmp_path, [{"talk": make_talk("new", "yes")["messages"]}], "other.jsonl")
    settings = {"source": train, "messages_field": "talk", "validation": {"kind": "held_out", "source": held_out}}
    corpus = prepare_conversations(parse(ConversationsSpec, settings), tokenizer=TOKENIZER)
    assert (len(corpus.train), len(corpus.validation)) == (8, 1)


ASSISTANT = {"role": "assistant", "content": "yes"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("[1]", r"line 2 is not a JSON object; write \{\"messages\": \.\.\.\}"),
        ("{", "line 2 is not JSON"),
        ({"message": []}, "line 2 has no field 'messages'; did you mean 'message'"),
        ({"messages": []}, r"line 2: its messages are \[\]; write a list of one or more"),
        ({"messages": "hi"}, "line 2: its messages are 'hi'; write a list"),
        ({"messages": ["hi"]}, r"line 2: message 1 is not an object; write \{\"role\""),
        (
            {"messages": [ASSISTANT, {"role": "asistant", "content": ""}]},
            "message 2 has the role 'asistant'; did you me",
        ),
        ({"messages": [{"content": "hi"}]}, "message 1 has the role None; known: system, user, assistant"),
        ({"messages": [{"role": "user"}]}, "message 1 has None as its content; write a text"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "as its content; write a text"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half a surrogate pair"),
        ({"question": "a"}, r"'messages'; known: question \(rename it, or set data.messages_field, or"),
        (
            {"prompt": "a", "answer": "b"},
            r"line 2 has no field 'response'; .* \(rename it, or set data.response_field\)",
        ),
        ({"prompt": "a", "response": 1}, "line 2: the field 'response' is not text"),
        ({"conversations": [{"from": "bot"}]}, "has the role 'bot'; known: assistant, gpt, human, system, user"),
        ({"conversations": [{"from": "gpt"}]}, "message 1 has None as its content"),
        (
            {"messages": [USER, {**TEA, "weight": 0.5}]},
            r"message 2 has the weight 0.5; it must be 0 \(not learned\) or 1",
        ),
        (
            {"messages": [USER, {**TEA, "tool_calls": [{}]}]},
            "message 2 has 'tool_calls', which is not learned",
        ),
        ({"messages": [{**USER, "name": "Ann"}, TEA]}, "message 1 has 'name', which is not learned"),
        ({"messages": [USER, TEA], "tools": [{}]}, "line 2 has 'tools', which is not learned"),
    ],
)
def test_errors_of_a_line_are_reported(tmp_path: Path, row: Any, words: str) -> None:
    spec = ConversationsSpec(source=file(tmp_path, [TALKS[1], row]))
    with pytest.raises(UserError, match=words) as error:
        prepare_conversations(spec, tokenizer=TOKENIZER)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("conversations/*"))


BAD_ANSWER, FOLLOW_UP = {**TEA, "content": "BAD", "weight": 0}, {"role": "user", "content": "Again?"}


@pytest.mark.parametrize("weight", [1, True, None])
def test_answer_of_weight_0_is_context_and_not_a_target(tmp_path: Path, weight: object) -> None:
    path = file(tmp_path, [{"messages": [USER, BAD_ANSWER, FOLLOW_UP, {**TEA, "weight": weight, "tool_calls": None}]}])
    [conversation] = ConversationFile(path=Path(path)).examples()
    template = "{% for m in messages %}{{ m | length }}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}2assistant:{% endif %}"
    chat = ChatTemplate(template, TOKENIZER)
    ids, learnt = chat.encode_conversation(conversation.messages)
    assert TOKENIZER.decode(ids) == "2user:tea?\n2assistant:BAD\n2user:Again?\n2assistant:yes\n"
    assert TOKENIZER.decode([token for token, place in zip(ids, learnt, strict=True) if place]) == "yes\n"


def test_conversation_with_only_weight_0_is_skipped(tmp_path: Path) -> None:
    source = file(tmp_path, [*TALKS, {"messages": [USER, BAD_ANSWER]}])
    assert prepare_conversations(ConversationsSpec(source=source), tokenizer=TOKENIZER).skipped == 5


@pytest.mark.parametrize(
    ("rows", "name", "words"),
    [
        ([make_talk("a"), make_talk("b", "  ")], "a.jsonl", "has no conversation with an answer"),
        ([make_talk("a", "b")], "a.jsonl", "has only one prompt, which cannot be divided"),
        (["a,b", "1,2"], "a.csv", r"has no column 'prompt'; known: a, b \(rename it, or set data.prompt_field\)"),
        (["prompt,responses", "1,2"], "a.csv", r"; did you mean 'responses'.*; its columns: prompt, responses"),
        (["a"], "a.txt", "has none of the suffixes of conversations, .jsonl, .csv, .tsv"),
    ],
)
def test_files_without_conversations_are_rejected(tmp_path: Path, rows: list[Any], name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        prepare_conversations(ConversationsSpec(source=file(tmp_path, rows, name)), tokenizer=TOKENIZER)


def test_error_of_template_is_reported_with_its_line(tmp_path: Path) -> None:
    template = "{% if messages[0].content == 'question 4' %}{{ raise_exception('no fours') }}{% endif %}"
    with pytest.raises(UserError, match=r"line 5: the model's chat template rejects these messages: no fours"):
        prepare_conversations(ConversationsSpec(source=file(tmp_path, TALKS)), tokenizer=TOKENIZER, template=template)
    spec = ConversationsSpec(source=file(tmp_path, TALKS), chat_template=str(tmp_path / "none.jinja"))
    with pytest.raises(UserError, match=r"none\.jinja"):
        prepare_conversations(spec, tokenizer=TOKENIZER)
    assert not list((tmp_path / "cache").glob("conversations/*"))

"""Token ids of conversations: answers are encoded as they would be generated, and only answers are targets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.tokens import BPE, Characters, Tokenizer
from tercet.tokens.chat_template import ChatTemplate, plain_template

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<bos>system\nYou help.<eos>\n' }}{% endif %}"
    "{{'<bos>' + message['role'] + '\n' + message['content'] + '<eos>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
TOKENIZER = Tokenizer.train(BPE(vocab_size=300, bos=True, pad=True), ["user assistant hello there " * 9])
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "plain": plain_template(TOKENIZER)}
CHAT = {name: ChatTemplate(source, TOKENIZER) for name, source in TEMPLATES.items()}
TALK = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "there"},
    {"role": "user", "content": "why <eos> not"},
    {"role": "assistant", "content": "as <bos> said"},
]
parts = ["hi", " ", "\n", "<eos>", "<bos>", "eos>", "assistant", "[INST]", "é", "雨"]
words = st.lists(st.sampled_from(parts), min_size=1, max_size=6).map("".join)
turns = st.lists(st.tuples(words, words.filter(lambda text: text == text.strip() and text)), min_size=1, max_size=3)


def conversation(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    sides = [("user", "assistant")] * len(pairs)
    return [
        {"role": role, "content": content}
        for roles, pair in zip(sides, pairs, strict=True)
        for role, content in zip(roles, pair, strict=True)
    ]


@pytest.mark.parametrize("name", TEMPLATES)
@given(pairs=turns)
def test_only_answers_and_their_ends_are_targets(name: str, pairs: list[tuple[str, str]]) -> None:
    messages = conversation(pairs)
    ids, answers = CHAT[name].encode_conversation(messages)
    learnt = [token for token, answer in zip(ids, answers, strict=True) if answer]
    expected = [token for _, answer in pairs for token in (*TOKENIZER.encode(answer), TOKENIZER.eos_id)]
    assert learnt == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_prefix_of_an_answer_equals_the_served_prompt(name: str) -> None:
    ids, answers = CHAT[name].encode_conversation(TALK)
    first = answers.index(True)
    assert ids[:first] == CHAT[name].encode(TALK[:1])
    begins = [place for place in range(1, len(ids)) if answers[place] and not answers[place - 1]]
    assert begins[0] == first
    prompt_ids = CHAT[name].encode(TALK[:3])
    assert TOKENIZER.decode(ids[: begins[1]], skip_special=False) == TOKENIZER.decode(prompt_ids, skip_special=False)


def test_messages_after_the_last_answer_are_left_out() -> None:
    ids, _ = CHAT["chatml"].encode_conversation(TALK)
    assert CHAT["chatml"].encode_conversation([*TALK, {"role": "user", "content": "and"}])[0] == ids
    assert CHAT["chatml"].encode_conversation(TALK[:1]) == ([], [])


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
    ],
)
def test_template_that_rewrites_earlier_turns_is_rejected(source: str) -> None:
    with pytest.raises(UserError, match=r"writes message \d, an answer, differently from the prompt for it"):
        ChatTemplate(source, TOKENIZER).encode_conversation(TALK)


def test_plain_template_requires_an_end_token() -> None:
    endless = Tokenizer.train(Characters(alphabet="abc", eos=False), [])
    with pytest.raises(UserError, match="no eos token, and the model has no chat template"):
        plain_template(endless)


def test_plain_template_starts_texts_as_the_model_does() -> None:
    with_bos: Any = TOKENIZER.with_opening([TOKENIZER.bos_id or 0])
    ids, answers = ChatTemplate(plain_template(with_bos), with_bos).encode_conversation(TALK[:2])
    assert ids[0] == TOKENIZER.bos_id
    assert not answers[0]
    text = "user:\nhello\n\nassistant:\nthere<eos>\n\n"
    assert with_bos.decode(ids[1:], skip_special=False) == text

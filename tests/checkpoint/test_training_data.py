"""Data named by a card is used only if its hash matches; a URL in a card is never fetched."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tercet.checkpoint import Card, TrainedModel
from tercet.checkpoint.training_data import open_training_data
from tercet.config import UserError, parse, to_plain
from tercet.data import (
    ConversationsSpec,
    LabelsSpec,
    PairsSpec,
    TextSpec,
    prepare,
    prepare_conversations,
    prepare_labels,
    prepare_pairs,
)
from tercet.data.shards.remote_tokens import RemoteTokenFolder
from tercet.evaluate import evaluation_of
from tercet.models import (
    AnySpec,
    Classifier,
    DecoderOnlySpec,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    StackSpec,
    build,
)
from tercet.tokens import Characters, Tokenizer

TOKENIZER = Tokenizer.train(Characters(alphabet="abcde \n", bos=True, eos=True, pad=True), [])
STACK = StackSpec(d_model=6, n_layers=1, n_heads=2)
SIZES: Any = {"vocab_size": TOKENIZER.vocab_size, "max_len": 7}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
HASH = "0" * 64  # of another file


@dataclass(frozen=True)
class Kind:
    """A kind of training data: a model for it, the file, and its hash as recorded in training."""

    model: AnySpec
    file: str
    content: str
    hash: Callable[[dict[str, Any]], str]
    task: str = "language"
    flags: str = "--data PATH"


PAIRS = [("cab", "bad"), ("bead", "dab"), ("ace", "bed"), ("cad", "deed")]
KINDS = {
    "text": Kind(
        DecoderOnlySpec(**SIZES, stack=STACK), "a.txt", "abc de cab\n" * 9,
        lambda data: prepare(parse(TextSpec, data), tokenizer=TOKENIZER).hash,
    ),
    "pairs": Kind(
        EncoderDecoderSpec(**SIZES, encoder=STACK, decoder=STACK), "a.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS),
        lambda data: prepare_pairs(parse(PairsSpec, data), tokenizer=TOKENIZER).hash,
        flags="--source FILE --target FILE",
    ),
    "labels": Kind(
        EncoderOnlySpec(**SIZES, stack=STACK, masked_head=None, classifier=Classifier(labels=("a", "b"))), "a.jsonl",
        "".join(json.dumps({"text": a * n, "label": b}) + "\n" for n in (1, 2, 3) for a, b in (("c", "a"), ("d", "b"))),
        lambda data: prepare_labels(parse(LabelsSpec, data), tokenizer=TOKENIZER).hash,
    ),
    "chat": Kind(
        DecoderOnlySpec(**SIZES, stack=STACK), "a.jsonl",
        "".join(json.dumps({"prompt": a, "response": b}) + "\n" for a, b in PAIRS),
        lambda data: prepare_conversations(parse(ConversationsSpec, data), tokenizer=TOKENIZER, template=TEMPLATE).hash,
        task="chat",
    ),
}  # fmt: skip
READERS: dict[str, Callable[[TrainedModel], Any]] = {
    "open": open_training_data,
    "evaluate": lambda trained_model: evaluation_of(trained_model).load_held_out(),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a home folder that differs from the current folder."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def model_with_card(kind: str, data: dict[str, Any], data_hash: str) -> TrainedModel:
    card = Card(recipe={"task": {"kind": KINDS[kind].task}, "data": data}, data_hash=data_hash)
    template = TEMPLATE if kind == "chat" else None
    return TrainedModel.wrap(
        build(KINDS[kind].model), TOKENIZER, card=card, chat_template=template, folder=Path("theirs/best")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_card_data_with_another_hash_is_not_used(kind: str, home: Path, tmp_path: Path) -> None:
    (home / KINDS[kind].file).write_text(KINDS[kind].content)
    data = {"source": f"~/{KINDS[kind].file}"}
    for data_hash, reason in ((HASH, "has changed since the training"), ("", "has no data_hash in its card.json")):
        for name, read in READERS.items():
            with pytest.raises(
                UserError, match=f"{reason}.*; to use other data: tercet evaluate .* {KINDS[kind].flags}$"
            ):
                read(model_with_card(kind, data, data_hash))
            assert not (tmp_path / "cache").exists(), name  # nothing was tokenized


@pytest.mark.parametrize("kind", KINDS)
def test_card_data_with_its_hash_is_used(kind: str, home: Path) -> None:
    (home / KINDS[kind].file).write_text(KINDS[kind].content)
    data = {"source": f"~/{KINDS[kind].file}"}
    expected = KINDS[kind].hash(data)
    training_data = open_training_data(model_with_card(kind, data, expected))
    assert training_data is not None
    assert training_data.hash == expected
    assert READERS["evaluate"](model_with_card(kind, data, expected))


@pytest.mark.parametrize(
    "data",
    [
        {"source": "memory://theirs"},
        {"source": "a.txt", "validation": {"kind": "held_out", "source": "memory://theirs"}},
        {"source": "a.txt", "mixture": [{"source": "memory://theirs", "weight": 0.5}]},
    ],
)
def test_card_url_is_not_fetched(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteTokenFolder, "__init__", lambda self, url, group: pytest.fail(f"{url} was fetched"))
    (tmp_path / "a.txt").write_text(KINDS["text"].content)
    for read in READERS.values():
        with pytest.raises(
            UserError,
            match=r"trained on memory://theirs, which is not on this machine; to use other data: tercet evaluate ",
        ):
            read(model_with_card("text", data, HASH))


def test_card_without_folders_names_no_folder_of_a_mixture() -> None:
    data = {"source": "/home/me/a", "mixture": [{"source": "/home/me/b", "weight": 0.5}]}
    card = replace(model_with_card("text", data, "").card, data_name="/home/me/a")
    assert "/home" not in json.dumps(to_plain(card.remove_folders()))
    assert card.strip_folders("of /home/me/a and /home/me/b") == "of ./a and ./b"

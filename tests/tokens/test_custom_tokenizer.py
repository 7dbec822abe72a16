"""Tokenizers of other packages: they are opened from JSON, and faults are reported by the name of the part."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from tercet.config import UserError, parse, to_plain
from tercet.custom_code import source_hash
from tercet.data import TextSpec
from tercet.spec import VocabularySize, spec
from tercet.tokens import CustomTokenizer, Tokenizer


@spec
class Vowels(CustomTokenizer):
    """One token per letter of `aeiou`, and <eos>."""

    vocab_size: VocabularySize = 8

    def train(self, texts: Iterable[str]) -> tokenizers.Tokenizer:
        letters = sorted({letter for text in texts for letter in text} & set("aeiou"))
        names = ["<eos>", "<unk>", *letters][: self.vocab_size]
        library = tokenizers.Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
        library.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        library.add_special_tokens(["<eos>"])
        return library


def returning(function: Any) -> CustomTokenizer:
    @spec
    class Part(CustomTokenizer):
        def train(self, texts: Iterable[str]) -> tokenizers.Tokenizer:
            return function(texts)

    return Part()


class PythonSplit:
    def pre_tokenize(self, text: Any) -> None:
        text.split(" ", "removed")


def with_python_part(texts: Iterable[str]) -> tokenizers.Tokenizer:
    library = Vowels().train(texts)
    library.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(PythonSplit())
    return library


def with_large_id(texts: Iterable[str]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1 << 30}, unk_token="<unk>"))


def test_training_reads_the_texts_once_and_applies_the_settings() -> None:
    tokenizer = Tokenizer.train(Vowels(vocab_size=4), iter(["a tie", "toe"]))
    assert tokenizer.encode("aeo") == [2, 3, 1]
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (4, 0)


def test_recipe_has_its_path_and_settings() -> None:
    settings = {"source": "x.txt", "tokenizer": {"kind": Vowels.kind, "vocab_size": 5}}
    data = parse(TextSpec, settings)
    assert data.tokenizer == Vowels(vocab_size=5)
    assert to_plain(data)["tokenizer"] == settings["tokenizer"]
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=-1 must be at least 0"):
        parse(TextSpec, {"source": "x.txt", "tokenizer": {"kind": Vowels.kind, "vocab_size": -1}})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda texts: None, "cannot train the tokenizer: 'NoneType' object has no attribute 'to_str'"),
        (lambda texts: [][0], "cannot train the tokenizer: list index out of range"),
        (with_python_part, "cannot train the tokenizer: .*cannot be serialized"),
        (with_large_id, "the tokenizer cannot be opened from its tokenizer.json"),
    ],
)
def test_wrong_tokenizer_is_rejected_by_its_name(function: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"test_custom_tokenizer:.*Part: {message}"):
        Tokenizer.train(returning(function), ["a"])


def test_error_of_the_texts_is_not_attributed_to_the_tokenizer() -> None:
    def unreadable() -> Iterable[str]:
        yield "a"
        raise UserError("x.txt line 2: not UTF-8")

    with pytest.raises(UserError, match=r"^x.txt line 2: not UTF-8$"):
        Tokenizer.train(Vowels(), unreadable())


def test_source_hash_is_that_of_the_file() -> None:
    assert len(source_hash(Vowels())) == 64
    assert json.loads(Tokenizer.train(Vowels(), ["a"]).to_json())["model"]["vocab"] == {"<eos>": 0, "<unk>": 1, "a": 2}

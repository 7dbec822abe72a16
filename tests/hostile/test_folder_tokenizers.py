"""Tokenizers that claim huge sizes, take endless time or make the library panic."""

import io
import json
import random
import struct
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

sys.path.append(str(Path(__file__).parent))

from attack import attack_function
from folder_copies import assert_rejected, copy_folder
from hurt_folders import BYTES

from tercet.config import UserError
from tercet.tokens import Tokenizer, gguf, gpt2, trainers
from tercet.tokens.patterns import check_pattern
from tercet.tokens.sentencepiece import read_pieces
from tercet.tokens.structure import check_table


@pytest.fixture
def copy_model(tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: copy_folder(kind, tmp_path)


EVIL = (
    r"(a+)+$",
    r"(a|aa)+$",
    r"a*a*a*b",
    r"a*b",
    r"(a?){50}a{50}",
    r"\s+$",
    r"(?=(a+)+b)a",
    r"(?<=a*)b",
    r"((a*)*)*b",
    r"(\p{L}+\s?)+!",
    r"\1(a)",
    r"(?R)",
    "",
    "a" * 10_000,
    r"\s*[\r\n]+| |\s+",
    r"[a-z&&[^aeiou]]+x",
    r"a{1,9}a{1,9}a{1,9}b",
    r"(x+x+)+y",
)


@pytest.mark.parametrize("pattern", EVIL)
def test_a_pattern_with_unbounded_time_is_rejected(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        check_pattern(pattern)


@pytest.mark.slow
def test_accepted_patterns_are_fast_on_any_text() -> None:
    patterns = [
        gpt2.PATTERN,
        trainers.WORD,
        trainers.CLASS_RUN,
        gguf.LLAMA_SPLIT,
        gguf.GPT2_SPLIT,
        " {2,}",
        r"\w+|[^\w\s]+",
    ]
    texts = [
        "a" * 10**5,
        " " * 10**5 + "a",
        "\n" * 10**5 + "a",
        "a-" * 10**5,
        "'s" * 10**5,
        "1" * 10**5,
        "! " * 10**5,
        "A" * 10**5,
    ]

    def work() -> int:
        for pattern in patterns:
            check_pattern(pattern)
            library = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
            library.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
            for text in texts:
                library.encode_batch_fast([text])
        return 0

    outcome = attack_function(work, seconds=40)
    assert outcome.code == 0, outcome.stderr[-2000:]


@pytest.mark.slow
def test_tokenizers_that_claim_too_much(copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("ours steps")
    path = folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    model = whole["model"]
    token = whole["added_tokens"][0]
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}
    template = whole["post_processor"]

    def change(**parts: Any) -> Callable[[], None]:
        return lambda: path.write_text(json.dumps({**whole, **parts})) and None

    changes = {
        **{
            f"id {n}": change(model={**model, "vocab": {**model["vocab"], "x": n}})
            for n in (-1, 2**20, 2**32 - 1, 2**40)
        },
        **{f"added id {n}": change(added_tokens=[{**token, "id": n}]) for n in (-1, 2**32 - 1, 2**40, "x", None)},
        "merges of nothing": change(model={**model, "merges": [["zz", "qq"]]}),
        "merges of one": change(model={**model, "merges": [["a"]]}),
        "no model": change(model={"type": "X"}),
        "a long token": change(model={**model, "vocab": {**model["vocab"], "a" * 5000: 4}}),
        "a normalizer that grows": change(normalizer={"type": "Sequence", "normalizers": [grows] * 5}),
        "a step that writes a page": change(normalizer={**grows, "content": "a" * 10**5}),
        "many steps": change(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}),
        "steps in steps": change(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Sequence",
                        "pretokenizers": [{"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}] * 20,
                    }
                ],
            }
        ),
        "nothing replaced": change(normalizer={**grows, "pattern": {"String": ""}}),
        "a table": change(
            normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}, model={**model, "vocab": {}}
        ),
        "opening": change(
            post_processor={**template, "special_tokens": {"<s>": {"id": "<s>", "ids": [10**6], "tokens": ["<s>"]}}}
        ),
        "no such special token": change(post_processor={**template, "special_tokens": {}}),
        **{
            f"split {n}": change(
                pre_tokenizer={"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            )
            for n, regex in enumerate(EVIL)
        },
        **{
            f"replace {n}": change(normalizer={**grows, "pattern": {"Regex": regex}, "content": "b"})
            for n, regex in enumerate(EVIL)
        },
        **{
            f"decoder {n}": change(decoder={**grows, "pattern": {"Regex": regex}, "content": "b"})
            for n, regex in enumerate(EVIL)
        },
    }
    assert_rejected(changes, folder)


@pytest.mark.slow
def test_the_word_length_of_wordpiece_is_limited(copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("ours encoder")
    path = folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    model = {**whole["model"], "max_input_chars_per_word": 10**9}
    assert_rejected({"long words": lambda: path.write_text(json.dumps({**whole, "model": model})) and None}, folder)


def test_a_panic_of_the_library_becomes_an_ordinary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    tokenizer = Tokenizer.from_json(BYTES.to_json())

    class Panics:
        def encode_batch_fast(self, *_: Any, **__: Any) -> Any:
            raise PanicException("called `Option::unwrap()` on a `None` value\nmore")

        decode = encode_batch_fast

    tokenizer._library, tokenizer._table = Panics(), None  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"cannot split this text: .*Option::unwrap.*; use another"):
        tokenizer.encode("a")
    with pytest.raises(UserError, match=r"cannot join these tokens: .*Option::unwrap.*; use another"):
        tokenizer.decode([0])


PANICS = {
    "no table": ({"normalizer": {"type": "Precompiled"}}, "has no table"),
    "a table that is null": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": None}}, "has no table"),
    "an empty table": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "is truncated"),
    "pieces of no length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "parts of length 0"),
    "an end that is cut off": ({"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 2}}, "strips 2"),
    "in a sequence": (
        {"decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": "a", "start": 0, "stop": 2}]}},
        "strips 2",
    ),
}


@pytest.mark.parametrize("case", PANICS)
def test_files_that_would_panic_the_library_are_rejected_first(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    changes, reason = PANICS[case]
    whole = json.loads(BYTES.to_json())
    with pytest.raises(ValueError, match=reason):
        Tokenizer.from_json(json.dumps({**whole, **changes}))
    assert capfd.readouterr().err == ""


def small_table(texts: Mapping[str, bytes]) -> bytes:
    """Return a character table in the format of sentencepiece that maps ASCII characters to texts."""
    units, ends, root = [0] * 512, b"", 256
    units[0] = root << 10
    for character, text in texts.items():
        place, child = root ^ ord(character), len(units)
        units += [0] * 256
        units[place] = (place ^ child) << 10 | 1 << 8 | ord(character)
        units[child] = 1 << 31 | len(ends)
        ends += text + b"\0"
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + ends


def library_accepts(table: bytes) -> bool:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": b64encode(table).decode()}
    with suppress(BaseException):
        library = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        library = tokenizers.Tokenizer.from_str(json.dumps({**json.loads(library.to_str()), "normalizer": normalizer}))
        library.encode("".join(map(chr, range(1, 200))))
        return True
    return False


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc_cf", "identity"])
def test_tables_of_sentencepiece_are_accepted(rule: str, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model_file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world", "a b c d e f"] * 100), model_writer=model_file, vocab_size=15,
        normalization_rule_name=rule, minloglevel=2,
    )  # fmt: skip
    path = tmp_path / "source.spm"
    path.write_bytes(model_file.getvalue())
    assert bool(read_pieces(path).table) == (rule != "identity")


@pytest.mark.slow
def test_accepted_character_tables_do_not_panic(capfd: pytest.CaptureFixture[str]) -> None:
    """The library accepts all tables that are accepted here without a panic. Intact tables are accepted."""
    whole = small_table({"a": b"xyz", "b": "\u00fc".encode(), "!": b""})
    check_table(whole)
    assert library_accepts(whole)
    chance, outcomes = random.Random(0), Counter[tuple[bool, bool]]()
    units = [0, *(256 ^ ord(character) for character in "ab!"), 512, 768, 1024]
    for _ in range(400):
        table = bytearray(whole)
        for _ in range(chance.choice([1, 2, 5])):
            place = chance.choice([chance.randrange(4), 4 * chance.choice(units) + chance.randrange(4, 8), -2, -4, -8])
            table[place] = chance.randrange(256)
        if chance.random() < 0.1:
            del table[chance.randrange(len(table)) :]
        try:
            check_table(bytes(table))
            outcomes[True, library_accepts(bytes(table))] += 1
        except ValueError:
            outcomes[False, library_accepts(bytes(table))] += 1
    capfd.readouterr()
    assert not outcomes[True, False]
    assert outcomes[False, True] < 40 < outcomes[True, True], outcomes
    assert outcomes[False, False] > 40, outcomes


@pytest.mark.slow
def test_label_names_are_counted_once(copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("ours encoder")
    config = json.loads((folder / "config.json").read_text())
    labels = [str(number) for number in range(300_000)]
    classifier = {"labels": labels, "over": "texts", "pooling": "mean", "dropout": 0.0}
    claim = json.dumps({**config, "classifier": classifier})
    assert_rejected({"labels": lambda: (folder / "config.json").write_text(claim) and None}, folder)

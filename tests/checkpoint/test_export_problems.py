"""Before training, `export_problems` predicts for each format whether the conversion rejects the model, and why."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from converted import save_folder

import tercet
from tercet.checkpoint import Card, convert, save_model
from tercet.checkpoint.conversion import WRITERS
from tercet.checkpoint.export_problems import LIKE_HF, PROBLEMS, describe_export_problems, export_problems
from tercet.cli.main import main
from tercet.config import UserError
from tercet.models import (
    PRESETS,
    AnySpec,
    Classifier,
    DecoderOnlySpec,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
    build,
)
from tercet.nn import ALiBi, NoPosition, RelativeBias, Rotary, Sinusoidal
from tercet.tokens import Characters, Tokenizer

GPT2 = StackSpec(d_model=24, n_layers=1, n_heads=4, d_ff=20, activation="gelu_tanh")
LLAMA = replace(GPT2, position=Rotary(), norm="rms", norm_bias=False, bias=False, gated=True, activation="silu")
POST = replace(GPT2, placement="post", position=Sinusoidal(), activation="relu")
T5 = replace(LLAMA, position=RelativeBias(), gated=False, activation="relu")


def decoder(stack: StackSpec, **settings: Any) -> DecoderOnlySpec:
    return DecoderOnlySpec(vocab_size=31, max_len=9, stack=stack, **settings)


def encoder(stack: StackSpec, **settings: Any) -> EncoderOnlySpec:
    spec = EncoderOnlySpec(vocab_size=31, max_len=9, stack=stack, embedding_norm=True, masked_head=None)
    return replace(spec, **settings)


def translator(stack: StackSpec, **settings: Any) -> EncoderDecoderSpec:
    return EncoderDecoderSpec(vocab_size=31, max_len=9, encoder=stack, decoder=stack, **settings)


SPECS: tuple[tuple[Callable[[], AnySpec], set[str]], ...] = (  # with the formats that do not support it
    (lambda: decoder(GPT2), set()),
    (lambda: decoder(LLAMA), set()),
    (lambda: decoder(replace(LLAMA, qk_norm=True, norm_eps=1e-6)), set()),
    (lambda: decoder(replace(LLAMA, activation="gelu")), {"gguf"}),
    (lambda: decoder(replace(LLAMA, gated=False, activation="relu_squared")), {"ctranslate2"}),
    (lambda: decoder(replace(GPT2, position=ALiBi())), {"hf", "gguf"}),
    (lambda: decoder(replace(GPT2, parallel=True)), {"hf", "gguf"}),
    (lambda: decoder(replace(GPT2, parallel="separate_norms", position=Rotary())), {"gguf"}),
    (lambda: decoder(replace(GPT2, position=NoPosition(), final_norm=False)), {"ctranslate2", "gguf"}),
    (lambda: translator(replace(POST, position=NoPosition()), embedding_norm=True), {"gguf"}),
    (lambda: decoder(LLAMA, logit_softcap=15.0), {"hf", "gguf"}),
    (lambda: encoder(replace(POST, position=NoPosition())), {"gguf"}),
    (lambda: encoder(LLAMA), set()),
    (lambda: encoder(POST, masked_head=MaskedHead(transform=False)), {"hf", "gguf"}),
    (lambda: encoder(POST, pooler=True, pooler_activation="relu"), {"hf", "gguf"}),
    (lambda: encoder(POST, classifier=Classifier(labels=("a", "b"))), {"hf", "ctranslate2", "gguf"}),
    (lambda: decoder(replace(LLAMA, qk_norm="all_heads", placement="branch")), {"ctranslate2", "gguf"}),
    (
        lambda: decoder(
            replace(LLAMA, attention_softcap=5.0, placement="sandwich", activation="gelu_tanh"), scale_embedding=True
        ),
        {"ctranslate2", "gguf"},
    ),
    (lambda: encoder(replace(LLAMA, norm="layer", first_norm=False)), {"ctranslate2"}),
    (lambda: encoder(replace(LLAMA, norm="layer", first_norm=False, activation="relu")), {"ctranslate2", "gguf"}),
    (
        lambda: encoder(replace(LLAMA, norm="layer", first_norm=False), classifier=Classifier(labels=("a", "b"))),
        {"ctranslate2"},
    ),
    (lambda: translator(POST, scale_embedding=True), {"gguf"}),
    (lambda: translator(T5), {"gguf"}),
    (lambda: translator(replace(LLAMA, qk_norm=True)), {"hf", "ctranslate2", "gguf"}),
)


def test_every_format_is_checked() -> None:
    assert PROBLEMS.keys() == WRITERS.keys()


@pytest.mark.parametrize(("make_spec", "unsupported"), SPECS)
def test_formats_of_a_spec(make_spec: Callable[[], AnySpec], unsupported: set[str]) -> None:
    problems = export_problems(make_spec())
    assert problems.keys() - {*LIKE_HF} == unsupported
    assert problems.get("peft") in (problems.get("hf"), ["classifier.transform: false"])
    assert all(": " in line for lines in problems.values() for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "make_spec", "unsupported"),
    [  # tests of the formats convert many supported models
        pytest.param(to, *case, marks=() if to in case[1] or number < 2 else pytest.mark.exhaustive)
        for to in ("hf", "ctranslate2", "gguf")
        for number, case in enumerate(SPECS)
    ],
)
def test_conversion_rejects_the_same_properties(
    to: str, make_spec: Callable[[], AnySpec], unsupported: set[str], tmp_path: Path
) -> None:
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2")
    spec = make_spec()
    folder = _save_folder(tmp_path / "ours", spec)
    if to not in unsupported:
        convert(folder, tmp_path / "theirs", to)
        return
    with pytest.raises(UserError) as error:
        convert(folder, tmp_path / "theirs", to)
    for problem in export_problems(spec)[to]:
        assert problem.replace(": ", " is ") in str(error.value)


def _save_folder(folder: Path, spec: AnySpec) -> Path:
    if isinstance(spec, EncoderDecoderSpec):
        return save_folder(folder, build(spec))
    tokenizer = Tokenizer.train(Characters(bos=isinstance(spec, EncoderOnlySpec), eos=True), ["abc"])
    save_model(folder, build(replace(spec, vocab_size=tokenizer.vocab_size)), tokenizer, Card())
    return folder


def test_tokenizer_is_checked_too() -> None:
    spec = decoder(GPT2)
    assert export_problems(spec, Tokenizer.train(Characters(eos=True), ["abc"])) == export_problems(spec)
    without_end = Tokenizer.train(Characters(eos=False), ["abc"])
    assert export_problems(spec, without_end)["gguf"] == [
        "the tokenizer has no end token, and llama.cpp would use another token"
    ]
    assert export_problems(replace(spec, logit_softcap=15.0), without_end)["ctranslate2"] == ["logit_softcap: 15.0"]
    not_ascii = Tokenizer.train(Characters(eos=True), ["ä"])
    assert "'ä' but not its bytes" in export_problems(spec, not_ascii)["gguf"][0]


@pytest.mark.parametrize(
    ("problems", "text"),
    [
        ({}, None),
        ({"gguf": ["family: encoder-decoder"]}, None),
        ({"ctranslate2": ["classifier: set"], "gguf": ["family: encoder-only"]}, None),
        (
            {"hf": ["p: alibi"], "gguf": ["p: alibi"], "peft": ["p: alibi"]},
            "cannot be converted to hf or gguf (p: alibi)",
        ),
        (
            {"hf": ["a: 1", "b: 2", "c: 3", "d: 4", "e: 5"], "ctranslate2": ["a: 1"]},
            "cannot be converted to hf (a: 1, b: 2, c: 3 and 2 more) or ctranslate2 (a: 1)",
        ),
    ],
)
def test_description_names_relevant_formats(problems: dict[str, list[str]], text: str | None) -> None:
    assert describe_export_problems(problems) == text


@pytest.mark.slow
def test_start_of_training_reports_formats_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("".join(f"{n} and {m}.\n" for n in range(9) for m in range(9)))
    stack = "{d_model: 16, n_layers: 1, n_heads: 2, activation: gelu_tanh, position: alibi}"
    sets = (
        f"model={{preset: gpt2, max_len: 8, stack: {stack}}}",
        "task={batch_size: 4, micro_batch_size: 4, sample_tokens: 2}",
        "data.tokenizer={kind: characters, eos: true}",
        "training={max_steps: 1, max_epochs: null, compile: never}",
    )
    flags = [part for value in sets for part in ("--set", value)]

    def report(*arguments: str) -> list[str]:
        assert main(["train", *arguments]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if "cannot be converted" in line]

    command = ("nanogpt-cpu", "--data", str(text), *flags)
    assert report(*command, "--out", str(run)) == [
        "this model cannot be converted to hf or gguf (stack.position: alibi)"
    ]
    assert report(str(run), "--more", "1") == []
    assert report(*command, "--out", str(tmp_path / "quiet"), "--quiet") == []


def test_inspect_lists_the_formats(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = decoder(replace(GPT2, position=ALiBi()))
    monkeypatch.setitem(PRESETS, "gpt2", spec)
    assert main(["inspect", "gpt2"]) == 0
    assert "this model cannot be converted to hf or gguf (stack.position: alibi)" in capsys.readouterr().out


def test_public_name() -> None:
    assert tercet.export_problems is export_problems

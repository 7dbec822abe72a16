"""`tercet inspect RUN --prompt`: the logit lens of a prompt as a table and as JSON, and one line per error."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from tercet.checkpoint import Card, load_model, save_model
from tercet.cli import inspect as verb
from tercet.cli.main import main
from tercet.inspect import read
from tercet.models import (
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.tokens import Characters, Tokenizer

STACK = StackSpec(d_model=24, n_layers=3, n_heads=4, d_ff=31)
TOKENIZER = Tokenizer.train(Characters(alphabet="abc <[]/>", pad=True, bos=True, eos=True, mask=True), [])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    common: dict[str, Any] = {"vocab_size": TOKENIZER.vocab_size, "max_len": 13}
    models = {
        "gpt": DecoderOnly(DecoderOnlySpec(stack=STACK, **common)),
        "bert": EncoderOnly(EncoderOnlySpec(stack=STACK, masked_head=MaskedHead(transform=True), **common)),
        "mute": EncoderOnly(EncoderOnlySpec(stack=STACK, masked_head=None, **common)),
        "both": EncoderDecoder(EncoderDecoderSpec(encoder=STACK, decoder=STACK, **common)),
    }
    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(4)
    for name, model in models.items():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.3)
        save_model(folder / name, model, TOKENIZER, Card(name=name))
    return {name: str(folder / name) for name in models}


def inspect_prompt(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_a_row_for_each_token_and_a_column_for_each_block(runs: dict[str, str], capsys) -> None:
    out = inspect_prompt(capsys, runs["gpt"], "--prompt", "ab [/b]", "--top", "2").splitlines()
    assert out[0].split() == ["row", "token", "id", "loss", "embedding", "block", "0", "block", "1", "block", "2"]
    rows = [line for line in out if line[:3].strip().isdecimal()]
    assert [line[5:13].strip() for line in rows] == ["a", "b", "(space)", "[", "/", "b", "]"]  # [/b] is not markup
    assert len(out[1 : out.index("")]) == 2 * len(rows)
    assert any("mean loss: " in line for line in out)
    assert not any("parameters" in line for line in out)


@pytest.mark.slow
def test_one_object_with_the_table_and_the_path(runs: dict[str, str], capsys) -> None:
    answer = json.loads(inspect_prompt(capsys, runs["gpt"], "--prompt", "abca", "--json", "--top", "3", "--heads"))
    assert answer["parameters"] > 0
    path = answer["prompt"]
    assert [token["text"] for token in path["sides"]["stack"]] == list("abca")
    assert path["lens"]["names"] == ["stack.dropout", *(f"stack.blocks.{i}" for i in range(3))]
    assert [[len(cell) for cell in row] for row in path["lens"]["rows"]] == [[3] * 4] * 4
    recording = read(load_model(runs["gpt"]), "abca")
    assert recording.logits is not None
    for row, logits in zip(path["lens"]["rows"], recording.logits, strict=True):
        assert row[-1][0]["id"] == int(logits.argmax())
        assert row[-1][0]["probability"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-6)
    losses = path["loss"]["tokens"]
    assert losses[-1] is None
    assert path["loss"]["mean"] == pytest.approx(sum(losses[:-1]) / 3)
    assert [row["name"] for row in answer["heads"]] == [f"stack.blocks.{i}.self_attention" for i in range(3)]
    assert all(len(row[kind]) == 4 for row in answer["heads"] for kind in ("previous", "induction", "ablation"))


@pytest.mark.slow
@pytest.mark.parametrize("short", ["1.3", "stack.blocks.1.self_attention.heads:3"])
def test_a_head_at_zero(short: str, runs: dict[str, str], capsys) -> None:
    arguments = (runs["gpt"], "--prompt", "abca", "--ablate", short)
    answer = json.loads(inspect_prompt(capsys, *arguments, "--heads", "--json"))
    plain = json.loads(inspect_prompt(capsys, runs["gpt"], "--prompt", "abca", "--heads", "--json"))
    ablation = answer["ablated"]
    assert ablation["loss_before"] == pytest.approx(plain["prompt"]["loss"]["mean"])
    assert ablation["loss_after"] == pytest.approx(answer["prompt"]["loss"]["mean"])
    rise = plain["heads"][1]["ablation"][3]
    assert ablation["loss_after"] - ablation["loss_before"] == pytest.approx(rise, abs=1e-5)
    assert answer["heads"][1]["ablation"][3] == 0.0  # its effect is already removed
    output = inspect_prompt(capsys, *arguments)
    assert f"with {short} set to zero, the loss goes from {ablation['loss_before']:.4f} to" in output.replace("\n", " ")
    assert "before" in output.splitlines()[0]


@pytest.mark.slow
def test_masks_and_both_sides_of_a_translator(runs: dict[str, str], capsys) -> None:
    out = inspect_prompt(capsys, runs["bert"], "--prompt", "a[MASK]c", "--ablate", "0.1", "--heads")
    assert "predicted token if the model ended" in out
    assert "loss" not in out
    assert "induction" not in out.replace("what followed", "")
    assert "with 0.1 set to zero, largest change:" in out
    out = inspect_prompt(
        capsys, runs["both"], "--prompt", "ab", "--target", "ca", "--ablate", "encoder.blocks.0.feedforward"
    )
    assert "the encoder reads 3 tokens, with their ids: a" in out
    rows = [line.split()[1] for line in out.splitlines() if line[:3].strip().isdecimal()]
    assert rows == ["<bos>", "c", "a"]
    out = inspect_prompt(capsys, runs["mute"], "--prompt", "ab")
    assert "no language-model head" in out


@pytest.mark.slow
def test_the_parts_of_a_logit(runs: dict[str, str], capsys) -> None:
    answer = json.loads(
        inspect_prompt(capsys, runs["gpt"], "--prompt", "abca", "--attribution", "b", "--at", "1", "--json")
    )
    attribution = answer["attribution"]
    assert (attribution["row"], attribution["text"]) == (1, "b")
    recording = read(load_model(runs["gpt"]), "abca")
    assert recording.logits is not None
    assert sum(attribution["values"]) == pytest.approx(attribution["logit"], abs=1e-6)
    assert attribution["logit"] == pytest.approx(float(recording.logits[1, TOKENIZER.encode("b")[0]]), abs=1e-4)
    out = inspect_prompt(capsys, runs["gpt"], "--prompt", "abca", "--attribution")
    assert "at row 3 (a) as a sum over the parts" in out
    assert f"{float(recording.logits[3].max()):+.3f}" in out


def test_a_single_token_has_no_loss_yet(runs: dict[str, str], capsys) -> None:
    out = inspect_prompt(capsys, runs["gpt"], "--prompt", "a", "--ablate", "1.3", "--heads")
    assert "predicted next token" in out
    assert "with 1.3 set to zero, largest change:" in out
    assert "loss" not in out


def test_narrow_terminal_shows_last_blocks_with_a_note(runs: dict[str, str], capsys, monkeypatch) -> None:
    monkeypatch.setattr(verb, "WIDTH", 60)
    out = inspect_prompt(capsys, runs["gpt"], "--prompt", "ab")
    assert "block 2" in out.splitlines()[0]
    assert "embedding" not in out.splitlines()[0]
    assert "do not fit; widen the terminal" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gpt2 --prompt a", "gpt2 has no weights; pass the folder of a trained run"),
        ("gpt22 --prompt a", "no folder, preset or recipe is called 'gpt22'; did you mean 'gpt2'?"),
        ("animals --heads", "animals has no weights"),
        ("GPT --top 3", '--top requires --prompt "TEXT"; add it'),
        ("GPT --prompt a --top 0", "argument --top: 0 must be at least 1"),
        ("GPT --prompt a --at 0", "--at requires --attribution; add it"),
        ("GPT --prompt a --attribution --at 1", "row 1 is out of range; the tokens are rows 0 to 0"),
        ("GPT --prompt a --attribution ab", "'ab' is 2 tokens: 'a', 'b'; pass one token"),
        ("GPT --prompt a --ablate 3.0", "--ablate 3.0: block 3 is out of range; blocks are 0 to 2"),
        ("GPT --prompt a --ablate 1.4", "stack.blocks.1.self_attention.heads has no head 4; it has 4, 0 to 3"),
        ("GPT --prompt a --ablate stack.blocks.1:x", "expected heads after the colon, such as stack.blocks.1:3"),
        (
            "GPT --prompt a --ablate stack.blocks.7",
            "the model has no tensor to edit called 'stack.blocks.7'; did you mean",
        ),
        ("GPT --prompt a --target b", "a target is for translators"),
        ("GPT --prompt z", "'z'"),
        ("BERT --prompt a --attribution", "transform is not linear"),
        ("MUTE --prompt a --attribution", "has no language-model head, so there is no logit to attribute"),
        ("BOTH --prompt ''", "the text is empty"),
    ],
)
def test_mistakes_in_one_line(arguments: str, words: str, runs: dict[str, str], capsys) -> None:
    command = [runs.get(word.lower(), word) if word.isupper() else word for word in arguments.split()]
    assert main(["inspect", *("" if word == "''" else word for word in command)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err

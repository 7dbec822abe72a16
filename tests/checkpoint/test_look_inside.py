"""The explorer shows the attention weights and logits of `transformers` for a folder of that library."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from folders_of_others import shaken, write_folder
from weights_of_others import minilm

from tercet.checkpoint import load_model
from tercet.cli.main import main
from tercet.explorer import Answers

SIZES = {"vocab_size": 23, "pad_token_id": 0, "bos_token_id": None}


def gpt2() -> Any:
    config = transformers.GPT2Config(**SIZES, n_positions=19, n_embd=12, n_layer=3, n_head=3, eos_token_id=None)
    return shaken(transformers.GPT2LMHeadModel(config), 1)


def marian() -> Any:
    config = transformers.MarianConfig(
        **SIZES, d_model=12, max_position_embeddings=31, eos_token_id=2, decoder_start_token_id=0,
        encoder_layers=3, encoder_attention_heads=3, encoder_ffn_dim=17,
        decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=19,
    )  # fmt: skip
    return shaken(transformers.MarianMTModel(config), 2)


def numbers(packed: dict[str, Any]) -> np.ndarray:
    kinds = {"float32": "<f4", "uint16": "<u2", "uint8": "|u1"}
    array = np.frombuffer(base64.b64decode(packed["data"]), kinds[packed["type"]]).reshape(packed["shape"])
    return array if packed["type"] == "float32" else packed["low"] + packed["step"] * array.astype(np.float64)


def explore(folder: Path, body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the explorer's answer and the ids of each side."""
    look = Answers(load_model(folder)).answer("look", {"ask": body})
    return look, [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in look["sides"]]


def assert_maps(look: dict[str, Any], name: str, theirs: Any) -> None:
    for layer, weights in enumerate(theirs):
        packed = look["maps"][name.format(layer)]
        half = packed["step"] / 2 if packed["type"] != "float32" else 0
        assert numbers(packed) == pytest.approx(weights[0].numpy(), abs=1e-5 + half)


@torch.no_grad()
def test_explorer_matches_gpt2(tmp_path: Path) -> None:
    model = gpt2()
    look, (ids,) = explore(write_folder(tmp_path / "gpt2", model), {"text": "w5 w9 w9 w4 w22"})
    model.set_attn_implementation("eager")
    expected = model(ids, output_attentions=True)
    assert_maps(look, "stack.blocks.{}.self_attention.weights", expected.attentions)
    assert numbers(look["logits"]) == pytest.approx(expected.logits[0, -1].numpy(), abs=1e-4)


@torch.no_grad()
def test_explorer_matches_marian(tmp_path: Path) -> None:
    model = marian()
    look, (source, target) = explore(
        write_folder(tmp_path / "marian", model), {"text": "w5 w9 w4 w22", "target": "w7 w8"}
    )
    model.set_attn_implementation("eager")
    expected = model(input_ids=source, decoder_input_ids=target, output_attentions=True)
    assert_maps(look, "encoder.blocks.{}.self_attention.weights", expected.encoder_attentions)
    assert_maps(look, "decoder.blocks.{}.self_attention.weights", expected.decoder_attentions)
    assert_maps(look, "decoder.blocks.{}.cross_attention.weights", expected.cross_attentions)
    assert numbers(look["logits"]) == pytest.approx(expected.logits[0, -1].numpy(), abs=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_explorer_matches_a_pretrained_bert() -> None:
    look, (ids,) = explore(minilm(), {"text": "Attention is all you need."})
    model = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="eager")
    assert_maps(look, "stack.blocks.{}.self_attention.weights", model(ids, output_attentions=True).attentions)
    assert look["logits"] is None  # the model has no head for words


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["marian", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("gpt2", "bert"))]
)
def test_inspect_command_opens_the_folder(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = minilm() if family == "bert" else write_folder(tmp_path / family, gpt2() if family == "gpt2" else marian())
    prompt = "Attention is all you need." if family == "bert" else "w5 w9 w4"
    assert main(["inspect", str(folder)]) == 0, capsys.readouterr().err
    assert main(["inspect", str(folder), "--prompt", prompt]) == 0, capsys.readouterr().err
    assert main(["plot", str(folder), "attention", "--prompt", prompt, "--out", str(tmp_path / "a.svg")]) == 0
    page = tmp_path / "page.html"
    assert main(["explore", str(folder), "--prompt", prompt, "--export", str(page)]) == 0, capsys.readouterr().err
    assert page.stat().st_size > 100_000

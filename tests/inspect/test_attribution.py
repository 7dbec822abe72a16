"""Logit attribution: the parts sum to the logit for every architecture, and each part is correct."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pairwise import parametrize_pairs

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from small import PLACEMENTS, POSITIONS, V, encoder, model, translator

import tercet.inspect.attribution as attribution_file
from tercet.inspect import Attribution, attribute
from tercet.models import AnyModel, Edit, EncoderDecoder, MaskedHead, record

IDS, ROW, POSITION = [0, 3, 16, 3], 2, 4


def parts(any_model: AnyModel, *edits: Edit) -> tuple[Attribution, Tensor, dict[str, Tensor]]:
    """Return the attribution of a random text's logits, the logits before the softcap, and the recording."""
    inputs = torch.randint(V, (3, 5)), torch.randint(V, (3, 7))
    with record(any_model, edits=edits) as activations:
        _ = any_model(*inputs) if isinstance(any_model, EncoderDecoder) else any_model(inputs[1])
    stack = "decoder" if isinstance(any_model, EncoderDecoder) else "stack"
    logits = torch.nn.functional.linear(
        activations[f"{stack}.final_norm"], any_model.unembedding.weight, any_model.unembedding.bias
    )
    attribution = attribute(any_model, activations, position=POSITION, ids=IDS, row=ROW)
    return attribution, logits[ROW, POSITION, IDS].detach(), activations


def of(attribution: Attribution, name: str) -> Tensor:
    return attribution.values[attribution.names.index(name)]


@parametrize_pairs(family=[model, translator, encoder], norm=["layer", "rms"], placement=list(PLACEMENTS))
def test_the_parts_sum_to_the_logit(family, norm: str, placement: str) -> None:
    number = PLACEMENTS.index(placement) + (norm == "rms")
    variant = {
        "placement": placement, "norm": norm, "norm_bias": norm == "layer", "norm_eps": 0.03,
        "n_kv_heads": (1, 2, 4)[number % 3], "gated": number % 2 == 0, "bias": number % 3 > 0,
        "qk_norm": number % 2 == 1, "position": POSITIONS[number % 5],
    }  # fmt: skip
    spec = {
        "scale_embedding": number % 2 == 1, "embedding_norm": number % 3 == 0, "pad_vocab_to": 8,
        "tie_embeddings": number % 2 == 0, "logit_softcap": 3.0,
    } | ({"n_segments": 2, "masked_head": MaskedHead(bias=True)} if family is encoder else {})  # fmt: skip
    attribution, logits, _ = parts(family(**variant, spec=spec))
    torch.testing.assert_close(attribution.logits.float(), logits, atol=1e-4, rtol=0)
    assert logits.abs().max() > 0.1
    assert of(attribution, "rest").abs().max() < 1e-4
    assert attribution.values.shape == (len(attribution.names), len(IDS))
    assert torch.equal(attribution.values[:, 1], attribution.values[:, 3])
    kinds = ("", "cross ") if family is translator else ("",)
    layers = 3 if family is translator else 2
    heads = {f"blocks.{i} {kind}head {h}" for i in range(layers) for kind in kinds for h in range(4)}
    biases = {f"blocks.{i} {kind}attention bias" for i in range(layers) for kind in kinds if variant["bias"]}
    other_parts = {f"blocks.{i} mlp" for i in range(layers)} | {"embedding", "rest"}
    other_parts |= {"norm bias"} if norm == "layer" else set()
    other_parts |= {"position"} if variant["position"].kind in ("learned", "sinusoidal") else set()
    other_parts |= {"segment", "unembedding bias"} if family is encoder else set()
    assert set(attribution.names) == heads | biases | other_parts
    assert len(set(attribution.names)) == len(attribution.names)


def test_attribution_of_a_last_block_head_equals_its_ablation() -> None:
    """This holds for a fixed norm: only the final norm reads the MLP of the last block."""
    decoder = model(placement="pre")
    torch.nn.init.zeros_(decoder.stack.blocks[1].feedforward.down.weight)  # else it would read the head
    decoder.stack.final_norm = torch.nn.Identity()
    text = torch.randint(V, (3, 7))
    with record(decoder) as activations:
        logits = decoder(text)
    attribution = attribute(decoder, activations, position=POSITION, ids=IDS, row=ROW)
    for head in range(4):
        with record(decoder, edits=[Edit(name="stack.blocks.1.self_attention.heads", heads=(head,))], patterns=()):
            fall = (logits - decoder(text))[ROW, POSITION, IDS]
        torch.testing.assert_close(of(attribution, f"blocks.1 head {head}").float(), fall, atol=1e-5, rtol=0)


def test_edited_parts_have_edited_attributions() -> None:
    attribution, logits, _ = parts(model(), Edit(name="stack.blocks.0.self_attention.heads", heads=(1,)))
    assert of(attribution, "blocks.0 head 1").abs().max() == 0
    assert of(attribution, "rest").abs().max() < 1e-4
    torch.testing.assert_close(attribution.logits.float(), logits, atol=1e-4, rtol=0)
    attribution, logits, _ = parts(model(), Edit(name="stack.blocks.0", positions=(POSITION,)))
    assert of(attribution, "rest").abs().max() > 0.01
    torch.testing.assert_close(attribution.logits.float(), logits, atol=1e-4, rtol=0)


def test_unsuitable_arguments_are_rejected() -> None:
    for head, words in (
        (MaskedHead(transform=True), "transform is not linear, .* use the logit lens instead"),
        (None, "no language-model head, so there is no logit"),
    ):
        headless = encoder(spec={"masked_head": head})
        with record(headless) as activations:
            headless.hidden(torch.randint(V, (1, 7)))
        with pytest.raises(ValueError, match=words):
            attribute(headless, activations, position=0, ids=[0])
    decoder = model()
    with record(decoder) as activations:
        decoder(torch.randint(V, (3, 7)))
    for how, words in (
        ({"position": 7, "ids": [0]}, "position 7 is out of range; it must be 0 to 6"),
        ({"position": 0, "ids": [0, V]}, f"id {V} is out of range; it must be 0 to {V - 1}"),
        ({"position": 0, "ids": [0], "row": -1}, "row -1 is out of range; it must be 0 to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            attribute(decoder, activations, **how)


def test_a_planted_fault_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest must be near zero, so it cannot hide a wrong part."""
    name_heads = attribution_file._name_heads
    monkeypatch.setattr(
        attribution_file, "_name_heads", lambda prefix, count: ["one"] * (count - 1) + name_heads(prefix, 1)
    )
    attribution, logits, _ = parts(model())
    torch.testing.assert_close(attribution.logits.float(), logits, atol=1e-4, rtol=0)
    assert of(attribution, "rest").abs().max() > 1e-3

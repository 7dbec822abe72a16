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


def parts(one: AnyModel, *edits: Edit) -> tuple[Attribution, Tensor, dict[str, Tensor]]:
    """Return the attribution of a random text's logits, the logits before the softcap, and the recording."""
    given = torch.randint(V, (3, 5)), torch.randint(V, (3, 7))
    with record(one, edits=edits) as seen:
        _ = one(*given) if isinstance(one, EncoderDecoder) else one(given[1])
    stack = "decoder" if isinstance(one, EncoderDecoder) else "stack"
    logits = torch.nn.functional.linear(seen[f"{stack}.final_norm"], one.unembedding.weight, one.unembedding.bias)
    found = attribute(one, seen, position=POSITION, ids=IDS, row=ROW)
    return found, logits[ROW, POSITION, IDS].detach(), seen


def of(found: Attribution, name: str) -> Tensor:
    return found.values[found.names.index(name)]


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
    found, logits, _ = parts(family(**variant, spec=spec))
    torch.testing.assert_close(found.logits.float(), logits, atol=1e-4, rtol=0)
    assert logits.abs().max() > 0.1
    assert of(found, "rest").abs().max() < 1e-4
    assert found.values.shape == (len(found.names), len(IDS))
    assert torch.equal(found.values[:, 1], found.values[:, 3])
    kinds = ("", "cross ") if family is translator else ("",)
    layers = 3 if family is translator else 2
    heads = {f"blocks.{i} {kind}head {h}" for i in range(layers) for kind in kinds for h in range(4)}
    biases = {f"blocks.{i} {kind}attention bias" for i in range(layers) for kind in kinds if variant["bias"]}
    others = {f"blocks.{i} mlp" for i in range(layers)} | {"embedding", "rest"}
    others |= {"norm bias"} if norm == "layer" else set()
    others |= {"position"} if variant["position"].kind in ("learned", "sinusoidal") else set()
    others |= {"segment", "unembedding bias"} if family is encoder else set()
    assert set(found.names) == heads | biases | others
    assert len(set(found.names)) == len(found.names)


def test_attribution_of_a_last_block_head_equals_its_ablation() -> None:
    """This holds for a fixed norm: only the final norm reads the MLP of the last block."""
    one = model(placement="pre")
    torch.nn.init.zeros_(one.stack.blocks[1].feedforward.down.weight)  # else it would read the head
    one.stack.final_norm = torch.nn.Identity()
    text = torch.randint(V, (3, 7))
    with record(one) as seen:
        before = one(text)
    found = attribute(one, seen, position=POSITION, ids=IDS, row=ROW)
    for head in range(4):
        with record(one, edits=[Edit(name="stack.blocks.1.self_attention.heads", heads=(head,))], patterns=()):
            fall = (before - one(text))[ROW, POSITION, IDS]
        torch.testing.assert_close(of(found, f"blocks.1 head {head}").float(), fall, atol=1e-5, rtol=0)


def test_edited_parts_have_edited_attributions() -> None:
    found, logits, _ = parts(model(), Edit(name="stack.blocks.0.self_attention.heads", heads=(1,)))
    assert of(found, "blocks.0 head 1").abs().max() == 0
    assert of(found, "rest").abs().max() < 1e-4
    torch.testing.assert_close(found.logits.float(), logits, atol=1e-4, rtol=0)
    found, logits, _ = parts(model(), Edit(name="stack.blocks.0", positions=(POSITION,)))
    assert of(found, "rest").abs().max() > 0.01
    torch.testing.assert_close(found.logits.float(), logits, atol=1e-4, rtol=0)


def test_unsuitable_arguments_are_rejected() -> None:
    for head, words in (
        (MaskedHead(transform=True), "transform is not linear, .* use the logit lens instead"),
        (None, "no language-model head, so there is no logit"),
    ):
        one = encoder(spec={"masked_head": head})
        with record(one) as seen:
            one.hidden(torch.randint(V, (1, 7)))
        with pytest.raises(ValueError, match=words):
            attribute(one, seen, position=0, ids=[0])
    one = model()
    with record(one) as seen:
        one(torch.randint(V, (3, 7)))
    for how, words in (
        ({"position": 7, "ids": [0]}, "position 7 is out of range; it must be 0 to 6"),
        ({"position": 0, "ids": [0, V]}, f"id {V} is out of range; it must be 0 to {V - 1}"),
        ({"position": 0, "ids": [0], "row": -1}, "row -1 is out of range; it must be 0 to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            attribute(one, seen, **how)


def test_a_planted_fault_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest must be near zero, so it cannot hide a wrong part."""
    true = attribution_file._name_heads
    monkeypatch.setattr(attribution_file, "_name_heads", lambda prefix, count: ["one"] * (count - 1) + true(prefix, 1))
    found, logits, _ = parts(model())
    torch.testing.assert_close(found.logits.float(), logits, atol=1e-4, rtol=0)
    assert of(found, "rest").abs().max() > 1e-3

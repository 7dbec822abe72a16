"""The logit lens equals the model at the last block, and applies the model's own modules to earlier streams."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from small import PLACEMENTS, V, encoder, model, translator

from tercet.inspect import logit_lens, stream_names
from tercet.inspect.lens import find_top_tokens, lens_top_tokens
from tercet.models import EncoderDecoder, MaskedHead, record

HEAD = {"masked_head": MaskedHead(transform=True, bias=True), "n_segments": 2, "embedding_norm": True}


def record_activations(any_model, inputs: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], Tensor]:
    with record(any_model) as activations:
        logits = any_model(*inputs)
    return activations, logits


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_lens_after_the_last_block_equals_the_model(placement: str, norm: str) -> None:
    variant = {"placement": placement, "norm": norm, "norm_bias": norm == "layer"}
    text = torch.randint(V, (3, 7))
    for any_model in (
        model(**variant, spec={"logit_softcap": 5.0}),
        encoder(**variant, spec=HEAD),
        encoder(**variant),
        translator(**variant),
    ):
        pair = isinstance(any_model, EncoderDecoder)
        activations, logits = record_activations(any_model, (torch.randint(V, (3, 5)), text) if pair else (text,))
        names = stream_names(any_model)["decoder" if pair else "stack"]
        assert torch.equal(logit_lens(any_model, activations[names[-1]]), logits)
        earlier_logits = [logit_lens(any_model, activations[name]) for name in names[:-1]]
        assert all(
            block_logits.shape == logits.shape and not torch.allclose(block_logits, logits, atol=1e-2)
            for block_logits in earlier_logits
        )
        assert not logits.isnan().any()


def test_stream_names_are_ordered_from_bottom_to_top() -> None:
    assert stream_names(model()) == {"stack": ["stack.dropout", "stack.blocks.0", "stack.blocks.1"]}
    names = stream_names(translator())
    assert [len(stream) for stream in names.values()] == [3, 4]
    activations, _ = record_activations(translator(), (torch.randint(V, (1, 5)), torch.randint(V, (1, 7))))
    assert all(name in activations for stream in names.values() for name in stream)
    # The stream below a block is its input: nothing changes it before the norm of the first sublayer.
    post = model(placement="post")
    activations, _ = record_activations(post, (torch.randint(V, (2, 7)),))
    for stream_name, block in zip(stream_names(post)["stack"], ("stack.blocks.0", "stack.blocks.1"), strict=False):
        assert torch.equal(activations[stream_name], activations[f"{block}.self_residual.before"])


def test_the_lens_before_all_blocks_is_a_bigram_table() -> None:
    decoder = model(placement="pre")
    tokens = torch.arange(5)[None]
    with torch.no_grad():
        decoder.stack.position.table.weight.zero_()
    activations, _ = record_activations(decoder, (tokens,))
    expected = decoder.unembedding(decoder.stack.final_norm(decoder.embedding.weight[:5]))
    torch.testing.assert_close(logit_lens(decoder, activations["stack.dropout"])[0], expected)


def test_an_encoder_without_a_masked_head_has_no_lens() -> None:
    headless = encoder(spec={"masked_head": None})
    with pytest.raises(ValueError, match="no masked_head: it cannot predict masked tokens"):
        logit_lens(headless, torch.zeros(1, 7, 24))


def test_the_lens_builds_no_graph() -> None:
    assert not logit_lens(model(), torch.zeros(1, 7, 24)).requires_grad


@pytest.mark.parametrize("rows", [1, 3, 64])  # fewer and more than the text has
def test_the_top_tokens_are_those_of_the_lens_at_every_block(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.objectives.logprobs.MAX_LOGITS", rows * V)
    decoder = model()
    with record(decoder) as activations:
        logits = decoder(torch.randint(V, (1, 7)))
    lens = lens_top_tokens(decoder, activations, 3)
    assert list(lens) == stream_names(decoder)["stack"]
    for name, top in lens.items():
        best = logit_lens(decoder, activations[name])[0].softmax(-1).topk(3)
        assert top.ids == best.indices.tolist()
        torch.testing.assert_close(top.probabilities, best.values)
    last = find_top_tokens(logits[0], 3)
    assert last.ids == lens["stack.blocks.1"].ids
    assert len(find_top_tokens(logits[0], 10_000).ids[0]) == V  # the whole vocabulary

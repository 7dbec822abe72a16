"""The structure of a translator: one matrix in three places, norms in the right places, no two blocks alike."""

from dataclasses import replace

import pytest
import torch
from small import MAX_LEN, STACK, V, translator

from tercet.config import UserError
from tercet.models import EncoderDecoder, EncoderDecoderSpec, model_spec
from tercet.nn.specs import Normal, Xavier, ZeroProjections

SOURCE_V = 29
SEPARATE = {"share_embeddings": False, "source_vocab_size": SOURCE_V}
S, T = 7, 5


def storages(model: EncoderDecoder, *names: str) -> set[int]:
    state = model.state_dict()
    return {state[name].untyped_storage().data_ptr() for name in names}


PLACES = ("source_embedding.weight", "embedding.weight", "unembedding.weight")


def test_one_matrix_is_used_in_three_places() -> None:
    model = translator()
    assert model.source_embedding.weight is model.embedding.weight is model.unembedding.weight
    assert len(storages(model, *PLACES)) == 1
    assert [name for name, _ in model.named_parameters() if name in PLACES] == [PLACES[0]]
    body = sum(p.numel() for side in (model.encoder, model.decoder) for p in side.parameters())
    assert sum(p.numel() for p in model.parameters()) == body + V * 24
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))


def test_shared_matrix_gets_gradients_from_all_three_places() -> None:
    tied, untied = translator(), translator(spec={"share_embeddings": False, "tie_embeddings": False})
    untied.load_state_dict(tied.state_dict())
    source, target = torch.randint(V, (2, S)), torch.randint(V, (2, T))
    for model in (tied, untied):
        model(source, target).logsumexp(-1).sum().backward()
    assert tied.embedding.weight.grad is not None
    parts = [getattr(untied, place).weight.grad for place in ("source_embedding", "embedding", "unembedding")]
    assert all(part.abs().sum() > 0 for part in parts)
    torch.testing.assert_close(tied.embedding.weight.grad, sum(parts))


@pytest.mark.parametrize(
    ("spec", "matrices"),
    [
        ({}, 1),
        ({"tie_embeddings": False}, 2),
        ({"share_embeddings": False}, 2),
        ({"share_embeddings": False, "tie_embeddings": False}, 3),
        (SEPARATE, 2),
        (SEPARATE | {"tie_embeddings": False}, 3),
    ],
    ids=str,
)
def test_weights_are_tied_as_requested(spec, matrices: int) -> None:
    model = translator(spec=spec)
    assert len(storages(model, *PLACES)) == matrices
    source = torch.randint(model.source_embedding.num_embeddings, (2, S))
    assert model(source, torch.randint(V, (2, T))).shape == (2, T, V)


def test_translator_may_have_two_vocabularies() -> None:
    model = translator(spec=SEPARATE | {"pad_vocab_to": 8})
    assert model.source_embedding.weight.shape == (32, 24)
    assert model.embedding.weight.shape == model.unembedding.weight.shape == (24, 24)
    source = torch.tensor([[SOURCE_V - 1, 0, V]])
    logits, cache = model.start(torch.tensor([[V - 1]]), torch.tensor([1]), source=source, capacity=2)
    assert logits.shape == model.step(torch.tensor([0]), cache).shape == (1, V)


@pytest.mark.parametrize(
    ("placement", "has_norm"), [("pre", True), ("sandwich", True), ("branch", True), ("post", False)]
)
@torch.no_grad()
def test_both_sides_end_with_a_norm_and_memory_is_normalized(placement, has_norm: bool) -> None:
    side = replace(STACK, placement=placement)
    model = EncoderDecoder(EncoderDecoderSpec(vocab_size=V, max_len=MAX_LEN, encoder=side, decoder=side))
    for side in (model.encoder, model.decoder):
        assert isinstance(side.final_norm, torch.nn.LayerNorm if has_norm else torch.nn.Identity)
    memories: list[torch.Tensor] = []
    for block in model.decoder.blocks:
        block.cross_attention.register_forward_pre_hook(
            lambda _part, _inputs, named: memories.append(named["source"]), with_kwargs=True
        )
    source, target = torch.randint(V, (2, S)), torch.randint(V, (2, T))
    model(source, target)
    memory = model.encode(source)
    assert len(memories) == 2
    assert all(torch.equal(value, memory) for value in memories)
    # A new norm gives mean 0 and variance 1; with post-norm the last sublayer already ends with one.
    torch.testing.assert_close(memory.mean(-1), torch.zeros(2, S), atol=1e-5, rtol=0)
    torch.testing.assert_close(memory.var(-1, unbiased=False), torch.ones(2, S), atol=0.05, rtol=0)
    if has_norm:
        model.encoder.final_norm.weight.mul_(2)
        assert torch.equal(model.encode(source), 2 * memory)


@pytest.mark.parametrize("init", [Normal(), Xavier()], ids=str)
def test_no_two_matrices_share_or_equal_initial_weights(init) -> None:
    model = EncoderDecoder(EncoderDecoderSpec(vocab_size=V, max_len=MAX_LEN, init=init, encoder=STACK, decoder=STACK))
    parameters = list(model.parameters())
    assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)
    matrices = [p for p in parameters if p.ndim == 2]
    for i, matrix in enumerate(matrices):
        assert not any(matrix.shape == previous.shape and torch.equal(matrix, previous) for previous in matrices[:i])


@pytest.mark.parametrize("init", [Normal(), Xavier(), ZeroProjections()], ids=str)
def test_each_parameter_is_initialized_from_the_seed(init) -> None:
    spec = EncoderDecoderSpec(vocab_size=V, max_len=MAX_LEN, init=init, encoder=STACK, decoder=STACK)
    first = EncoderDecoder(spec, seed=5).state_dict()
    torch.rand(3)
    second, other_seed = EncoderDecoder(spec, seed=5).state_dict(), EncoderDecoder(spec, seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other_seed["embedding.weight"])
    assert all(tensor.isfinite().all() for tensor in first.values())


def test_every_parameter_has_a_gradient() -> None:
    model = translator(spec=SEPARATE | {"tie_embeddings": False, "embedding_norm": True}, qk_norm=True, gated=True)
    source, target = torch.randint(SOURCE_V, (2, S)), torch.randint(V, (2, T))
    model(source, target).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert "key.bias" in name or parameter.grad.abs().sum() > 0, name


def test_inconsistent_sizes_are_rejected() -> None:
    wide_stack = replace(STACK, d_model=32)
    with pytest.raises(ValueError, match=r"encoder.d_model=24, decoder.d_model=32"):
        EncoderDecoderSpec(encoder=STACK, decoder=wide_stack)
    with pytest.raises(ValueError, match="share_embeddings requires one vocabulary for both sides; set it to false"):
        EncoderDecoderSpec(source_vocab_size=SOURCE_V, encoder=STACK, decoder=STACK)
    with pytest.raises(ValueError, match="vocab_size=0 must be at least 1; set it to the size"):
        EncoderDecoder(EncoderDecoderSpec(encoder=STACK, decoder=STACK))
    with pytest.raises(UserError, match=r"'stack'"):
        model_spec({"preset": "transformer-base", "stack": {"d_model": 24}})

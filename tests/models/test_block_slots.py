"""Optional parts of a block: separate biases and dropout, a final norm, parallel sublayers, other norms.

Each is tested in all three families: against its formula, with a cache, with padding. Each is counted and saved, and
rejected by exports that do not support it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import MAX_LEN, V, encoder, model, translator
from torch import nn

from tercet.config import UserError, parse, to_plain
from tercet.inspect.model_table import model_table
from tercet.models import Biases, BranchDropout, DecoderOnlySpec, Dropout, StackSpec, model_spec, record
from tercet.nn import Block, FeedForward, Learned, RelativeBias, Residual

SLOTS: dict[str, dict[str, Any]] = {
    "biases apart": {"bias": Biases(qkv=False, out=True, feedforward=False)},
    "parallel": {"parallel": True},
    "parallel, post": {"parallel": True, "placement": "post"},
    "parallel, sandwich": {"parallel": True, "placement": "sandwich"},
    "parallel, separate norms": {"parallel": "separate_norms"},
    "no first norm": {"first_norm": False},
    "no first norm, parallel": {"first_norm": False, "parallel": True},
    "no first norm, separate norms": {"first_norm": False, "parallel": "separate_norms"},
    "no final norm": {"final_norm": False},
    "a final norm after post": {"final_norm": True, "placement": "post"},
    "one norm of all heads": {"qk_norm": "all_heads", "n_kv_heads": 2},
    "bounded scores": {"attention_softcap": 0.5, "n_kv_heads": 2},
    "norm by deviation": {"norm": "layer_std", "norm_eps": 1e-6},
    "a long table": {"position": Learned(size=3 * MAX_LEN)},
}
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("slot", SLOTS)
@torch.no_grad()
def test_steps_with_a_cache_match_the_full_pass(slot: str) -> None:
    decoder, tokens = model(**SLOTS[slot], spec={"logit_bias": True}), torch.randint(V, (3, MAX_LEN))
    full = decoder(tokens)
    logits, cache = decoder.start(tokens[:, :4], torch.tensor([4, 4, 4]), capacity=MAX_LEN)
    for t in range(4, MAX_LEN):
        torch.testing.assert_close(logits, full[:, t - 1], **CLOSE)
        logits = decoder.step(tokens[:, t], cache)
    writer, source = translator(**SLOTS[slot]), torch.randint(V, (3, 5))
    full = writer(source, tokens)
    logits, cache = writer.start(tokens[:, :4], torch.tensor([4, 4, 4]), source=source, capacity=MAX_LEN)
    for t in range(4, MAX_LEN):
        torch.testing.assert_close(logits, full[:, t - 1], **CLOSE)
        logits = writer.step(tokens[:, t], cache)


@pytest.mark.parametrize("slot", SLOTS)
@torch.no_grad()
def test_padding_changes_nothing(slot: str) -> None:
    reader, tokens = encoder(**SLOTS[slot]), torch.randint(V, (2, 7))
    real = torch.ones(2, 9, dtype=torch.bool)
    real[:, :2] = False
    padded = torch.cat((torch.randint(V, (2, 2)), tokens), 1)
    torch.testing.assert_close(reader(padded, token_mask=real)[:, 2:], reader(tokens), **CLOSE)


@pytest.mark.parametrize("slot", SLOTS)
def test_option_is_saved_and_counted(slot: str) -> None:
    decoder = model(**SLOTS[slot], spec={"logit_bias": True})
    assert parse(DecoderOnlySpec, to_plain(decoder.spec)) == decoder.spec
    assert model_table(decoder.spec).parameters == sum(parameter.numel() for parameter in decoder.parameters())


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "branch"])
@pytest.mark.parametrize("family", ["decoder-only", "encoder-only"])
@pytest.mark.parametrize("parallel", [True, "separate_norms"])
@torch.no_grad()
def test_parallel_sublayers_match_their_formula(parallel: bool | str, placement: str, family: str) -> None:
    network = (model if family == "decoder-only" else encoder)(placement=placement, parallel=parallel)
    block = network.stack.blocks[0]
    assert isinstance(block, Block)
    x, causal = torch.randn(2, 5, 24), network.stack.causal
    first, last = block.self_residual, block.feedforward_residual
    h = first.before(x)
    attention = first.branch(block.self_attention(h, causal=causal))
    own = h if parallel is True else last.before(x)
    expected = last.after(x + attention + last.branch(block.feedforward(own)))
    torch.testing.assert_close(block(x, causal=causal), expected)
    norms = [part for part in block.modules() if isinstance(part, nn.LayerNorm)]
    n_norms = {"pre": 1, "post": 1, "sandwich": 3, "branch": 2}[placement]
    assert len(norms) == n_norms + (parallel is not True and placement in ("pre", "sandwich"))


@torch.no_grad()
def test_recorded_scores_are_bounded() -> None:
    tokens = torch.randint(V, (2, 7))
    for cap in (0.5, None):
        decoder = model(attention_softcap=cap)
        with record(decoder) as activations:
            logits = decoder(tokens)
        largest = max(activations[f"stack.blocks.{n}.self_attention.scores"].abs().max() for n in range(2))
        assert (largest <= 0.5) == (cap is not None)
        torch.testing.assert_close(logits, decoder(tokens), **CLOSE)


@torch.no_grad()
def test_only_attention_of_the_first_block_reads_the_stream_without_a_norm() -> None:
    first, second = encoder(first_norm=False).stack.blocks
    assert isinstance(first, Block)
    assert isinstance(second, Block)
    x = torch.randn(2, 5, 24)
    stream = x + first.self_attention(x)
    expected = stream + first.feedforward(first.feedforward_residual.before(stream))
    torch.testing.assert_close(first(x), expected)
    assert isinstance(second.self_residual.before, nn.LayerNorm)


@pytest.mark.parametrize("parallel", [True, "separate_norms"])
@torch.no_grad()
def test_decoder_with_cross_attention_runs_all_three_sublayers_in_parallel(parallel: bool | str) -> None:
    block = translator(parallel=parallel).decoder.blocks[0]
    assert isinstance(block, Block)
    assert block.cross_attention is not None
    x, memory = torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    assert block.cross_residual is not None
    h = block.self_residual.before(x)
    residuals = (block.cross_residual, block.feedforward_residual)
    crossing, feeding = (h if parallel is True else residual.before(x) for residual in residuals)
    expected = x + block.self_attention(h, causal=True)
    expected = expected + block.cross_attention(crossing, memory) + block.feedforward(feeding)
    torch.testing.assert_close(block(x, causal=True, memory=memory), expected)


def test_each_layer_has_its_own_relative_position_table() -> None:
    network = model(position=RelativeBias(n_buckets=8, max_distance=11, per_layer=True))
    network(torch.randint(V, (1, 5))).square().sum().backward()
    gradients = [table.weight.grad for table in network.stack.position.tables]
    assert len(gradients) == network.spec.stack.n_layers
    assert all(gradient is not None and gradient.any() for gradient in gradients)


def test_layer_std_norm_matches_its_formula() -> None:
    from tercet.nn.norm import StdLayerNorm

    norm, x = StdLayerNorm(7, eps=0.1), torch.randn(3, 5, 7)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_() if norm.bias is not None else None
    expected = norm.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1) + norm.bias
    torch.testing.assert_close(norm(x), expected)
    assert not torch.allclose(norm(x), nn.functional.layer_norm(x, (7,), norm.weight, norm.bias, 0.1), atol=1e-3)
    with pytest.raises(ValueError, match="width of at least 2"):
        StdLayerNorm(1)
    assert "bias=False" in repr(StdLayerNorm(3, bias=False))
    flat = torch.full((2, 7), 3.0, requires_grad=True)
    norm(flat).square().sum().backward()
    assert flat.grad is not None
    assert flat.grad.isfinite().all()


@pytest.mark.parametrize(
    ("bias", "names"),
    [
        (Biases(qkv=True, out=False, feedforward=False), {"query", "key", "value"}),
        (Biases(qkv=False, out=True, feedforward=False), {"out"}),
        (Biases(qkv=False, out=False, feedforward=True), {"up", "gate", "down"}),
    ],
)
def test_each_kind_of_linear_layer_has_its_own_switch(bias: Biases, names: set[str]) -> None:
    for network in (model(bias=bias, gated=True), encoder(bias=bias, gated=True), translator(bias=bias, gated=True)):
        parts = {n.split(".")[-2] for n, _ in network.named_parameters() if n.endswith(".bias") and "residual" not in n}
        assert parts - {"final_norm"} == names


def test_each_dropout_acts_in_its_own_place() -> None:
    distances = Dropout(
        embedding=0.1, attention=0.2, activation=0.3, residual=BranchDropout(attention=0.4, feedforward=0.5)
    )
    for network in (model(dropout=distances), translator(dropout=distances), encoder(dropout=distances)):
        for block in (part for part in network.modules() if isinstance(part, Block)):
            assert block.self_attention.dropout == 0.2
            assert block.feedforward.dropout == 0.3
            attentions = [block.self_residual] + ([block.cross_residual] if block.cross_residual else [])
            assert [attention.dropout.p for attention in attentions] == [0.4] * len(attentions)
            assert block.feedforward_residual.dropout.p == 0.5


def test_activation_dropout_acts_before_the_down_projection() -> None:
    network, x = FeedForward(6, 4000, dropout=0.25), torch.randn(3, 6)
    activations: list[torch.Tensor] = []
    network.down.register_forward_pre_hook(lambda _part, inputs: activations.append(inputs[0]))
    expected = network.eval()(x)
    network.train()(x)
    is_dropped = activations[1] == 0
    assert is_dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)
    torch.testing.assert_close(activations[1][~is_dropped], activations[0][~is_dropped] / 0.75)
    torch.testing.assert_close(network.eval()(x), expected)


def test_position_table_shorter_than_the_context_is_rejected() -> None:
    with pytest.raises(
        ValueError, match=r"position table too short: 5 positions for max_len=13; set position\.size to"
    ):
        model(position=Learned(size=5))
    assert model(position=Learned(size=40)).stack.position.table.num_embeddings == 40


def test_recipes_set_one_value_for_all_or_one_for_each() -> None:
    all_of_them = model_spec({"preset": "gpt2", "stack": {"bias": False, "dropout": {"residual": 0.2}}})
    assert all_of_them.stack.biases == Biases(qkv=False, out=False, feedforward=False)
    assert all_of_them.stack.dropout.branches == BranchDropout(attention=0.2, feedforward=0.2)
    stack = {"bias": {"qkv": True, "out": False, "feedforward": False}}
    assert model_spec({"preset": "gpt2", "stack": stack}).stack.biases == Biases(qkv=True, out=False, feedforward=False)


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ({"bias": {"qkv": True}}, "the key 'out' is missing"),
        ({"bias": {"qvk": True}}, "unknown key 'qvk'; did you mean 'qkv'"),
        ({"bias": "some"}, "stack.bias: "),
        ({"dropout": {"residual": 1.5}}, "residual=1.5 must be at least 0 and below 1"),
        ({"dropout": {"residual": {"attention": 0.1, "feedforward": -1}}}, "stack.dropout.residual.feedforward=-1"),
        ({"dropout": {"residual": True}}, "expected a number"),
        ({"norm": "std"}, "stack.norm: "),
    ],
)
def test_inconsistent_options_are_rejected_by_key(stack: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model_spec({"preset": "gpt2", "stack": stack})


def test_residual_uses_the_given_arguments() -> None:
    residual, x, h = Residual(lambda: nn.LayerNorm(6)), torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    torch.testing.assert_close(residual(x, lambda value: 2 * value, read=h), x + 2 * h)


REJECTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stack.parallel": ({"parallel": True}, {}),
    "stack.attention_softcap": ({"attention_softcap": 5.0}, {}),
    "stack.first_norm": ({"first_norm": False}, {}),
    "stack.final_norm": ({"final_norm": False}, {}),
    "stack.norm": ({"norm": "layer_std"}, {}),
    "logit_bias": ({}, {"logit_bias": True}),
}


@pytest.mark.parametrize("key", REJECTED)
def test_options_without_gpt2_equivalent_are_rejected_by_name(key: str) -> None:
    from tercet.checkpoint.foreign.gpt2 import to_gpt2

    stack, spec = REJECTED[key]
    with pytest.raises(UserError, match=f"{key} is .*, which GPT-2 of transformers does not support"):
        to_gpt2(model(**stack, spec=spec))


@torch.no_grad()
def test_options_with_gpt2_equivalent_are_exported() -> None:
    from tercet.checkpoint.foreign.gpt2 import from_gpt2, to_gpt2

    ours = model(bias=Biases(qkv=False, out=True, feedforward=False), position=Learned(size=40))
    reloaded = from_gpt2(*to_gpt2(ours))
    tokens = torch.randint(V, (2, MAX_LEN))
    torch.testing.assert_close(reloaded(tokens), ours(tokens), **CLOSE)
    assert reloaded.spec.stack.bias is True
    assert reloaded.stack.position.table.num_embeddings == MAX_LEN


def test_ctranslate2_rejects_unsupported_options(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from tercet.checkpoint.foreign.features import Support, features_of_block

    spec = StackSpec(d_model=24, n_layers=1, n_heads=4)
    for change in ({"parallel": True}, {"final_norm": False}, {"placement": "post", "final_norm": True}):
        with pytest.raises(UserError, match="stack"):
            Support("CTranslate2", features_of_block("stack", replace(spec, **change))).check()
    Support("CTranslate2", features_of_block("stack", spec)).check()


@pytest.mark.parametrize(("d_model", "gated_width"), [(64, 176), (96, 256), (128, 344), (384, 1024)])
def test_gated_network_has_as_many_weights_as_one_of_four_times_the_width(d_model: int, gated_width: int) -> None:
    plain, gated = (StackSpec(d_model=d_model, n_layers=1, n_heads=2, gated=gated) for gated in (False, True))
    assert plain.inner_width == 4 * d_model
    assert gated.inner_width == gated_width
    assert 0 <= 3 * gated.inner_width - 2 * plain.inner_width < 3 * 8
    assert replace(gated, d_ff=17).inner_width == 17

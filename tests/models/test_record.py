"""Recordings contain the actual values, recording changes nothing, and edits match their description."""

import gc
import resource
import weakref
from collections.abc import Callable
from dataclasses import replace

import jaxtyping
import pytest
import torch
from small import GROUPS, MAX_LEN, PLACEMENTS, POSITIONS, V, encoder, model, padded, shaken, translator
from torch import Tensor, nn

from tercet.models import AnyModel, DecoderOnly, Edit, EncoderDecoder, MaskedHead, build, names, record
from tercet.models.presets import PRESETS
from tercet.models.specs import Dropout, EncoderDecoderSpec
from tercet.nn import ALiBi, Attention, FeedForward, Rotary
from tercet.nn.attention import attention_scores

B, T, S = 3, 7, 5
HEAD = {"masked_head": MaskedHead(transform=True, bias=True), "n_segments": 2}


def tokens(rows: int = B, length: int = T) -> Tensor:
    return torch.randint(V, (rows, length))


def build_model(family: str, **variant: object) -> tuple[AnyModel, Callable[[], Tensor]]:
    """Return a model and a forward pass through it."""
    if family == "translator":
        network, source, target = translator(**variant), tokens(B, S), tokens()
        return network, lambda: network(source, target)
    two, text = model(**variant) if family == "gpt" else encoder(**variant, spec=HEAD), tokens()
    return two, lambda: two(text)


def close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


# Recording changes nothing.

VARIANTS = [
    {"position": POSITIONS[i % 5], "n_kv_heads": list(GROUPS.values())[i % 3], "placement": PLACEMENTS[i % 4]}
    | ({"norm": "rms", "norm_bias": False} if i % 2 else {})
    | ({"gated": True, "bias": False, "qk_norm": True} if i % 4 < 2 else {})
    for i in range(11)
]


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_recording_does_not_change_outputs(number: int) -> None:
    variant, family = VARIANTS[number], ("gpt", "bert", "translator")[number // 3 % 3]
    network, forward = build_model(family, **variant)
    before = forward()
    with record(network) as tensors:
        output = forward()
    close(output, before)
    assert torch.equal(forward(), before)
    assert torch.equal(tensors["unembedding"], output)
    assert set(tensors) <= set(names(network))


@pytest.mark.parametrize("name", ["gpt2", "llama", "modern", "transformer-decoder", "bert-tiny", "transformer-base"])
def test_parts_of_presets_can_be_recorded(name: str) -> None:
    spec = PRESETS[name]
    stacks = ("encoder", "decoder") if isinstance(spec, EncoderDecoderSpec) else ("stack",)
    sizes = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 31, "n_kv_heads": None, "d_head": None}
    small = {stack: replace(getattr(spec, stack), **sizes) for stack in stacks}
    network = shaken(build(replace(spec, vocab_size=V, max_len=MAX_LEN, **small))).eval()
    inputs = (tokens(B, S), tokens()) if len(stacks) == 2 else (tokens(),)
    before = network(*inputs)
    with record(network):
        close(network(*inputs), before)


@pytest.mark.slow
def test_recording_works_with_padding_and_documents() -> None:
    text, token_mask = padded([torch.arange(5), torch.arange(7), torch.arange(2)], "scattered", T)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2]]).expand(B, -1)
    for network in (model(position=ALiBi(), n_kv_heads=2), encoder(position=Rotary())):
        for masks in ({"token_mask": token_mask}, {"documents": documents}):
            before = network(text, **masks)
            with record(network) as tensors:
                close(network(text, **masks), before)
            mask = tensors["stack.blocks.1.self_attention.mask"]
            weights = tensors["stack.blocks.1.self_attention.weights"]
            assert (weights[~mask.expand_as(weights)] == 0).all()
    seq2seq = translator(n_kv_heads=2)
    source, source_token_mask = padded([torch.arange(3), torch.arange(5), torch.arange(1)], "right", S)
    before = seq2seq(source, text, source_token_mask=source_token_mask)
    with record(seq2seq) as tensors:
        close(seq2seq(source, text, source_token_mask=source_token_mask), before)
    cross_weights = tensors["decoder.blocks.2.cross_attention.weights"]
    assert cross_weights.shape == (B, 4, T, S)
    assert (cross_weights.masked_select(~source_token_mask[:, None, None]) == 0).all()


@pytest.mark.slow
def test_recording_works_in_cached_decode_steps() -> None:
    for network, source in ((model(position=Rotary(), n_kv_heads=2), None), (translator(), tokens(B, S))):
        text, lengths = tokens(B, 4), torch.tensor([4, 2, 3])
        source_inputs = {} if source is None else {"source": source}

        def steps(network: AnyModel, text: Tensor, lengths: Tensor, source_inputs: dict) -> list[Tensor]:
            assert isinstance(network, DecoderOnly | EncoderDecoder)
            logits, cache = network.start(text, lengths, **source_inputs, capacity=9)
            return [logits, *(network.step(torch.tensor([3, 5, 7]), cache) for _ in range(2))]

        before = steps(network, text, lengths, source_inputs)
        with record(network) as tensors:
            recorded_logits = steps(network, text, lengths, source_inputs)
        for expected, found in zip(before, recorded_logits, strict=True):
            close(found, expected)
        stack = "stack" if source is None else "decoder"
        assert tensors[f"{stack}.blocks.0.self_attention.weights"].shape == (B, 4, 1, 10)  # of the last step


def test_recording_works_in_bfloat16() -> None:
    network = model().bfloat16()
    text = tokens()
    before = network(text)
    with record(network) as tensors:
        close(network(text), before, atol=0.1)
    assert tensors["stack.blocks.0.self_attention.weights"].dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within the compiler
@torch.no_grad()
def test_compiled_blocks_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shape annotations cannot be compiled
    network = model()
    for block in network.stack.blocks:
        block.compile(backend="eager")
    text = tokens()
    before, compiled = network(text), [block._compiled_call_impl for block in network.stack.blocks]
    with record(network) as tensors:
        close(network(text), before)
    assert "stack.blocks.1.self_attention.weights" in tensors
    with record(network, edits=[Edit(name="stack.blocks.0.feedforward")]):
        assert (network(text) - before).abs().max() > 1e-3
    assert [block._compiled_call_impl for block in network.stack.blocks] == compiled
    close(network(text), before)


# Recordings contain the actual values.


@pytest.mark.parametrize("family", ["gpt", "bert", "translator"])
def test_recorded_tensors_satisfy_the_formulas(family: str) -> None:
    network, forward = build_model(family, n_kv_heads=2, gated=True)
    with record(network) as tensors:
        forward()
    for name, part in network.named_modules():
        if isinstance(part, Attention):
            weights, v = tensors[f"{name}.weights"], tensors[f"{name}.v"].repeat_interleave(2, dim=1)
            close(weights.sum(-1), torch.ones(weights.shape[:-1]))
            mask = tensors[f"{name}.mask"].expand_as(weights)
            assert (weights[~mask] == 0).all()
            scores = tensors[f"{name}.scores"].masked_fill(~mask, -torch.inf)
            close(scores.softmax(-1), weights)
            close(attention_scores(tensors[f"{name}.q"], tensors[f"{name}.k"]), tensors[f"{name}.scores"])
            close(weights @ v, tensors[f"{name}.heads"])
            output = tensors[f"{name}.heads"].transpose(1, 2).flatten(-2) @ part.out.weight.T + part.out.bias
            close(output, tensors[name])
        if isinstance(part, FeedForward):
            close(part.down(tensors[f"{name}.activations"]), tensors[name])
    if family == "translator":
        assert tensors["decoder.blocks.0.cross_attention.weights"].shape == (B, 4, T, S)
    stack = "decoder" if family == "translator" else "stack"
    residual = tensors[f"{stack}.blocks.1.feedforward_residual.dropout"]
    kind = "cross_residual" if family == "translator" else "self_residual"
    close(tensors[f"{stack}.blocks.1.{kind}"] + residual, tensors[f"{stack}.blocks.1"])


def test_recorded_weights_of_a_head_match_its_slice() -> None:
    network, text = model(n_kv_heads=2), tokens()
    with record(network) as tensors:
        network(text)
    attention, h = network.stack.blocks[0].self_attention, tensors["stack.blocks.0.self_residual.before"]
    for head in range(4):
        query_rows, kv_rows = slice(6 * head, 6 * head + 6), slice(6 * (head // 2), 6 * (head // 2) + 6)
        q = h @ attention.query.weight[query_rows].T + attention.query.bias[query_rows]
        k = h @ attention.key.weight[kv_rows].T + attention.key.bias[kv_rows]
        scores = (q @ k.mT / 6**0.5).masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
        close(scores.softmax(-1), tensors["stack.blocks.0.self_attention.weights"][:, head])


def test_recorded_weights_in_training_are_those_before_dropout() -> None:
    network, text = model(dropout=Dropout(attention=0.5)), tokens()
    with record(network) as tensors:
        network(text)
    eval_weights = tensors["stack.blocks.0.self_attention.weights"]
    with record(network.train()) as tensors:
        network(text)
    close(tensors["stack.blocks.0.self_attention.weights"], eval_weights)
    assert not torch.allclose(
        eval_weights @ tensors["stack.blocks.0.self_attention.v"], tensors["stack.blocks.0.self_attention.heads"]
    )


def test_later_pass_overwrites_and_only_selects() -> None:
    network, text = model(), tokens()
    with record(network, patterns=["*.weights", "stack.blocks.?"]) as tensors:
        network(text)
        network(text[:2, :5])
    assert len(tensors) == 2 + 2
    assert tensors["stack.blocks.1"].shape == (2, 5, 24)
    with record(network, patterns=["*.weights"]) as weights:
        network(text)
    assert len(weights) == 2
    assert tensors["stack.blocks.0.self_attention.weights"].shape == (2, 4, 5, 5)  # not those of the second run


# Nothing is left behind.


def traces(network: nn.Module) -> list[tuple[object, ...]]:
    """Return each module's attributes and numbers of hooks."""
    return [(sorted(vars(part)), len(part._forward_hooks), len(part._forward_pre_hooks)) for part in network.modules()]


@pytest.mark.slow
def test_model_is_unchanged_after_recording_even_with_exceptions() -> None:
    network = translator()
    before = traces(network)
    network(tokens(), tokens())
    with pytest.raises(ZeroDivisionError), record(network):
        network(tokens(B, 1 // 0), tokens())
    assert traces(network) == before
    edit = Edit(name="encoder.blocks.0.self_attention.heads", heads=(4,))
    with pytest.raises(ValueError, match="has no head 4; it has 4, 0 to 3"), record(network, edits=[edit]):
        network(tokens(), tokens())  # raises during a forward pass
    assert traces(network) == before
    with record(network):
        network(tokens(), tokens())
    assert traces(network) == before


class Mark:
    """An object that lives as long as the graph that refers to it."""


@pytest.mark.slow
def test_no_graph_is_kept_alive() -> None:
    network = model()
    with record(network) as tensors:
        logits = network(tokens())
    assert not any(tensor.requires_grad for tensor in tensors.values())
    node, mark = logits.grad_fn, Mark()
    assert node is not None
    node.metadata["mark"] = mark
    graph = weakref.ref(mark)
    del mark, node
    gc.collect()
    assert graph() is not None
    del logits
    gc.collect()
    assert graph() is None


def test_recording_does_not_change_gradients() -> None:
    network, text = model(), tokens()
    network(text).logsumexp(-1).mean().backward()
    before = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    with record(network):
        network(text).logsumexp(-1).mean().backward()
    for expected, parameter in zip(before, network.parameters(), strict=True):
        assert parameter.grad is not None
        close(parameter.grad, expected)


@pytest.mark.slow
def test_thirty_recordings_do_not_leak_memory() -> None:
    network, text = model(), tokens()

    def count_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    with torch.no_grad():
        for _ in range(9):
            with record(network):
                network(text)
        n_tensors, peak = count_tensors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(30):
            with record(network) as tensors:
                network(text)
        del tensors
    assert count_tensors() <= n_tensors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 5 * 1024  # KiB


# Edits.


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert", "translator"])
def test_editing_a_head_to_zero_equals_zeroing_its_output_slice(family: str) -> None:
    network, forward = build_model(family, n_kv_heads=2)
    attentions = [(name, part) for name, part in network.named_modules() if isinstance(part, Attention)]
    for number, (name, part) in enumerate(attentions):
        head = number % 4
        with record(network, edits=[Edit(name=f"{name}.heads", heads=(head,))]):
            output = forward()
        original = part.out.weight.detach().clone()
        with torch.no_grad():
            part.out.weight[:, 6 * head : 6 * head + 6] = 0
        close(output, forward())
        assert not torch.allclose(output, (restore(part, original), forward())[1])


def restore(part: Attention, weight: Tensor) -> None:
    with torch.no_grad():
        part.out.weight.copy_(weight)


@pytest.mark.parametrize("family", ["gpt", "bert", "translator"])
def test_patching_all_tensors_gives_the_logits_of_the_source_run(family: str) -> None:
    network, first = build_model(family)
    with record(network) as tensors:
        expected = first()
    other_inputs = tokens(B, S), tokens()
    other_logits = network(*other_inputs) if isinstance(network, EncoderDecoder) else network(other_inputs[1])
    assert not torch.allclose(other_logits, expected)
    patches = [Edit(name=name, value=tensor) for name, tensor in tensors.items() if tensor.dtype != torch.bool]
    for edits in (patches, [edit for edit in patches if edit.name.startswith(("stack.blocks", "decoder.blocks"))]):
        with record(network, edits=edits):
            logits = network(*other_inputs) if isinstance(network, EncoderDecoder) else network(other_inputs[1])
        close(logits, expected)


def test_empty_edit_changes_nothing() -> None:
    network, forward = build_model("gpt")
    with record(network) as tensors:
        before = forward()
    same_values = [Edit(name=name, value=tensor) for name, tensor in tensors.items()]
    empty_edits = [
        Edit(name="stack.blocks.0.self_attention.heads", heads=()),
        Edit(name="stack.blocks.1", positions=()),
    ]
    for edits in (same_values, empty_edits):
        with record(network, edits=edits):
            assert torch.equal(forward(), before)


def test_editing_a_position_changes_only_positions_that_see_it() -> None:
    network, text = model(), tokens()
    before = network(text)
    with record(network, edits=[Edit(name="stack.blocks.0", positions=(3,))]) as tensors:
        after = network(text)
    assert (tensors["stack.blocks.0"][:, 3] == 0).all()
    assert (tensors["stack.blocks.0"][:, 2] != 0).any()
    close(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().amax((0, 2)).gt(1e-4).all()
    weights = "stack.blocks.1.self_attention.weights"
    with record(network, edits=[Edit(name=weights, value=0.25, heads=(1, 2), positions=(5,))]) as tensors:
        network(text)
    assert (tensors[weights][:, 1:3, 5] == 0.25).all()
    assert not (tensors[weights][:, 0, 5] == 0.25).any()
    assert not (tensors[weights][:, 1, 4] == 0.25).any()


def test_edits_of_one_tensor_apply_in_order() -> None:
    network, text = model(), tokens()
    name = "stack.blocks.0.feedforward"
    with record(network, edits=[Edit(name=name, value=2.0), Edit(name=name, value=3.0, positions=(1,))]) as tensors:
        network(text)
    assert tensors[name][:, :, 0].tolist() == [[2.0, 3.0] + [2.0] * 5] * B


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Edit(name="stack.blocks.0.selfattention.heads"), "did you mean 'stack.blocks.0.self_attention.heads'"),
        (Edit(name="stack.blocks.0.feedforward", heads=(0,)), "feedforward has no heads; use q, k, v"),
        (Edit(name="stack.blocks.0.self_attention.k", heads=(2,)), "has no head 2; it has 2, 0 to 1"),
        (Edit(name="stack.blocks.0.self_attention.heads", heads=(-1,)), "has no head -1"),
        (Edit(name="stack.blocks.0", positions=(7,)), "has no position 7; it has 7, 0 to 6"),
        (
            Edit(name="stack.blocks.0", value=torch.zeros(2, 5)),
            r"value of shape \(2, 5\) does not broadcast to \(3, 7, 24\)",
        ),
        (Edit(name="stack.position.embed"), "edit not applied: no forward pass computed stack.position.embed"),
    ],
)
def test_edit_has_a_description(edit: Edit, words: str) -> None:
    network, text = model(position=Rotary(), n_kv_heads=2), tokens()
    with pytest.raises(ValueError, match=words), record(network, edits=[edit]):
        network(text)


def test_nested_edit_recording_is_rejected_and_the_outer_one_continues() -> None:
    network, text = model(), tokens()
    before = network(text)
    with record(network) as tensors:
        with pytest.raises(ValueError, match="already being recorded; end that recording first"), record(network):
            pass
        close(network(text), before)
    assert "stack.blocks.1.self_attention.weights" in tensors

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


def made(family: str, **variant: object) -> tuple[AnyModel, Callable[[], Tensor]]:
    """Return a model and a forward pass through it."""
    if family == "translator":
        one, source, target = translator(**variant), tokens(B, S), tokens()
        return one, lambda: one(source, target)
    two, text = model(**variant) if family == "gpt" else encoder(**variant, spec=HEAD), tokens()
    return two, lambda: two(text)


def close(one: Tensor, other: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


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
    one, passed = made(family, **variant)
    before = passed()
    with record(one) as seen:
        within = passed()
    close(within, before)
    assert torch.equal(passed(), before)
    assert torch.equal(seen["unembedding"], within)
    assert set(seen) <= set(names(one))


@pytest.mark.parametrize("name", ["gpt2", "llama", "modern", "transformer-decoder", "bert-tiny", "transformer-base"])
def test_parts_of_presets_can_be_recorded(name: str) -> None:
    spec = PRESETS[name]
    stacks = ("encoder", "decoder") if isinstance(spec, EncoderDecoderSpec) else ("stack",)
    sizes = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 31, "n_kv_heads": None, "d_head": None}
    small = {stack: replace(getattr(spec, stack), **sizes) for stack in stacks}
    one = shaken(build(replace(spec, vocab_size=V, max_len=MAX_LEN, **small))).eval()
    given = (tokens(B, S), tokens()) if len(stacks) == 2 else (tokens(),)
    before = one(*given)
    with record(one):
        close(one(*given), before)


@pytest.mark.slow
def test_recording_works_with_padding_and_documents() -> None:
    text, token_mask = padded([torch.arange(5), torch.arange(7), torch.arange(2)], "scattered", T)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2]]).expand(B, -1)
    for one in (model(position=ALiBi(), n_kv_heads=2), encoder(position=Rotary())):
        for how in ({"token_mask": token_mask}, {"documents": documents}):
            before = one(text, **how)
            with record(one) as seen:
                close(one(text, **how), before)
            mask = seen["stack.blocks.1.self_attention.mask"]
            weights = seen["stack.blocks.1.self_attention.weights"]
            assert (weights[~mask.expand_as(weights)] == 0).all()
    both = translator(n_kv_heads=2)
    source, source_token_mask = padded([torch.arange(3), torch.arange(5), torch.arange(1)], "right", S)
    before = both(source, text, source_token_mask=source_token_mask)
    with record(both) as seen:
        close(both(source, text, source_token_mask=source_token_mask), before)
    across = seen["decoder.blocks.2.cross_attention.weights"]
    assert across.shape == (B, 4, T, S)
    assert (across.masked_select(~source_token_mask[:, None, None]) == 0).all()


@pytest.mark.slow
def test_recording_works_in_cached_decode_steps() -> None:
    for one, source in ((model(position=Rotary(), n_kv_heads=2), None), (translator(), tokens(B, S))):
        text, lengths = tokens(B, 4), torch.tensor([4, 2, 3])
        given = {} if source is None else {"source": source}

        def steps(one: AnyModel, text: Tensor, lengths: Tensor, given: dict) -> list[Tensor]:
            assert isinstance(one, DecoderOnly | EncoderDecoder)
            logits, cache = one.start(text, lengths, **given, capacity=9)
            return [logits, *(one.step(torch.tensor([3, 5, 7]), cache) for _ in range(2))]

        before = steps(one, text, lengths, given)
        with record(one) as seen:
            within = steps(one, text, lengths, given)
        for was, became in zip(before, within, strict=True):
            close(became, was)
        stack = "stack" if source is None else "decoder"
        assert seen[f"{stack}.blocks.0.self_attention.weights"].shape == (B, 4, 1, 10)  # of the last step


def test_recording_works_in_bfloat16() -> None:
    one = model().bfloat16()
    text = tokens()
    before = one(text)
    with record(one) as seen:
        close(one(text), before, atol=0.1)
    assert seen["stack.blocks.0.self_attention.weights"].dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within the compiler
@torch.no_grad()
def test_compiled_blocks_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shape annotations cannot be compiled
    one = model()
    for block in one.stack.blocks:
        block.compile(backend="eager")
    text = tokens()
    before, compiled = one(text), [block._compiled_call_impl for block in one.stack.blocks]
    with record(one) as seen:
        close(one(text), before)
    assert "stack.blocks.1.self_attention.weights" in seen
    with record(one, edits=[Edit(name="stack.blocks.0.feedforward")]):
        assert (one(text) - before).abs().max() > 1e-3
    assert [block._compiled_call_impl for block in one.stack.blocks] == compiled
    close(one(text), before)


# Recordings contain the actual values.


@pytest.mark.parametrize("family", ["gpt", "bert", "translator"])
def test_recorded_tensors_satisfy_the_formulas(family: str) -> None:
    one, passed = made(family, n_kv_heads=2, gated=True)
    with record(one) as seen:
        passed()
    for name, part in one.named_modules():
        if isinstance(part, Attention):
            weights, v = seen[f"{name}.weights"], seen[f"{name}.v"].repeat_interleave(2, dim=1)
            close(weights.sum(-1), torch.ones(weights.shape[:-1]))
            mask = seen[f"{name}.mask"].expand_as(weights)
            assert (weights[~mask] == 0).all()
            scores = seen[f"{name}.scores"].masked_fill(~mask, -torch.inf)
            close(scores.softmax(-1), weights)
            close(attention_scores(seen[f"{name}.q"], seen[f"{name}.k"]), seen[f"{name}.scores"])
            close(weights @ v, seen[f"{name}.heads"])
            whole = seen[f"{name}.heads"].transpose(1, 2).flatten(-2) @ part.out.weight.T + part.out.bias
            close(whole, seen[name])
        if isinstance(part, FeedForward):
            close(part.down(seen[f"{name}.activations"]), seen[name])
    if family == "translator":
        assert seen["decoder.blocks.0.cross_attention.weights"].shape == (B, 4, T, S)
    stack = "decoder" if family == "translator" else "stack"
    residual = seen[f"{stack}.blocks.1.feedforward_residual.dropout"]
    kind = "cross_residual" if family == "translator" else "self_residual"
    close(seen[f"{stack}.blocks.1.{kind}"] + residual, seen[f"{stack}.blocks.1"])


def test_recorded_weights_of_a_head_match_its_slice() -> None:
    one, text = model(n_kv_heads=2), tokens()
    with record(one) as seen:
        one(text)
    attention, h = one.stack.blocks[0].self_attention, seen["stack.blocks.0.self_residual.before"]
    for head in range(4):
        own, shared = slice(6 * head, 6 * head + 6), slice(6 * (head // 2), 6 * (head // 2) + 6)
        q = h @ attention.query.weight[own].T + attention.query.bias[own]
        k = h @ attention.key.weight[shared].T + attention.key.bias[shared]
        scores = (q @ k.mT / 6**0.5).masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
        close(scores.softmax(-1), seen["stack.blocks.0.self_attention.weights"][:, head])


def test_recorded_weights_in_training_are_those_before_dropout() -> None:
    one, text = model(dropout=Dropout(attention=0.5)), tokens()
    with record(one) as seen:
        one(text)
    still = seen["stack.blocks.0.self_attention.weights"]
    with record(one.train()) as seen:
        one(text)
    close(seen["stack.blocks.0.self_attention.weights"], still)
    assert not torch.allclose(
        still @ seen["stack.blocks.0.self_attention.v"], seen["stack.blocks.0.self_attention.heads"]
    )


def test_later_pass_overwrites_and_only_selects() -> None:
    one, text = model(), tokens()
    with record(one, patterns=["*.weights", "stack.blocks.?"]) as seen:
        one(text)
        one(text[:2, :5])
    assert len(seen) == 2 + 2
    assert seen["stack.blocks.1"].shape == (2, 5, 24)
    with record(one, patterns=["*.weights"]) as again:
        one(text)
    assert len(again) == 2
    assert seen["stack.blocks.0.self_attention.weights"].shape == (2, 4, 5, 5)  # not those of the second run


# Nothing is left behind.


def traces(one: nn.Module) -> list[tuple[object, ...]]:
    """Return each module's attributes and numbers of hooks."""
    return [(sorted(vars(part)), len(part._forward_hooks), len(part._forward_pre_hooks)) for part in one.modules()]


@pytest.mark.slow
def test_model_is_unchanged_after_recording_even_with_exceptions() -> None:
    one = translator()
    before = traces(one)
    one(tokens(), tokens())
    with pytest.raises(ZeroDivisionError), record(one):
        one(tokens(B, 1 // 0), tokens())
    assert traces(one) == before
    beyond = Edit(name="encoder.blocks.0.self_attention.heads", heads=(4,))
    with pytest.raises(ValueError, match="has no head 4; it has 4, 0 to 3"), record(one, edits=[beyond]):
        one(tokens(), tokens())  # raises during a forward pass
    assert traces(one) == before
    with record(one):
        one(tokens(), tokens())
    assert traces(one) == before


class Mark:
    """An object that lives as long as the graph that refers to it."""


@pytest.mark.slow
def test_no_graph_is_kept_alive() -> None:
    one = model()
    with record(one) as seen:
        logits = one(tokens())
    assert not any(tensor.requires_grad for tensor in seen.values())
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
    one, text = model(), tokens()
    one(text).logsumexp(-1).mean().backward()
    before = [parameter.grad.clone() for parameter in one.parameters() if parameter.grad is not None]
    one.zero_grad()
    with record(one):
        one(text).logsumexp(-1).mean().backward()
    for was, parameter in zip(before, one.parameters(), strict=True):
        assert parameter.grad is not None
        close(parameter.grad, was)


@pytest.mark.slow
def test_hundred_recordings_do_not_leak_memory() -> None:
    one, text = model(), tokens()

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    with torch.no_grad():
        for _ in range(9):
            with record(one):
                one(text)
        tensors, peak = alive(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(100):
            with record(one) as seen:
                one(text)
        del seen
    assert alive() <= tensors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 5 * 1024  # KiB


# Edits.


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert", "translator"])
def test_editing_a_head_to_zero_equals_zeroing_its_output_slice(family: str) -> None:
    one, passed = made(family, n_kv_heads=2)
    attentions = [(name, part) for name, part in one.named_modules() if isinstance(part, Attention)]
    for number, (name, part) in enumerate(attentions):
        head = number % 4
        with record(one, edits=[Edit(name=f"{name}.heads", heads=(head,))]):
            edited = passed()
        kept = part.out.weight.detach().clone()
        with torch.no_grad():
            part.out.weight[:, 6 * head : 6 * head + 6] = 0
        close(edited, passed())
        assert not torch.allclose(edited, (restored(part, kept), passed())[1])


def restored(part: Attention, weight: Tensor) -> None:
    with torch.no_grad():
        part.out.weight.copy_(weight)


@pytest.mark.parametrize("family", ["gpt", "bert", "translator"])
def test_patching_all_tensors_gives_the_logits_of_the_source_run(family: str) -> None:
    one, first = made(family)
    with record(one) as seen:
        expected = first()
    others = tokens(B, S), tokens()
    again = one(*others) if isinstance(one, EncoderDecoder) else one(others[1])
    assert not torch.allclose(again, expected)
    patches = [Edit(name=name, value=tensor) for name, tensor in seen.items() if tensor.dtype != torch.bool]
    for some in (patches, [edit for edit in patches if edit.name.startswith(("stack.blocks", "decoder.blocks"))]):
        with record(one, edits=some):
            patched = one(*others) if isinstance(one, EncoderDecoder) else one(others[1])
        close(patched, expected)


def test_empty_edit_changes_nothing() -> None:
    one, passed = made("gpt")
    with record(one) as seen:
        before = passed()
    same = [Edit(name=name, value=tensor) for name, tensor in seen.items()]
    none = [Edit(name="stack.blocks.0.self_attention.heads", heads=()), Edit(name="stack.blocks.1", positions=())]
    for edits in (same, none):
        with record(one, edits=edits):
            assert torch.equal(passed(), before)


def test_editing_a_position_changes_only_positions_that_see_it() -> None:
    one, text = model(), tokens()
    before = one(text)
    with record(one, edits=[Edit(name="stack.blocks.0", positions=(3,))]) as seen:
        after = one(text)
    assert (seen["stack.blocks.0"][:, 3] == 0).all()
    assert (seen["stack.blocks.0"][:, 2] != 0).any()
    close(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().amax((0, 2)).gt(1e-4).all()
    weights = "stack.blocks.1.self_attention.weights"
    with record(one, edits=[Edit(name=weights, value=0.25, heads=(1, 2), positions=(5,))]) as seen:
        one(text)
    assert (seen[weights][:, 1:3, 5] == 0.25).all()
    assert not (seen[weights][:, 0, 5] == 0.25).any()
    assert not (seen[weights][:, 1, 4] == 0.25).any()


def test_edits_of_one_tensor_apply_in_order() -> None:
    one, text = model(), tokens()
    name = "stack.blocks.0.feedforward"
    with record(one, edits=[Edit(name=name, value=2.0), Edit(name=name, value=3.0, positions=(1,))]) as seen:
        one(text)
    assert seen[name][:, :, 0].tolist() == [[2.0, 3.0] + [2.0] * 5] * B


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
    one, text = model(position=Rotary(), n_kv_heads=2), tokens()
    with pytest.raises(ValueError, match=words), record(one, edits=[edit]):
        one(text)


def test_nested_edit_recording_is_rejected_and_the_outer_one_continues() -> None:
    one, text = model(), tokens()
    before = one(text)
    with record(one) as seen:
        with pytest.raises(ValueError, match="already being recorded; end that recording first"), record(one):
            pass
        close(one(text), before)
    assert "stack.blocks.1.self_attention.weights" in seen

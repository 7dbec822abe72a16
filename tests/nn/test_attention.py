"""Both implementations of attention agree with each other and with PyTorch's `nn.MultiheadAttention`."""

from typing import Any

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.nn import Attention, attend, attend_by_hand, attend_fused, attention
from tercet.nn.attention import attention_scores, attention_weights
from tercet.nn.specs import ALiBi

B, H, T, S, K = 2, 6, 5, 7, 3
GROUPS = {"MHA": 6, "GQA": 2, "MQA": 1}


def padding_mask(queries: int, keys: int) -> Tensor:
    mask = torch.ones(B, 1, queries, keys, dtype=torch.bool)
    mask[1, :, :, -2:] = False
    return mask


def random_mask(queries: int, keys: int) -> Tensor:
    """Return a random mask in which query 2 of row 0 sees no key."""
    mask = torch.rand(B, 1, queries, keys) < 0.6
    mask[0, :, 2] = False
    return mask


MASKS = {
    "none": lambda queries, keys: None,
    "padding": padding_mask,
    "causal": lambda queries, keys: torch.ones(1, 1, queries, keys, dtype=torch.bool).tril(),
    "random": random_mask,
}


def tensors(groups: int, keys: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(B, n, t, K, dtype=dtype) for n, t in ((H, T), (groups, keys), (groups, keys)))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def alibi(queries: int, keys: int) -> Tensor:
    scheme = ALiBi().build(d_model=H * K, d_head=K, n_heads=H, max_len=keys)
    bias = scheme.bias(torch.arange(queries)[None], torch.arange(keys)[None])
    assert bias is not None
    return bias


def outputs_and_gradients(form, qkv, **options) -> list[Tensor]:
    out = form(*qkv, **options)
    weights = torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype)
    return [out, *torch.autograd.grad((out * weights).sum(), qkv)]


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "alibi"])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("kind", MASKS)
def test_both_forms_agree_forward_and_backward(kind: str, groups: int, with_bias: bool) -> None:
    qkv = tensors(groups, S)
    options = {"mask": MASKS[kind](T, S), "bias": alibi(T, S) if with_bias else None}
    fused, by_hand = (outputs_and_gradients(form, qkv, **options) for form in (attend_fused, attend_by_hand))
    for found, expected in zip(fused, by_hand, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def source_mask(queries: int, keys: int) -> Tensor:
    """Return a mask with one row for all queries, as in cross-attention and decode steps."""
    return padding_mask(1, keys)


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "alibi"])
@pytest.mark.parametrize("groups", [2, 1], ids=["GQA", "MQA"])
@pytest.mark.parametrize("kind", ["padding", "random", "source", "causal flag"])
def test_heads_folded_into_queries_agree_forward_and_backward(
    kind: str, groups: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs, heads are folded into queries if there is a mask or bias."""
    causal = kind == "causal flag"
    keys = T if causal else S
    qkv = tensors(groups, keys)
    mask = None if causal else {**MASKS, "source": source_mask}[kind](T, keys)
    options = {"mask": mask, "bias": alibi(T, keys) if with_bias else None, "causal": causal}
    by_hand = outputs_and_gradients(attend_by_hand, qkv, **options)
    monkeypatch.setattr(attention, "FOLD_DEVICES", ("cpu",))
    for found, expected in zip(outputs_and_gradients(attend_fused, qkv, **options), by_hand, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_folded_heads_use_the_cache_and_a_mask_of_one_row_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode step on a GPU passes the cache itself to PyTorch's kernel, without a copy."""
    monkeypatch.setattr(attention, "FOLD_DEVICES", ("cpu",))
    arguments = dict[str, Any]()

    def kernel(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        arguments.update(options, q=q, k=k, v=v)
        return torch.zeros_like(q)

    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    q, k, v, mask = torch.randn(B, H, 1, K), torch.randn(B, 2, S, K), torch.randn(B, 2, S, K), padding_mask(1, S)
    attend_fused(q, k, v)
    assert arguments["q"] is q
    assert arguments["enable_gqa"]
    arguments.clear()
    assert attend_fused(q, k, v, mask=mask).shape == q.shape
    assert arguments["k"] is k
    assert arguments["v"] is v
    assert arguments["attn_mask"] is mask
    assert arguments["q"].shape == (B, 2, H // 2, K)
    assert not arguments.get("enable_gqa")
    monkeypatch.undo()
    assert attention.FOLD_DEVICES == ("cuda",)


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "alibi"])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_causal_flag_equals_the_causal_mask_in_both_forms(groups: int, with_bias: bool) -> None:
    qkv = tensors(groups, T)
    bias = alibi(T, T) if with_bias else None
    masked = outputs_and_gradients(attend_by_hand, qkv, mask=MASKS["causal"](T, T), bias=bias)
    for form in (attend_fused, attend_by_hand):
        for found, expected in zip(outputs_and_gradients(form, qkv, causal=True, bias=bias), masked, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("kind", MASKS)
def test_both_forms_agree_in_bfloat16(kind: str, groups: int) -> None:
    q, k, v = tensors(groups, S, torch.bfloat16)
    mask = MASKS[kind](T, S)
    for bias in (None, alibi(T, S)):
        fused, by_hand = attend_fused(q, k, v, mask=mask, bias=bias), attend_by_hand(q, k, v, mask=mask, bias=bias)
        assert fused.dtype == by_hand.dtype == torch.bfloat16
        torch.testing.assert_close(fused, by_hand, atol=4e-2, rtol=4e-2)


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "alibi"])
@pytest.mark.parametrize("form", [attend_fused, attend_by_hand])
def test_query_without_visible_keys_has_zero_output_and_gradient(form, with_bias: bool) -> None:
    qkv = tensors(2, S)
    out, dq, dk, dv = outputs_and_gradients(form, qkv, mask=random_mask(T, S), bias=alibi(T, S) if with_bias else None)
    assert (out[0, :, 2] == 0).all()
    assert (dq[0, :, 2] == 0).all()
    for tensor in (out, dq, dk, dv):
        assert tensor.isfinite().all()
        assert tensor.abs().sum() > 0


@pytest.mark.parametrize("queries", [5, 130])  # compiled kernels accept 130 x 130 scores of 8 heads
@pytest.mark.parametrize("kind", ["none", "causal", "random"])
def test_learned_bias_has_a_gradient_in_every_form(kind: str, queries: int) -> None:
    keys = max(queries, S)
    q, k, v = (torch.randn(B, n, t, 16, requires_grad=True) for n, t in ((H, queries), (2, keys), (2, keys)))
    bias = torch.randn(1, H, queries, keys, requires_grad=True)
    causal = kind == "causal" and queries == keys
    mask = None if causal else MASKS[kind](queries, keys)
    gradients = [
        torch.autograd.grad(form(q, k, v, mask=mask, bias=bias, causal=causal).square().sum(), (q, k, v, bias))
        for form in (attend_by_hand, attend, attend_fused)
    ]
    assert gradients[0][3].abs().max() > 1e-3
    for form in gradients[1:]:
        for found, expected in zip(form, gradients[0], strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", [attend_fused, attend_by_hand])
def test_non_boolean_mask_is_rejected(form, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(2, S)
    mask = torch.ones(B, 1, T, S)
    with pytest.raises(jaxtyping.TypeCheckError):  # tests check the annotations ...
        form(q, k, v, mask=mask)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"torch.float32; try mask.bool\(\)"):  # the value without them
        form(q, k, v, mask=mask)


@pytest.mark.parametrize("form", [attend_fused, attend_by_hand])
def test_causal_flag_with_more_keys_than_queries_is_rejected(form) -> None:
    q, k, v = tensors(2, S)
    with pytest.raises(ValueError, match=r"T=5, S=7.*in the mask"):
        form(q, k, v, causal=True)
    with pytest.raises(ValueError, match="no mask"):
        form(q, k[:, :, :T], v[:, :, :T], causal=True, mask=MASKS["causal"](T, T))


def test_attend_falls_back_to_pytorch_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(2, S)
    mask, bias = random_mask(T, S), alibi(T, S)
    monkeypatch.setattr("tercet.nn.kernels.attention", lambda *qkv, **options: None)
    assert torch.equal(attend(q, k, v, mask=mask, bias=bias), attend_fused(q, k, v, mask=mask, bias=bias))
    monkeypatch.setattr("tercet.nn.kernels.attention", lambda *qkv, **options: q)
    assert attend(q, k, v, mask=mask, bias=bias) is q
    with pytest.raises(ValueError, match="no mask"):  # arguments are checked before a kernel is chosen
        attend(q, k[:, :, :T], v[:, :, :T], causal=True, mask=MASKS["causal"](T, T))


def test_note_receives_each_step_and_its_result_is_used() -> None:
    q, k, v = tensors(2, T)
    tensors_by_name = dict[str, Tensor]()

    def note(name: str, tensor: Tensor) -> Tensor:
        tensors_by_name[name] = tensor
        return 2 * tensor if name == "heads" else tensor

    out = attend_by_hand(q, k, v, causal=True, note=note)
    assert list(tensors_by_name) == ["q", "k", "v", "scores", "mask", "weights", "heads"]
    assert torch.equal(tensors_by_name["mask"][0, 0], torch.ones(T, T, dtype=torch.bool).tril())
    assert torch.equal(out, 2 * attend_by_hand(q, k, v, causal=True))


def test_softmax_of_bfloat16_scores_has_a_float32_gradient() -> None:
    scores = (3 * torch.randn(B, H, T, S)).bfloat16().requires_grad_()
    grad_output = torch.rand(B, H, T, S).bfloat16()
    (gradient,) = torch.autograd.grad((attention_weights(scores) * grad_output).sum(), scores)
    exact = scores.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad((exact.softmax(-1) * grad_output).sum(), exact)
    torch.testing.assert_close(gradient.double(), expected, rtol=2**-8, atol=1e-5)


def test_weights_sum_to_one() -> None:
    q, k, _ = tensors(2, S)
    weights = attention_weights(attention_scores(q, k), mask=padding_mask(T, S))
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))
    assert (weights[1, :, :, -2:] == 0).all()


@pytest.mark.parametrize("form", [attend_fused, attend_by_hand])
def test_dropout_keeps_the_mean(form) -> None:
    q, k, v = tensors(2, S)
    outputs = form(*(x.repeat(2000, 1, 1, 1) for x in (q, k, v)), dropout=0.3)
    mean = outputs.unflatten(0, (2000, B)).mean(0)
    torch.testing.assert_close(mean, form(q, k, v), atol=0.12, rtol=0)
    assert not torch.equal(form(q, k, v, dropout=0.3), form(q, k, v))


def copy_weights(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    """Copy the weights of PyTorch's module, whose query, key and value are stacked in one matrix."""
    state = theirs.state_dict()
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        for part, weight, bias in zip(
            parts, state["in_proj_weight"].chunk(3), state["in_proj_bias"].chunk(3), strict=True
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        ours.out.weight.copy_(state["out_proj.weight"])
        ours.out.bias.copy_(state["out_proj.bias"])


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_attention_matches_pytorch(cross: bool, masked: bool) -> None:
    theirs = nn.MultiheadAttention(24, 4, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    ours = Attention(24, 4, bias=True)
    copy_weights(ours, theirs)
    x, memory = torch.randn(B, T, 24), torch.randn(B, S, 24)
    source = memory if cross else x
    real = torch.ones(B, source.shape[1], dtype=torch.bool)
    real[1, -2:] = not masked
    expected, _ = theirs(x, source, source, key_padding_mask=~real)
    found = ours(x, memory if cross else None, mask=real[:, None, None] if masked else None)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_grouped_heads_equal_full_attention_with_repeated_heads() -> None:
    grouped_attention, full_attention = Attention(24, 6, n_kv_heads=2), Attention(24, 6)
    with torch.no_grad():
        for name in ("query", "out"):
            getattr(full_attention, name).weight.copy_(getattr(grouped_attention, name).weight)
        for name in ("key", "value"):
            heads = getattr(grouped_attention, name).weight.unflatten(0, (2, 4))
            getattr(full_attention, name).weight.copy_(heads.repeat_interleave(3, dim=0).flatten(0, 1))
    x = torch.randn(B, T, 24)
    torch.testing.assert_close(grouped_attention(x, causal=True), full_attention(x, causal=True), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("groups", [6, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_rows_with_a_shared_source_match_repeated_sources(n: int, groups: int) -> None:
    attention, mask = Attention(24, 6, n_kv_heads=groups), padding_mask(1, S)
    x, source = torch.randn(n * B, T, 24), torch.randn(B, S, 24)
    shared_leaves = source.clone().requires_grad_(), x.clone().requires_grad_()
    separate_leaves = source.clone().requires_grad_(), x.clone().requires_grad_()
    found = attention(shared_leaves[1], shared_leaves[0], mask=mask)
    expected = attention(
        separate_leaves[1], separate_leaves[0].repeat_interleave(n, dim=0), mask=mask.repeat_interleave(n, dim=0)
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    for y in (found, expected):
        (y * x).sum().backward()
    for shared_leaf, separate_leaf in zip(shared_leaves, separate_leaves, strict=True):
        torch.testing.assert_close(shared_leaf.grad, separate_leaf.grad, atol=1e-5, rtol=1e-5)


def test_query_rows_must_be_a_multiple_of_the_sources() -> None:
    attention, source = Attention(24, 4), torch.randn(2, S, 24)
    for rows in (1, 3):
        with pytest.raises(ValueError, match=rf"query rows must be a multiple of the number of key rows: {rows} and 2"):
            attention(torch.randn(rows, T, 24), source)


@pytest.mark.parametrize(("queries", "keys"), [(4, 3), (1, 3), (3, 2)])
@pytest.mark.parametrize("form", [attend, attend_fused, attend_by_hand])
def test_query_heads_must_be_a_multiple_of_the_key_heads(form: Any, queries: int, keys: int) -> None:
    q, source = torch.randn(B, queries, 1, 8), torch.randn(B, keys, S, 8)
    with pytest.raises(
        ValueError, match=f"query heads must be a multiple of the number of key heads: {queries} and {keys}"
    ):
        form(q, source, source)


def test_heads_may_be_wider_than_d_model_divided_by_n_heads() -> None:
    attention = Attention(24, 4, d_head=7)
    assert attention.query.weight.shape == (28, 24)
    assert attention(torch.randn(B, T, 24)).shape == (B, T, 24)


def test_qk_norm_makes_weights_independent_of_input_scale() -> None:
    x = torch.randn(B, T, 24)
    for qk_norm in (True, False):
        attention = Attention(24, 4, qk_norm=qk_norm)
        weights = [
            attention_weights(
                attention_scores(
                    attention.query_norm(attention.query(s * x).unflatten(-1, (4, 6))).transpose(1, 2),
                    attention.keys_values(s * x)[0],
                )
            )
            for s in (1.0, 9.0)
        ]
        assert torch.allclose(*weights, atol=1e-4) is qk_norm


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_softcap_bounds_the_scores_before_bias_and_mask(kind: str, with_bias: bool) -> None:
    (q, k, v), cap, mask = tensors(2, S), 0.7, MASKS[kind](T, S)
    bias = alibi(T, S) if with_bias else None
    scores = cap * torch.tanh(q @ k.repeat_interleave(H // 2, 1).mT / K**0.5 / cap)
    scores = scores if bias is None else scores + bias
    weights = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1).nan_to_num(0.0)
    expected = weights @ v.repeat_interleave(H // 2, 1)
    out = attend(q, k, v, mask=mask, bias=bias, softcap=cap)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(out, attend(q, k, v, mask=mask, bias=bias), atol=1e-3)
    out.square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@torch.no_grad()
def test_qk_norm_of_all_heads_is_one_rms_norm_of_the_projection() -> None:
    attention, x = Attention(24, 4, n_kv_heads=2, qk_norm="all_heads"), torch.randn(B, T, 24)
    for norm, project, n_heads in (
        (attention.query_norm, attention.query, 4),
        (attention.key_norm, attention.key, 2),
    ):
        norm.weight.normal_()
        expected = torch.nn.functional.rms_norm(project(x), (n_heads * 6,), norm.weight, 1e-6)
        torch.testing.assert_close(norm(project(x).unflatten(-1, (n_heads, 6))), expected.unflatten(-1, (n_heads, 6)))


def test_qk_norm_is_an_rms_norm_of_each_head_with_an_epsilon_of_1e_6(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = Attention(24, 4, qk_norm=True), 3e-3 * torch.randn(B, T, 24)
    qk = list[Tensor]()
    monkeypatch.setattr(attention, "attend", lambda q, k, v, **options: qk.extend((q, k)) or q)
    norms = (attention.query_norm, attention.key_norm)
    for norm in norms:
        nn.init.normal_(norm.weight)
    attention(x)
    for found, linear, norm in zip(qk, (attention.query, attention.key), norms, strict=True):
        heads = linear(x).unflatten(-1, (4, 6)).transpose(1, 2)
        expected = heads * (heads.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * norm.weight
        torch.testing.assert_close(found, expected)


def test_dropout_acts_in_training_only() -> None:
    attention, x = Attention(24, 4, dropout=0.5), torch.randn(B, T, 24)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    torch.testing.assert_close(attention(x), attention(x), atol=0, rtol=0)


def test_invalid_sizes_are_rejected_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"d_model=24 must be divisible by n_heads=5; try n_heads=4"):
        Attention(24, 5)
    with pytest.raises(ValueError, match=r"n_heads=6 must be divisible by n_kv_heads=4"):
        Attention(24, 6, n_kv_heads=4)

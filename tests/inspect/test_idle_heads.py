"""Heads that write nothing and heads with equal weights are found, and no others."""

from typing import Any

import pytest
import torch

from tercet.inspect.idle_heads import _describe_heads, find_head_problems
from tercet.models import AnyModel, build, model_spec
from tercet.nn import Attention

SMALL: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 32}


def small_decoder(**changes: Any) -> AnyModel:
    torch.manual_seed(0)
    return build(model_spec({"preset": "gpt2", "vocab_size": 20, "max_len": 8, "stack": {**SMALL, **changes}}))


def first_attention(model: AnyModel) -> Attention:
    return next(module for module in model.modules() if isinstance(module, Attention))


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2}, {"n_kv_heads": 1}, {"d_head": 12}])
def test_random_heads_are_neither_idle_nor_equal(changes: dict[str, Any]) -> None:
    assert find_head_problems(small_decoder(**changes), step=1) == []


@torch.no_grad()
def test_norms_are_those_of_the_products() -> None:
    attention = Attention(d_model=12, n_heads=4, n_kv_heads=2)
    norms, _ = _describe_heads(attention)
    out, value = attention.out.weight.unflatten(1, (4, 3)), attention.value.weight.unflatten(0, (2, 3))
    expected = [float((out[:, head] @ value[head // 2]).norm()) for head in range(4)]
    assert norms == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_a_head_that_writes_nothing_is_named() -> None:
    model = small_decoder()
    first_attention(model).out.weight[:, 8:16] = 0
    (problem,) = find_head_problems(model, step=7)
    assert (problem.name, problem.step) == ("idle_heads", 7)
    assert problem.text.startswith("1 attention head writes nothing: stack.blocks.0.self_attention head 1;")


@torch.no_grad()
def test_equal_heads_are_named_and_heads_that_share_keys_are_not() -> None:
    model = small_decoder()
    attention = first_attention(model)
    for linear in (attention.query, attention.key, attention.value):
        linear.weight[16:24] = linear.weight[:8]
    assert find_head_problems(model, step=1) == [], "the outputs still differ"
    attention.out.weight[:, 16:24] = attention.out.weight[:, :8]
    (problem,) = find_head_problems(model, step=1)
    assert "stack.blocks.0.self_attention heads 0 and 2" in problem.text


def test_equal_initial_weights_stay_equal() -> None:
    model = small_decoder()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.1)
    names = {problem.name for problem in find_head_problems(model, step=1)}
    assert names == {"equal_heads"}

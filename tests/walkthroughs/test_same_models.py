"""The recipes of the walk-throughs build the described models, which are implemented again with `torch.nn` only.

After Tercet's weights are copied, parameters, logits, gradients and dropout must be equal.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.walkthroughs import (
    plain_animals,
    plain_gpt2_and_bert,
    plain_grokking,
    plain_nutshell,
    plain_original_decoder,
)
from torch import Tensor, nn

from tercet.inspect.model_table import model_table
from tercet.models import AnyModel, AnySpec, Biases, BranchDropout, Dropout, EncoderDecoder, EncoderDecoderSpec, build
from tercet.nn import Learned, Sinusoidal
from tercet.nn.specs import Normal
from tercet.training.recipe.recipe import load_recipe

ODD_SIZES = [{"d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 52}, {"d_model": 40, "n_layers": 3, "n_heads": 5}]
B, S, T = 3, 7, 11


@dataclass(frozen=True, kw_only=True)
class Written:
    """A recipe, and functions that build and call its second implementation."""

    recipe: str
    module: Any
    build: Callable[[AnySpec, float], nn.Module]
    letters: Mapping[str, str] = field(default_factory=dict)  # different names of the norms' parameters


def sizes(spec: Any, stack: Any) -> dict[str, int]:
    return {
        "vocab": spec.vocab_size, "width": stack.d_model, "layers": stack.n_layers, "heads": stack.n_heads,
        "inner": stack.inner_width,
    }  # fmt: skip


def nutshell(spec: Any, rate: float) -> nn.Module:
    return plain_nutshell.Model(**sizes(spec, spec.stack), length=spec.max_len, rate=rate)


def gpt2(spec: Any, rate: float) -> nn.Module:
    rates = (rate, rate / 2, rate / 3, rate / 4)
    return plain_gpt2_and_bert.Model(**sizes(spec, spec.stack), length=spec.max_len, rates=rates, causal=True)


def bert(spec: Any, rate: float) -> nn.Module:
    rates = (rate, rate / 2, rate / 3, rate / 4)
    return plain_gpt2_and_bert.Model(**sizes(spec, spec.stack), length=spec.max_len, rates=rates, causal=False)


def original_decoder(spec: Any, rate: float) -> nn.Module:
    return plain_original_decoder.Model(**sizes(spec, spec.stack), rate=rate)


def grokking(spec: Any, rate: float) -> nn.Module:
    return plain_grokking.Model(
        **sizes(spec, spec.decoder), source_vocab=spec.source_vocab_size or spec.vocab_size, rate=rate
    )


def animals(spec: Any, rate: float) -> nn.Module:
    return plain_animals.Model(**sizes(spec, spec.stack), length=spec.max_len, rate=rate)


WRITTEN = {
    one.recipe: one
    for one in (
        Written(recipe="nutshell", module=plain_nutshell, build=nutshell),
        Written(recipe="walkthrough-gpt2", module=plain_gpt2_and_bert, build=gpt2),
        Written(recipe="walkthrough-bert", module=plain_gpt2_and_bert, build=bert),
        Written(
            recipe="original-decoder", module=plain_original_decoder, build=original_decoder,
            letters=plain_original_decoder.LETTERS,
        ),
        Written(recipe="grokking", module=plain_grokking, build=grokking),
        Written(recipe="animals", module=plain_animals, build=animals),
    )
}  # fmt: skip


def small(recipe: str, odd: Mapping[str, int], *, rate: float = 0.0) -> AnySpec:
    """Return the spec of a small model with dropout rates that distinguish the places."""
    spec = replace(load_recipe(recipe).model, vocab_size=61, max_len=20, pad_vocab_to=1)
    if isinstance(spec, EncoderDecoderSpec):
        sides = {side: resized(getattr(spec, side), odd, rate) for side in ("encoder", "decoder")}
        return replace(spec, source_vocab_size=53, **sides)
    return replace(spec, stack=resized(spec.stack, odd, rate))


def resized(stack: Any, odd: Mapping[str, int], rate: float) -> Any:
    """Set the dropout of each place that has one in the recipe. Models with separate rates get shares of it."""
    old = stack.dropout
    if isinstance(old.residual, BranchDropout) and old.residual.attention:
        branches: Any = BranchDropout(attention=rate / 3, feedforward=rate / 4)
    elif isinstance(old.residual, BranchDropout):
        branches = BranchDropout(attention=0.0, feedforward=rate)
    else:
        branches = rate
    apart = isinstance(old.residual, BranchDropout) and old.residual.attention
    dropout = Dropout(
        embedding=rate if old.embedding else 0.0,
        attention=(rate / 2 if apart else rate) if old.attention else 0.0,
        activation=rate if old.activation else 0.0,
        residual=branches,
    )
    return replace(stack, **{"d_ff": None, **odd}, dropout=dropout)


def copied(written: Written, ours: AnyModel, *, rate: float = 0.0) -> nn.Module:
    plain = written.build(ours.spec, rate)
    plain.load_state_dict(translated(written, plain, dict(ours.named_parameters())))
    return plain


def translated(written: Written, plain: nn.Module, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the names of the second implementation. A tied tensor has both of its names."""
    parts: dict[str, list[Tensor]] = {}
    for name, tensor in named.items():
        part, _, letter = name.rpartition(".")
        number = re.search(r"\.(\d+)\.", part)
        place = written.module.NAMES[re.sub(r"\.\d+\.", ".N.", part, count=1)]
        place = place if number is None else place.replace("N", number[1], 1)
        norm = "norm" in place or place.endswith(("norms.0", "norms.1"))
        letter = written.letters.get(letter, letter) if norm else letter
        if "*" in place:  # one part per head
            heads = len(
                [one for one in plain.state_dict() if re.fullmatch(f"{place.replace('*', '[0-9]+')}.{letter}", one)]
            )
            for head, piece in enumerate(tensor.chunk(heads)):
                parts[f"{place.replace('*', str(head))}.{letter}"] = [piece]
            continue
        place, _, _ = place.partition(":")
        parts.setdefault(f"{place}.{letter}", []).append(tensor)
    state = {name: torch.cat(pieces) for name, pieces in parts.items()}
    if "head.weight" in plain.state_dict() and "head.weight" not in state:
        state["head.weight"] = state["tokens.weight"]
    return state


def batch(ours: AnyModel) -> tuple[tuple[Tensor, ...], dict[str, Tensor], tuple[Tensor, ...]]:
    """Return the arguments of both implementations. They contain padding if the text has padding."""
    generator = torch.Generator().manual_seed(3)
    spec = ours.spec
    ids = torch.randint(spec.vocab_size, (B, T), generator=generator)
    if isinstance(ours, EncoderDecoder):
        source = torch.randint(spec.source_vocab_size or spec.vocab_size, (B, S), generator=generator)
        real = torch.arange(S) < torch.tensor([S, 4, 2])[:, None]
        return (source, ids), {"source_token_mask": real}, (source, ids, real)
    if spec.max_len == 20 and spec.embedding_norm:  # animals, padded on the left
        real = torch.arange(T) >= torch.tensor([0, 3, 8])[:, None]
        return (ids,), {"token_mask": real}, (ids, real)
    return (ids,), {}, (ids,)


def check_same(recipe: str, ours: AnyModel) -> None:
    """Check that both implementations are equal.

    Raises:
        AssertionError: If they differ. Copying the weights may raise other errors.
    """
    written = WRITTEN[recipe]
    plain = copied(written, ours)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in plain.parameters())
    args, kwargs, theirs = batch(ours)
    ours.eval(), plain.eval()
    real = kwargs.get("token_mask", torch.ones(B, T, dtype=torch.bool))
    logits, expected = ours(*args, **kwargs)[real], plain(*theirs)[real]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    targets = torch.arange(len(logits)) % ours.vocab_size
    F.cross_entropy(logits, targets).backward()
    F.cross_entropy(expected, targets).backward()
    gradients = translated(
        written, plain, {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in ours.named_parameters()}
    )
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(
            gradients[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def drawn(spec: AnySpec) -> AnyModel:
    """Return a model with all weights, biases and norms changed from their initial values, so that each matters."""
    model = build(spec, seed=5)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


@pytest.mark.parametrize("odd", ODD_SIZES, ids=["24", "40"])
@pytest.mark.parametrize("recipe", WRITTEN)
def test_parameters_logits_and_gradients_equal_the_second_implementation(recipe: str, odd: dict[str, int]) -> None:
    check_same(recipe, drawn(small(recipe, odd)))


@pytest.mark.parametrize("odd", ODD_SIZES, ids=["24", "40"])
@pytest.mark.parametrize("recipe", WRITTEN)
def test_dropout_equals_the_second_implementation(recipe: str, odd: dict[str, int]) -> None:
    """With one seed both draw the same masks, if they apply them in the same places and order."""
    ours = drawn(small(recipe, odd, rate=0.4)).train()
    plain = copied(WRITTEN[recipe], ours, rate=0.4).train()
    args, kwargs, theirs = batch(ours)
    real = kwargs.get("token_mask", torch.ones(B, T, dtype=torch.bool))
    torch.manual_seed(11)
    logits = ours(*args, **kwargs)[real]
    torch.manual_seed(11)
    expected = plain(*theirs)[real]
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-5)
    assert (logits - ours.eval()(*args, **kwargs)[real]).abs().max() > 1e-3


def on_stack(**changes: Any) -> Callable[[Any], Any]:
    return lambda spec: replace(spec, stack=replace(spec.stack, **changes))


def on_sides(**changes: Any) -> Callable[[Any], Any]:
    return lambda spec: replace(
        spec, encoder=replace(spec.encoder, **changes), decoder=replace(spec.decoder, **changes)
    )


FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "biases on all of attention": ("nutshell", on_stack(bias=True)),
    "no bias on the network": ("nutshell", on_stack(bias=False)),
    "a tied head": ("nutshell", lambda spec: replace(spec, tie_embeddings=True)),
    "gelu by tanh": ("nutshell", on_stack(activation="gelu_tanh")),
    "another eps": ("nutshell", on_stack(norm_eps=1e-12)),
    "norms after the sum": ("nutshell", on_stack(placement="post")),
    "no bias on the head": ("walkthrough-gpt2", lambda spec: replace(spec, logit_bias=False)),
    "no norm before the head": ("walkthrough-gpt2", on_stack(final_norm=False)),
    "learned positions in BERT": ("walkthrough-bert", on_stack(position=Learned())),
    "PyTorch's own norm": ("original-decoder", on_stack(norm="layer")),
    "embeddings that are not scaled": ("original-decoder", lambda spec: replace(spec, scale_embedding=False)),
    "post-norm": ("original-decoder", on_stack(placement="post", final_norm=True)),
    "biases on queries, keys and values": ("grokking", on_sides(bias=True)),
    "no bias on attention's output": ("grokking", on_sides(bias=Biases(qkv=False, out=False, feedforward=True))),
    "pre-norm": ("grokking", on_sides(placement="pre", final_norm=False)),
    "one embedding": ("grokking", lambda spec: replace(spec, share_embeddings=True, source_vocab_size=None)),
    "a norm after the last block": ("animals", on_stack(final_norm=True)),
    "no norm on the embeddings": ("animals", lambda spec: replace(spec, embedding_norm=False)),
    "the doubled exponent of its program": ("animals", on_stack(position=Sinusoidal(base=1e8))),
    "parallel sublayers": ("animals", on_stack(parallel=True)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_difference_is_detected(fault: str) -> None:
    recipe, plant = FAULTS[fault]
    spec = replace(plant(small(recipe, ODD_SIZES[0])), init=Normal())
    check_same(recipe, drawn(replace(small(recipe, ODD_SIZES[0]), init=Normal())))  # the same weights without the fault
    with pytest.raises((AssertionError, RuntimeError, KeyError)):
        check_same(recipe, drawn(spec))


DROPPED_ELSEWHERE = {
    "on attention's branch": ("animals", Dropout(residual=0.4)),
    "inside the network": ("nutshell", Dropout(embedding=0.4, attention=0.4, activation=0.4, residual=0.4)),
    "not inside the network": ("original-decoder", Dropout(embedding=0.4, residual=0.4)),
    "on attention's weights": ("grokking", Dropout(embedding=0.4, attention=0.4, residual=0.4)),
}


@pytest.mark.parametrize("fault", DROPPED_ELSEWHERE)
def test_dropout_in_another_place_is_detected(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, dropout = DROPPED_ELSEWHERE[fault]
    right = resized
    monkeypatch.setitem(globals(), "resized", lambda *given: replace(right(*given), dropout=dropout))
    with pytest.raises(AssertionError):
        test_dropout_equals_the_second_implementation(recipe, ODD_SIZES[0])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", WRITTEN)
def test_the_recipe_at_its_own_size_has_as_many_parameters(recipe: str) -> None:
    spec = replace(load_recipe(recipe).model, vocab_size=2000)
    if isinstance(spec, EncoderDecoderSpec):
        spec = replace(spec, source_vocab_size=3000)
    padded = -(-spec.vocab_size // spec.pad_vocab_to) * spec.pad_vocab_to
    with torch.device("meta"):
        plain = WRITTEN[recipe].build(replace(spec, vocab_size=padded), 0.1)
    assert model_table(spec).parameters == sum(parameter.numel() for parameter in plain.parameters())


@pytest.mark.exhaustive
def test_each_is_one_compiled_graph() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "tests.walkthroughs.traced"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]

"""With copied weights, the translator matches `torch.nn.Transformer` between the embeddings of the 2017 paper."""

import math
import random
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Sinusoidal

V = 19


def sinusoids(length: int, width: int) -> Tensor:
    """Compute the table of section 3.5 of the paper element by element."""
    table = torch.empty(length, width)
    for p in range(length):
        for i in range(width // 2):
            angle = p / 10_000 ** (2 * i / width)
            table[p, 2 * i], table[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


class Theirs(nn.Module):
    """PyTorch's encoder and decoder.

    PyTorch adds a final norm in any placement. The paper has none after post-norm, since the last sublayer ends with a
    norm, so it is left out here.
    """

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        super().__init__()
        side, pre = spec.encoder, spec.encoder.placement == "pre"
        options = {
            "dropout": 0.0,
            "activation": side.activation,
            "layer_norm_eps": side.norm_eps,
            "batch_first": True,
            "norm_first": pre,
            "bias": side.bias,
        }
        sizes = side.d_model, side.n_heads, side.d_ff

        def norm() -> nn.Module | None:
            return nn.LayerNorm(side.d_model, eps=side.norm_eps, bias=side.bias) if pre else None

        reader = nn.TransformerEncoderLayer(*sizes, **options)
        writer = nn.TransformerDecoderLayer(*sizes, **options)
        self.transformer = nn.Transformer(
            side.d_model,
            side.n_heads,
            batch_first=True,
            custom_encoder=nn.TransformerEncoder(reader, spec.encoder.n_layers, norm(), enable_nested_tensor=False),
            custom_decoder=nn.TransformerDecoder(writer, spec.decoder.n_layers, norm()),
        )
        self.embedding = nn.Parameter(torch.randn(V, side.d_model))

    def forward(self, source: Tensor, target: Tensor, *, source_token_mask: Tensor) -> Tensor:
        width = self.embedding.shape[1]
        x, y = (
            F.embedding(tokens, self.embedding) * math.sqrt(width) + sinusoids(tokens.shape[1], width)
            for tokens in (source, target)
        )
        hidden = self.transformer(
            x,
            y,
            tgt_mask=torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1),  # True hides a position in PyTorch
            src_key_padding_mask=~source_token_mask,
            memory_key_padding_mask=~source_token_mask,
        )
        return hidden @ self.embedding.T


def names(theirs: Theirs, values) -> dict[str, Tensor]:
    """Return, for each of our parameters, `values` of its counterpart: the parameter or its gradient."""
    tensors = {"source_embedding.weight": values(theirs.embedding)}

    def add(name: str, part: nn.Module) -> None:
        tensors.update({f"{name}.{kind}": values(parameter) for kind, parameter in part.named_parameters()})

    for side in ("encoder", "decoder"):
        stack = getattr(theirs.transformer, side)
        for i, layer in enumerate(stack.layers):
            block = f"{side}.blocks.{i}"
            attentions = {"self": layer.self_attn} | ({"cross": layer.multihead_attn} if side == "decoder" else {})
            for kind, attention in attentions.items():
                for all_three, ending in ((attention.in_proj_weight, "weight"), (attention.in_proj_bias, "bias")):
                    if all_three is not None:
                        for part, matrix in zip(("query", "key", "value"), values(all_three).chunk(3), strict=True):
                            tensors[f"{block}.{kind}_attention.{part}.{ending}"] = matrix
                add(f"{block}.{kind}_attention.out", attention.out_proj)
            add(f"{block}.feedforward.up", layer.linear1)
            add(f"{block}.feedforward.down", layer.linear2)
            place = "before" if layer.norm_first else "after"
            for number, branch in enumerate((*attentions, "feedforward"), start=1):
                add(f"{block}.{branch}_residual.{place}", getattr(layer, f"norm{number}"))
        if stack.norm is not None:
            add(f"{side}.final_norm", stack.norm)
    return tensors


@dataclass
class Pair:
    ours: EncoderDecoder
    theirs: Theirs


@torch.no_grad()
def pair(number: int) -> Pair:
    """Return the 2017 model for even numbers, pre-norm for odd ones; the rest is random."""
    draw = random.Random(number)
    heads = draw.choice([1, 2, 3, 5])
    bias = draw.random() < 0.7
    side = StackSpec(
        d_model=heads * draw.choice([4, 6, 8]),
        n_heads=heads,
        n_layers=draw.choice([1, 2, 3]),
        d_ff=draw.choice([11, 31, 50]),
        position=Sinusoidal(),
        placement="pre" if number % 2 else "post",
        activation="relu" if number // 2 % 2 else "gelu",
        norm_eps=draw.choice([1e-5, 1e-3]),
        bias=bias,
        norm_bias=bias,
    )
    writer = replace(side, n_layers=draw.choice([1, 2, 4]))
    spec = EncoderDecoderSpec(vocab_size=V, max_len=23, scale_embedding=True, encoder=side, decoder=writer)
    theirs = Theirs(spec)
    for parameter in theirs.parameters():  # PyTorch's norms and biases start as the identity
        parameter.add_(torch.randn_like(parameter) * 0.1)
    ours, tensors = EncoderDecoder(spec), names(theirs, lambda parameter: parameter)
    parameters = dict(ours.named_parameters())
    assert parameters.keys() == tensors.keys()
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
    return Pair(ours, theirs)


# The first four numbers cover each placement with each activation.
@pytest.mark.parametrize("number", [*range(6), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(6, 20))])
def test_logits_and_gradients_match_pytorch(number: int) -> None:
    torch.manual_seed(number)
    models = pair(number)
    source, target = torch.randint(V, (3, 13)), torch.randint(V, (3, 11))
    real = torch.arange(13) < torch.tensor([13, 7, 1])[:, None]
    ours, theirs = (model(source, target, source_token_mask=real) for model in (models.ours, models.theirs))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    for logits in (ours, theirs):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten()).backward()
    expected = names(models.theirs, lambda parameter: parameter.grad)
    for name, parameter in models.ours.named_parameters():
        assert parameter.grad is not None, name
        # A bias on all keys has a gradient of zero except for rounding, so only its size can be compared.
        rounding = 1e-5 if name.endswith("key.bias") else 1e-7
        assert (parameter.grad - expected[name]).norm() <= 1e-4 * expected[name].norm() + rounding, name


@pytest.mark.exhaustive
def test_random_specs_differ() -> None:
    specs = [pair(number).ours.spec for number in range(20)]
    sides = [spec.encoder for spec in specs]
    assert {(side.placement, side.activation) for side in sides} == {
        (placement, activation) for placement in ("pre", "post") for activation in ("relu", "gelu")
    }
    assert {side.bias for side in sides} == {True, False}
    depths = [spec.encoder.n_layers - spec.decoder.n_layers for spec in specs]
    assert min(depths) < 0 < max(depths)

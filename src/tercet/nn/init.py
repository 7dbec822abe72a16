"""Initialization schemes. Each scheme is a spec and fills an existing model in place.

    Normal           N(0, std); branch outputs N(0, std / sqrt(number of branches))    GPT-2 (2019)
    Xavier           U(+-sqrt(6 / (fan in + fan out))); embeddings N(0, 1/sqrt(D))     Vaswani et al. (2017)
    ZeroProjections  N(0, gain / sqrt(fan in)); branch outputs and output layers zero  Zhang et al. (2019)
    PyTorch          U(+-1 / sqrt(fan in)), biases too; embeddings N(0, 1)             torch.nn

The second parameter of N is the standard deviation. Branch outputs are the matrices that write to the residual stream:
`out` of attention and `down` of the feed-forward network. Output layers are the unembedding and the classifiers. With
ZeroProjections, embeddings are N(0, embedding_std). The weights of norms are initialized to one and biases to zero,
except that PyTorch also draws the biases of linear layers. Tables of relative positions are embeddings, to which the
biases of ALiBi are added if `alibi_init` is True.
"""

import math
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from tercet.nn.attention import Attention
from tercet.nn.block import Block
from tercet.nn.feedforward import FeedForward
from tercet.nn.heads import Pooler, Transform
from tercet.nn.norm import StdLayerNorm
from tercet.nn.positions import RelativeBiasPositions
from tercet.nn.specs import Init, Normal, PyTorch, Xavier, ZeroProjections

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def initialize(model: nn.Module, scheme: Init, *, seed: int) -> None:
    """Fill every parameter of `model` from a separate generator; the global one is not used.

    Args:
        model: Model to fill. Nothing happens if it is on the meta device.
        scheme: Initialization scheme.
        seed: Seed of the generator.
    """
    device = next(model.parameters()).device
    if device.type == "meta":
        return
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | StdLayerNorm | nn.RMSNorm):
            module.weight.fill_(1.0)
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            bias.zero_()
    generator = torch.Generator(device).manual_seed(seed)
    match scheme:
        case Normal():
            _fill_normal(model, generator, std=scheme.std)
        case Xavier():
            _fill_xavier(model, generator)
        case ZeroProjections():
            _fill_zero_projections(model, generator, gain=scheme.gain, embedding_std=scheme.embedding_std)
        case PyTorch():
            _fill_as_pytorch(model, generator)
    for positions in _modules_of_type(RelativeBiasPositions, model):
        if positions.alibi_init:
            for table in _modules_of_type(nn.Embedding, positions):
                table.weight += positions.alibi_biases().to(table.weight)


def _fill_normal(model: nn.Module, generator: torch.Generator, *, std: float) -> None:
    last = list(_last_matrices(model))
    for module in (*_modules_of_type(nn.Linear, model), *_modules_of_type(nn.Embedding, model)):
        module.weight.normal_(0.0, std, generator=generator)
    for weight in last:
        weight.normal_(0.0, std / math.sqrt(len(last)), generator=generator)


def _fill_xavier(model: nn.Module, generator: torch.Generator) -> None:
    for linear in _modules_of_type(nn.Linear, model):
        nn.init.xavier_uniform_(linear.weight, generator=generator)
    for embedding in _modules_of_type(nn.Embedding, model):  # last: a tied matrix is initialized as an embedding
        embedding.weight.normal_(0.0, embedding.embedding_dim**-0.5, generator=generator)


def _fill_zero_projections(model: nn.Module, generator: torch.Generator, *, gain: float, embedding_std: float) -> None:
    branch_layers = {linear for part in _parts(model) for linear in _modules_of_type(nn.Linear, part)}
    for linear in _modules_of_type(nn.Linear, model):
        std = gain / math.sqrt(linear.in_features) if linear in branch_layers else 0.0
        linear.weight.normal_(0.0, std, generator=generator)
    for embedding in _modules_of_type(nn.Embedding, model):
        embedding.weight.normal_(0.0, embedding_std, generator=generator)
    for weight in _last_matrices(model):
        weight.zero_()


def _fill_as_pytorch(model: nn.Module, generator: torch.Generator) -> None:
    for linear in _modules_of_type(nn.Linear, model):
        bound = linear.in_features**-0.5
        linear.weight.uniform_(-bound, bound, generator=generator)
        for bias in (parameter for name, parameter in linear.named_parameters() if name == "bias"):
            bias.uniform_(-bound, bound, generator=generator)
    for embedding in _modules_of_type(nn.Embedding, model):  # last: a tied matrix is initialized as an embedding
        embedding.weight.normal_(generator=generator)


def _modules_of_type(kind: type[Module], model: nn.Module) -> Iterator[Module]:
    return (module for module in model.modules() if isinstance(module, kind))


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    return (part for part in model.modules() if isinstance(part, Block | Attention | FeedForward | Transform | Pooler))


def _last_matrices(model: nn.Module) -> Iterator[Tensor]:
    for attention in _modules_of_type(Attention, model):
        yield attention.out.weight
    for feedforward in _modules_of_type(FeedForward, model):
        yield feedforward.down.weight

"""Low-rank adaptation: a linear layer that is left as it is, and two thin matrices beside it that learn.

    y = x Wᵀ + b + α/r (x Aᵀ) Bᵀ        A (r, K), B (N, r)

Hu et al., "LoRA" (2022), equation 3. A begins as PyTorch's linear layers do, B at zero, so training begins with the
model as it was. Merged, W + α/r B A is a linear layer again, and costs nothing more.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn.linear import Linear
from tercet.nn.specs import LoRA

ALL_LAYERS = "all"  # in `targets`: every linear layer inside the blocks


class LoRALinear(Linear):
    """Attributes:
    weight, bias: the layer's own, which do not learn.
    lora_A, lora_B: (r, K) and (N, r).
    scaling: α/r.
    """

    def __init__(self, base: Linear, adapter: LoRA) -> None:
        """Beside `base`, whose weights it shares."""
        nn.Module.__init__(self)  # a linear layer's own would draw weights
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.register_buffer("scale", None)
        self.quantized = False
        self.lora_A = nn.Parameter(base.weight.new_empty(adapter.rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, adapter.rank))
        self.scaling, self.dropout = adapter.alpha / adapter.rank, adapter.dropout

    def forward(self, input: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        x = F.dropout(input, self.dropout, training=self.training) if self.dropout else input
        low = F.linear(x, self.lora_A) * self.scaling  # (*B, r)
        return super().forward(input).add_(F.linear(low, self.lora_B))  # in place: a sum beside both is more memory

    @torch.no_grad()
    def merge(self) -> Linear:
        """The linear layer that does the same in evaluation, with the sum of both in its weight."""
        with torch.random.fork_rng(devices=[]):  # a new layer draws weights
            merged = Linear(self.in_features, self.out_features)
        product = self.lora_B.float() @ self.lora_A.float() * self.scaling
        merged.weight = nn.Parameter((self.weight.float() + product).to(self.weight.dtype))
        merged.bias = self.bias
        return merged.train(self.training)


def add_lora(model: nn.Module, adapter: LoRA, *, seed: int = 0) -> None:
    """Put the two matrices beside each linear layer that `adapter.targets` name; no other weight learns any more.

    Raises:
        ValueError: where a target names no linear layer of a block.
    """
    layers = dict(_linears(model))
    targeted = dict.fromkeys(name for target in adapter.targets for name in match_layers(target, list(layers)))
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name in layers:
        if name in targeted:
            layer = LoRALinear(layers[name], adapter).train(layers[name].training)
            bound = layer.in_features**-0.5
            with torch.no_grad():
                layer.lora_A.copy_(torch.empty(layer.lora_A.shape).uniform_(-bound, bound, generator=generator))
            _replace(model, name, layer)


def merge_lora(model: nn.Module) -> None:
    """Every layer with its two matrices becomes one linear layer; all weights may learn again."""
    for name, layer in lora_layers(model).items():
        _replace(model, name, layer.merge())
    model.requires_grad_(True)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers that have the two matrices beside them, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def match_layers(target: str, names: Sequence[str]) -> list[str]:
    """Those of `names` that a target means: "query" each that ends so, "decoder.*.value" by a pattern, "all" all.

    Raises:
        ValueError: where there is none.
    """
    matches = [
        name for name in names if target == ALL_LAYERS or f".{name}".endswith(f".{target}") or fnmatchcase(name, target)
    ]
    if not matches:
        choices = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
        raise ValueError(f"targets: no linear layer is called {target!r}; there are {choices}, and {ALL_LAYERS!r}")
    return matches


def _linears(model: nn.Module) -> Iterator[tuple[str, Linear]]:
    """The linear layers inside of blocks, which the unembedding is not."""
    return ((name, module) for name, module in model.named_modules() if type(module) is Linear and ".blocks." in name)


def _replace(model: nn.Module, name: str, layer: Linear) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)

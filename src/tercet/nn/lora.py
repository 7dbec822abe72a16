"""Low-rank adaptation (LoRA): a frozen linear layer plus the product of two small trainable matrices.

    y = x Wᵀ + b + α/r (x Aᵀ) Bᵀ        A (r, K), B (N, r)

Hu et al., "LoRA" (2022), equation 3. A is initialized like PyTorch's linear layers and B with zeros, so the output of
the model is unchanged when training starts. `merge_lora` replaces W by W + α/r B A, so that the layer is an ordinary
linear layer again, without extra cost.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn.linear import Linear
from tercet.nn.specs import LoRA

ALL_LAYERS = "all"  # in `targets`: every linear layer of the blocks


class LoRALinear(Linear):
    """Linear layer with a low-rank adapter.

    Attributes:
        weight, bias: Frozen parameters of the original layer.
        lora_A, lora_B: (r, K) and (N, r) trainable matrices.
        scaling: α/r.
    """

    def __init__(self, base: Linear, adapter: LoRA) -> None:
        """Add an adapter to `base`, whose weights are shared. `add_lora` initializes lora_A."""
        nn.Module.__init__(self)  # `Linear.__init__` would draw weights
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
        return super().forward(input).add_(F.linear(low, self.lora_B))  # in place, which saves memory

    @torch.no_grad()
    def merge(self) -> Linear:
        """Return a linear layer with the weight W + α/r B A.

        Its output is that of this layer in evaluation mode, up to rounding.
        """
        with torch.random.fork_rng(devices=[]):  # a new layer draws weights from the global generator
            merged = Linear(self.in_features, self.out_features)
        product = self.lora_B.float() @ self.lora_A.float() * self.scaling
        merged.weight = nn.Parameter((self.weight.float() + product).to(self.weight.dtype))
        merged.bias = self.bias
        return merged.train(self.training)


def add_lora(model: nn.Module, adapter: LoRA, *, seed: int = 0) -> None:
    """Add adapters to the linear layers that match `adapter.targets`, and freeze all weights that the model has.

    Args:
        model: Model to change in place.
        adapter: Rank, scale, targets and dropout of the adapters.
        seed: Seed of the initial values of the A matrices.

    Raises:
        ValueError: If a target does not match any linear layer of a block.
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
    """Replace each layer with an adapter by its merged linear layer, in place; make all weights trainable."""
    for name, layer in lora_layers(model).items():
        _replace(model, name, layer.merge())
    model.requires_grad_(True)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """Return the layers with adapters, by their names in the model."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def match_layers(target: str, names: Sequence[str]) -> list[str]:
    """Return the names that match a target.

    Args:
        target: The end of a name ("query"), a pattern ("decoder.*.value"), or "all".
        names: Names of linear layers.

    Raises:
        ValueError: If no name matches.
    """
    matches = [
        name for name in names if target == ALL_LAYERS or f".{name}".endswith(f".{target}") or fnmatchcase(name, target)
    ]
    if not matches:
        choices = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
        raise ValueError(f"targets: no linear layer matches {target!r}; choose from {choices}, or {ALL_LAYERS!r}")
    return matches


def _linears(model: nn.Module) -> Iterator[tuple[str, Linear]]:
    """Return the linear layers of the blocks, which excludes the unembedding."""
    return ((name, module) for name, module in model.named_modules() if type(module) is Linear and ".blocks." in name)


def _replace(model: nn.Module, name: str, layer: Linear) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)

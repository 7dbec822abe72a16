"""Ingredients for `ingredients.py` that are no settings of Tercet: variants of Muon, and changes of models and losses.

A change is a context manager: models that are built, trained or scored in its context have the part. Its parameters
belong to the module that it changes, so that the optimizer, checkpoints and evaluation include them.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from tercet.models import DecoderOnly
from tercet.models.vocabulary import TokenEmbedding
from tercet.nn.attention import Attention
from tercet.nn.linear import Linear
from tercet.nn.residual import Residual
from tercet.objectives.loss import Loss
from tercet.spec import LearningRate, ShareBelowOne, WeightDecay, spec
from tercet.training import CustomOptimizer
from tercet.training.optim import muon
from tercet.training.optim.muon import MuonAdamW
from tercet.training.optim.optimizers import OUTPUT, hidden_matrices
from tercet.training.tasks import language

# Amsel et al., "The Polar Express" (2025): coefficients of five iterations for singular values from 1e-3 to 1, and the
# factor by which the first matrix is divided.
POLAR = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
POLAR_MARGIN = 1.01


@spec
class MuonVariant(CustomOptimizer):
    """Muon with changes.

    Args:
        adam_weight_decay: Weight decay of the embeddings and of the output layer.
        normalize: If True, each row of an update is divided by the root of a moving average of its mean square, and the
            update then has the same norm as before (Li et al., "NorMuon", 2025).
        cautious: If True, weight decay applies only to weights that the update moves towards zero (Liang et al. 2024).
        polar: If True, orthogonalize with the coefficients of Polar Express.
    """

    lr: LearningRate = 0.015
    adam_lr: LearningRate = 0.006
    head_lr: LearningRate = 0.006
    momentum: ShareBelowOne = 0.9
    weight_decay: WeightDecay = 0.0
    adam_weight_decay: WeightDecay = 0.0
    normalize: bool = False
    cautious: bool = False
    polar: bool = False

    def build(self, model: nn.Module) -> Optimizer:
        hidden, rest = hidden_matrices(model)
        head = {p for name, p in model.named_parameters() if name in OUTPUT}
        groups: list[dict[str, Any]] = [
            {"params": hidden, "muon": True, "lr": self.lr, "momentum": self.momentum,
             "weight_decay": self.weight_decay},
            {"params": [p for p in rest if p not in head and p.ndim < 2], "lr": self.adam_lr},
            {"params": [p for p in rest if p not in head and p.ndim == 2], "lr": self.adam_lr,
             "weight_decay": self.adam_weight_decay},
            {"params": [p for p in rest if p in head], "lr": self.head_lr, "weight_decay": self.adam_weight_decay},
        ]  # fmt: skip
        optimizer = ChangedMuon([group for group in groups if group["params"]])
        optimizer.settings = self
        return optimizer


class ChangedMuon(MuonAdamW):
    settings: MuonVariant

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            update = self._advance([p], group["momentum"])[0]
            orthogonalize = orthogonalize_polar if self.settings.polar else muon.orthogonalize
            update = orthogonalize(update[None])[0].to(p.dtype)
            if self.settings.normalize:
                update = self._normalized(p, update)
            decay = group["lr"] * group["weight_decay"]
            if decay:
                is_decaying = (update * p > 0) if self.settings.cautious else torch.ones_like(p)
                p.mul_(1 - decay * is_decaying)
            p.sub_(update * (group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5))

    def _normalized(self, p: Tensor, update: Tensor) -> Tensor:
        squares = update.square().mean(1, keepdim=True)
        state = self.state[p]
        state["squares"] = squares if "squares" not in state else state["squares"].lerp(squares, 0.05)
        changed = update / (state["squares"].sqrt() + 1e-8)
        return changed * (update.norm() / (changed.norm() + 1e-8))


def orthogonalize_polar(matrices: Tensor, iterations: int = 5) -> Tensor:
    x = matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * POLAR_MARGIN + 1e-7)
    for a, b, c in POLAR[:iterations]:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


@contextmanager
def replaced(owner: Any, name: str, build: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Generator[None]:
    """Replace a function or method by the result of `build`, which gets the original."""
    original = getattr(owner, name)
    setattr(owner, name, build(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def extended_model(extend: Callable[[DecoderOnly], None]) -> Any:
    """Extend each model after it is built and its weights are initialized."""

    def build(init: Callable[..., None]) -> Callable[..., None]:
        def extended(self: DecoderOnly, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            extend(self)

        return extended

    return replaced(DecoderOnly, "__init__", build)


def unet_skips() -> Any:
    """Add the output of block i, with a learned factor, to the input of block n - 1 - i (modded-nanogpt)."""

    def extend(model: DecoderOnly) -> None:
        stack = model.stack
        n, outputs = len(stack.blocks), dict[int, Tensor]()
        stack.skip_factors = nn.Parameter(torch.zeros(n))

        def keep(i: int) -> Any:
            return lambda module, args, output: outputs.__setitem__(i, output)

        def add(i: int) -> Any:
            return lambda module, args: (args[0] + stack.skip_factors[i] * outputs.pop(n - 1 - i), *args[1:])

        for i, block in enumerate(stack.blocks):
            if i < n // 2:
                block.register_forward_hook(keep(i))
            elif n - 1 - i < n // 2:
                block.register_forward_pre_hook(add(i))

    return extended_model(extend)


def repeated_layers() -> Any:
    """Run each block between the first and the last one twice, with the same weights."""

    def extend(model: DecoderOnly) -> None:
        stack = model.stack
        for block in list(stack.blocks)[1:-1]:
            forward = block.forward
            block.forward = lambda x, forward=forward, **options: forward(forward(x, **options), **options)

    return extended_model(extend)


def stochastic_depth(rate: float = 0.1) -> Any:
    """Leave out the branches of a row with a probability that rises to `rate` in the last layer (Huang et al. 2016)."""

    class DropRows(nn.Module):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.rate = rate

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            return x * (torch.rand(len(x), 1, 1) >= self.rate) / (1 - self.rate)

    def extend(model: DecoderOnly) -> None:
        stack = model.stack
        for i, block in enumerate(stack.blocks):
            for module in block.modules():
                if isinstance(module, Residual):
                    module.dropout = nn.Sequential(module.dropout, DropRows(rate * (i + 1) / len(stack.blocks)))

    return extended_model(extend)


def value_residual() -> Any:
    """Mix the values of each layer with those of the first, with a learned share (Zhou et al. 2024)."""

    def extend(model: DecoderOnly) -> None:
        stack = model.stack
        first = list[Tensor]()
        stack.value_shares = nn.Parameter(torch.full((len(stack.blocks),), 0.5))

        def change(i: int, attention: Attention) -> None:
            keys_values = attention.keys_values

            def changed(source: Tensor, rotation: Any = None) -> tuple[Tensor, Tensor]:
                k, v = keys_values(source, rotation)
                if i == 0:
                    first[:] = [v]
                    return k, v
                return k, torch.lerp(v, first[0], stack.value_shares[i])

            attention.keys_values = changed

        for i, block in enumerate(stack.blocks):
            change(i, block.self_attention)

    return extended_model(extend)


@contextmanager
def value_embeddings() -> Generator[None]:
    """Add an embedding of the token to the values of the first and of the last layer (modded-nanogpt)."""
    tokens = list[Tensor]()

    def extend(model: DecoderOnly) -> None:
        attentions = [model.stack.blocks[i].self_attention for i in (0, -1)]
        widths = [attention.n_kv_heads * attention.d_head for attention in attentions]
        model.value_embeddings = nn.ModuleList(nn.Embedding(model.spec.vocab_size, width) for width in widths)
        for attention, embedding in zip(attentions, model.value_embeddings, strict=True):
            nn.init.zeros_(embedding.weight)
            change(attention, embedding)

    def change(attention: Attention, embedding: nn.Module) -> None:
        keys_values = attention.keys_values

        def changed(source: Tensor, rotation: Any = None) -> tuple[Tensor, Tensor]:
            k, v = keys_values(source, rotation)
            added = embedding(tokens[0]).unflatten(-1, (attention.n_kv_heads, attention.d_head))
            return k, v + added.transpose(1, 2)

        attention.keys_values = changed

    def keep_tokens(hidden: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def changed(self: DecoderOnly, inputs: Tensor, **options: Any) -> Tensor:
            tokens[:] = [inputs]
            return hidden(self, inputs, **options)

        return changed

    with extended_model(extend), replaced(DecoderOnly, "hidden", keep_tokens):
        yield


def head_gates() -> Any:
    """Multiply the output of each head by twice the sigmoid of a linear function of the input (Qiu et al. 2025)."""

    def extend(model: DecoderOnly) -> None:
        stack = model.stack
        for block in stack.blocks:
            attention = block.self_attention
            attention.head_gate = Linear(stack.spec.d_model, attention.n_heads, bias=False)
            nn.init.zeros_(attention.head_gate.weight)
            change(attention)

    def change(attention: Attention) -> None:
        inputs, attend = list[Tensor](), attention.attend
        attention.register_forward_pre_hook(lambda module, args: inputs.__setitem__(slice(None), [args[0]]))
        attention.attend = lambda q, k, v, **options: (
            attend(q, k, v, **options) * (2 * attention.head_gate(inputs[0]).sigmoid().mT[..., None])
        )

    return extended_model(extend)


def token_noise(rate: float) -> Any:
    """Replace a share of the input tokens of training by tokens that are drawn from the same batch."""

    def build(hidden: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def changed(self: DecoderOnly, tokens: Tensor, **options: Any) -> Tensor:
            if self.training:
                drawn = tokens.flatten()[torch.randint(tokens.numel(), tokens.shape)]
                tokens = torch.where(torch.rand(tokens.shape) < rate, drawn, tokens)
            return hidden(self, tokens, **options)

        return changed

    return replaced(DecoderOnly, "hidden", build)


def row_noise(rate: float) -> Any:
    """Replace a share of the input tokens of training by tokens that are drawn from the same row."""

    def build(hidden: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def changed(self: DecoderOnly, tokens: Tensor, **options: Any) -> Tensor:
            if self.training:
                drawn = tokens.gather(1, torch.randint(tokens.shape[1], tokens.shape))
                tokens = torch.where(torch.rand(tokens.shape) < rate, drawn, tokens)
            return hidden(self, tokens, **options)

        return changed

    return replaced(DecoderOnly, "hidden", build)


def token_dropout(rate: float) -> Any:
    """Set the whole embedding of a share of the input tokens of training to zero."""

    def build(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def changed(self: TokenEmbedding, tokens: Tensor) -> Tensor:
            x = forward(self, tokens)
            return x * (torch.rand(tokens.shape) >= rate)[..., None] if self.training else x

        return changed

    return replaced(TokenEmbedding, "forward", build)


def r_drop(weight: float = 0.5) -> Any:
    """Add the divergence of the predictions of two passes with other dropout (Liang et al. 2021)."""

    def build(loss: Callable[..., Loss]) -> Callable[..., Loss]:
        def changed(model: DecoderOnly, batch: Any, **options: Any) -> Loss:
            first = loss(model, batch, **options)
            if not model.training or not torch.is_grad_enabled():
                return first
            logs = [F.log_softmax(model(batch.inputs), -1).flatten(0, 1) for _ in range(2)]
            nll = [F.nll_loss(log, batch.targets.flatten(), reduction="sum") for log in logs]
            both = F.kl_div(logs[0], logs[1], reduction="sum", log_target=True)
            both = both + F.kl_div(logs[1], logs[0], reduction="sum", log_target=True)
            return Loss((nll[0] + nll[1]) / 2 + weight * both / 2, first.plain, first.count)

        return changed

    return replaced(language, "causal_loss", build)


@contextmanager
def multi_token(weight: float = 0.3) -> Generator[None]:
    """Predict the token after the next one as well, from a further layer (Gloeckle et al. 2024), only in training."""

    def extend(model: DecoderOnly) -> None:
        width = model.spec.stack.d_model
        model.transform = Linear(width, width, bias=False)
        nn.init.eye_(model.transform.weight)

    def build(loss: Callable[..., Loss]) -> Callable[..., Loss]:
        def changed(model: DecoderOnly, batch: Any, **options: Any) -> Loss:
            if not model.training or not torch.is_grad_enabled():
                return loss(model, batch, **options)
            hidden = model.hidden(batch.inputs)
            logits = model.logits(hidden).flatten(0, 1)
            total = F.cross_entropy(logits, batch.targets.flatten(), reduction="sum")
            later = model.logits(model.transform(hidden[:, :-1])).flatten(0, 1)
            second = F.cross_entropy(later, batch.targets[:, 1:].flatten(), reduction="sum")
            return Loss(total + weight * second, total.detach(), torch.tensor(batch.targets.numel()))

        return changed

    with extended_model(extend), replaced(language, "causal_loss", build):
        yield


PARTS: dict[str, Callable[[], Any]] = {
    "U-net skips": unet_skips,
    "repeated layers": repeated_layers,
    "stochastic depth": stochastic_depth,
    "value residual": value_residual,
    "value embeddings": value_embeddings,
    "head gates": head_gates,
    "token noise 0.05": lambda: token_noise(0.05),
    "token noise 0.15": lambda: token_noise(0.15),
    "token noise 0.3": lambda: token_noise(0.3),
    "row noise 0.15": lambda: row_noise(0.15),
    "token dropout 0.15": lambda: token_dropout(0.15),
    "R-Drop": r_drop,
    "multi-token": multi_token,
}

"""Norms, activations and feed-forward networks with faults that a user could write; each docstring names the fault."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.nn import CustomActivation, CustomFeedForward, CustomNorm, FeedForward, Linear
from tercet.spec import spec


@spec
class BatchStatistics(CustomNorm):
    """Mean and variance are those of the batch, so that rows depend on other rows and on padding."""

    def build(self, *, d_model: int, eps: float, bias: bool) -> nn.Module:
        return OverBatch(d_model, eps)


class OverBatch(nn.Module):
    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x: Tensor) -> Tensor:
        axes = tuple(range(x.dim() - 1))
        variance, mean = torch.var_mean(x.float(), axes, correction=0)
        return (((x - mean) / (variance + self.eps).sqrt()) * self.weight).to(x.dtype)


@spec
class Float32Norm(CustomNorm):
    """The result is not converted back from float32 to the dtype of the input."""

    def build(self, *, d_model: int, eps: float, bias: bool) -> nn.Module:
        return WithoutCast(d_model, eps)


class WithoutCast(nn.Module):
    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()


@spec
class RunningScale(CustomNorm):
    """The scale is an average over calls that is also updated outside of training."""

    def build(self, *, d_model: int, eps: float, bias: bool) -> nn.Module:
        return Running(d_model, eps)


class Running(nn.Module):
    scale: Tensor

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale.lerp_(x.float().square().mean().to(self.scale.dtype), 0.01)
        return x * (self.scale + self.eps).rsqrt().to(x.dtype) * self.weight.to(x.dtype)


@spec
class NumpyTanh(CustomActivation):
    """The function is computed by NumPy, which has no gradient and exists only on a CPU."""

    def build(self):
        return self.tanh

    def tanh(self, x: Tensor) -> Tensor:
        import numpy as np

        return torch.from_numpy(np.tanh(x.detach().float().numpy())).to(x.dtype)


@spec
class DetachedSlope(CustomActivation):
    """The learned slope is read through `.data`, so it has no gradient."""

    def build(self) -> nn.Module:
        return Slope()


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((1,), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, x * self.slope.data.to(x.dtype))


@spec
class NoisySlope(CustomActivation):
    """The slope of negative inputs is random in evaluation too."""

    def build(self):
        return self.rrelu

    def rrelu(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, x * torch.empty_like(x).uniform_(0.1, 0.3))


@spec
class LateParameter(CustomActivation):
    """The parameter is created by the first call, when optimizer and saved weights already exist."""

    def build(self) -> nn.Module:
        return Late()


class Late(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.ones(x.shape[-1], device=x.device, dtype=x.dtype))
        return F.silu(x) * self.gain.to(x.dtype)


@spec
class UnsavedBuffer(CustomFeedForward):
    """The buffer is not saved, so a model that is opened has no values for it."""

    def build(self, **settings: Any) -> nn.Module:
        return Mixed(settings)


class Mixed(nn.Module):
    shares: Tensor

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.network = FeedForward(**settings)
        self.register_buffer("shares", torch.linspace(0, 1, settings["d_model"]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x, self.network(x), self.shares.to(x.dtype))


@spec
class Neighbors(CustomFeedForward):
    """A convolution with padding on both sides reads the next token."""

    def build(self, **settings: Any) -> nn.Module:
        return Convolution(settings["d_model"], both=True)


@spec
class Predecessors(CustomFeedForward):
    """A causal convolution reads the previous tokens, which a decode step with a KV cache does not have."""

    def build(self, **settings: Any) -> nn.Module:
        return Convolution(settings["d_model"], both=False)


class Convolution(nn.Module):
    def __init__(self, d_model: int, *, both: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(d_model, d_model, 3)
        self.sides = (1, 1) if both else (2, 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(F.pad(x.mT, self.sides)).mT


@spec
class ContextMean(CustomFeedForward):
    """The mean of the previous tokens of the row is added, including padding and other documents."""

    def build(self, **settings: Any) -> nn.Module:
        return WithMean(settings)


class WithMean(nn.Module):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.network = FeedForward(**settings)
        self.context = Linear(settings["d_model"], settings["d_model"])

    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        return self.network(x) + self.context(x.cumsum(1) / counts)


@spec
class ItemGate(CustomFeedForward):
    """The learned gate is read by `.item()`: a graph break, and no gradient."""

    def build(self, **settings: Any) -> nn.Module:
        return Gated(settings)


class Gated(nn.Module):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.network = FeedForward(**settings)
        self.gate = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x) * self.gate.item()

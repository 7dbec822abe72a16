"""Label smoothing of one target, as the loss computes it and as it is often described.

    used        (1 - ε) 1[target] + ε/V       ε is spread over the whole vocabulary, including the target, as in PyTorch
    described   1 - ε for the target, ε/(V - 1) for each other token

The first is computed from the loss that training uses, not from its formula: at scores z the gradient is
softmax(z) - q, and q is plotted. Szegedy et al. (2016), section 7; Vaswani et al. (2017), 5.4.
"""

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from tercet.models import DecoderOnlySpec, StackSpec
from tercet.models.vocabulary import Unembedding
from tercet.objectives.likelihood import negative_log_likelihood
from tercet.plots.figure import DARK, LINES, MIDDLE, PALE, RED, SMALL, new_figure

MAX_BARS = 64  # maximum number of tokens with distinguishable bars; of larger vocabularies, those around the target
MAX_CONFIDENCE = 1 - 1e-4  # largest plotted confidence


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """The distributions and losses of a smoothed target.

    Attributes:
        target: Id of the target.
        epsilon: ε, the amount of smoothing.
        used: (V) target distribution of the loss.
        described: (V) distribution with exactly 1 - ε at the target.
        confidence: (N) probability of the target; the other tokens share the rest equally.
        loss, plain: (N) loss in nats with and without smoothing at each confidence.
    """

    target: int
    epsilon: float
    used: Tensor
    described: Tensor
    confidence: Tensor
    loss: Tensor
    plain: Tensor

    def to_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).tolist() for name in ("used", "described", "confidence", "loss", "plain")}
        return {"target": self.target, "epsilon": self.epsilon} | numbers


def compute_smoothing(*, vocab_size: int, target: int, epsilon: float, points: int = 150) -> Smoothing:
    """Compute the distributions and losses of one smoothed target.

    Args:
        vocab_size: Number of tokens V.
        target: Id of the target.
        epsilon: ε, the amount of smoothing.
        points: Number of confidences at which the loss is computed, in addition to that of the smoothed target.

    Raises:
        ValueError: If the vocabulary has fewer than two tokens, the target is outside it, or ε is not in [0, 1).
    """
    if vocab_size < 2:
        raise ValueError(f"vocabulary={vocab_size} must be at least 2: smoothing needs other tokens")
    if not 0 <= target < vocab_size:
        raise ValueError(f"target={target} must be a token of the vocabulary, 0 to {vocab_size - 1}")
    if not 0 <= epsilon < 1:
        raise ValueError(f"epsilon={epsilon:g} must be at least 0 and below 1")
    scores = torch.zeros(vocab_size, requires_grad=True)
    loss, _ = _compute_losses(scores, target, epsilon)
    (gradient,) = torch.autograd.grad(loss, scores)
    described = torch.full((vocab_size,), epsilon / (vocab_size - 1))
    described[target] = 1 - epsilon
    used = (scores.softmax(-1) - gradient).detach()
    ends = torch.logit(torch.tensor([1 / vocab_size, MAX_CONFIDENCE]))
    grid = torch.linspace(float(ends[0]), float(ends[1]), points).sigmoid()  # denser at high curvature of the loss
    confidence = torch.cat((grid, used[target, None].clamp(max=MAX_CONFIDENCE))).sort().values
    rows = ((1 - confidence) / (vocab_size - 1))[:, None].repeat(1, vocab_size)
    rows[:, target] = confidence
    pairs = [_compute_losses(row, target, epsilon) for row in rows.log()]
    return Smoothing(
        target=target,
        epsilon=epsilon,
        used=used,
        described=described,
        confidence=confidence,
        loss=torch.stack([total for total, _ in pairs]).detach(),
        plain=torch.stack([plain for _, plain in pairs]).detach(),
    )


def plot_smoothing(smoothing: Smoothing) -> Figure:
    """Plot both distributions as bars, and the loss against the confidence of the model."""
    used, described, target = smoothing.used, smoothing.described, smoothing.target
    size, epsilon = len(used), smoothing.epsilon
    figure = new_figure(12, 4.8)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    first = min(max(0, target - MAX_BARS // 2), max(0, size - MAX_BARS))
    tokens = torch.arange(first, min(size, first + MAX_BARS))
    other_token = (target + 1) % size
    for shift, values, color, name in (
        (
            -0.2,
            used,
            DARK,
            f"used in training, ε/V for every token: {used[target]:.6g}, others {used[other_token]:.4g}",
        ),
        (
            0.2,
            described,
            PALE,
            f"often described, ε/(V - 1) for the others only: {described[target]:.6g}, "
            f"others {described[other_token]:.4g}",
        ),
    ):
        left.bar((tokens + shift).numpy(), values[tokens].numpy(), width=0.4, color=color, label=name)
    token_range = "" if size <= MAX_BARS else f" ({tokens[0]} to {tokens[-1]} of {size:,})"
    left.set(xlabel=f"token{token_range}", ylabel="target probability", ylim=(0, 1.22))
    left.xaxis.set_major_locator(MaxNLocator(nbins=16 if size <= 100 else 6, integer=True))
    if size <= 16:
        for token, value in enumerate(used.tolist()):
            left.text(token - 0.2, value + 0.01, f"{value:.3g}", ha="center", fontsize=SMALL - 1, color=DARK)
    left.set_title(f"Target {target} of {size} tokens, smoothed by ε = {epsilon:g}", fontsize=MIDDLE + 1)
    left.legend(fontsize=SMALL, loc="upper center")
    lowest = int(smoothing.loss.argmin())
    best = float(smoothing.confidence[lowest])
    right.plot(smoothing.confidence, smoothing.plain, color=PALE, label="without smoothing: -ln p")
    right.plot(smoothing.confidence, smoothing.loss, color=DARK, label="with smoothing")
    right.plot([best], [float(smoothing.loss[lowest])], "o", color=RED, label=f"lowest at p = {best:.3f}")
    right.set(xlabel="p: predicted probability of the target", ylabel="loss (nats)", ylim=(0, None))
    right.set_title("Overconfidence increases the loss", fontsize=MIDDLE + 1)
    right.legend(fontsize=SMALL)
    for axes in (left, right):
        axes.grid(color=LINES, axis="y")
        axes.set_axisbelow(True)
    return figure


def _compute_losses(scores: Tensor, target: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the smoothed and plain loss of one row of scores (V).

    The scores are passed as the unembedding's bias; everything else is 0.
    """
    stack = StackSpec(d_model=1, n_layers=1, n_heads=1)
    unembedding = Unembedding(DecoderOnlySpec(vocab_size=len(scores), stack=stack), stack)
    del unembedding.bias
    setattr(unembedding, "bias", scores)  # noqa: B010 - declared as a parameter
    hidden = torch.zeros(1, stack.d_model)
    loss = negative_log_likelihood(hidden, unembedding, torch.tensor([target]), smoothing=epsilon)
    return loss.total, loss.plain

"""Checks of exercise 7: cross-entropy and the loss of a masked language model. The reference is PyTorch's function."""

import math
from types import ModuleType

import torch
import torch.nn.functional as F

from tercet.learn.compare import explain, normal

N, V = 8, 11
SMOOTHING = 0.1
LOGITS = normal(N, V)
TARGETS = torch.tensor([3, 0, 10, 7, 7, 1, 5, 2])
PADDED = torch.tensor([3, 0, -100, 7, -100, -100, 5, 2])


def check_plain(solution: ModuleType) -> str | None:
    logprobs = LOGITS.log_softmax(-1)
    chosen = logprobs.gather(-1, TARGETS[:, None])
    return explain(
        solution.cross_entropy(LOGITS, TARGETS),
        F.cross_entropy(LOGITS, TARGETS),
        {
            "the losses are summed; return their mean": -chosen.sum(),
            "the sign is wrong; the loss is the negative log-likelihood": chosen.mean(),
            "the logarithm has base 2; a loss in nats has base e": -chosen.mean() / math.log(2),
            "the logits are used as log-probabilities; apply log_softmax first": (
                -LOGITS.gather(-1, TARGETS[:, None]).mean()
            ),
            "the softmax is over the targets of the batch; it is over the vocabulary: dim=-1": (
                -LOGITS.log_softmax(0).gather(-1, TARGETS[:, None]).mean()
            ),
            "the loss is that of all tokens; take the log-probability of the target only": -logprobs.mean(),
            "the mean is over the whole table of log-probabilities": -chosen.sum() / (N * V),
        },
    )


def check_padding(solution: ModuleType) -> str | None:
    losses = F.cross_entropy(LOGITS, PADDED, reduction="none")
    logprobs = LOGITS.log_softmax(-1)
    counted = -logprobs.gather(-1, PADDED.clamp(min=0)[:, None])
    return explain(
        solution.cross_entropy(LOGITS, PADDED),
        F.cross_entropy(LOGITS, PADDED),
        {
            "the mean is over all tokens; divide by the number of targets that are not -100": losses.mean(),
            "targets of -100 have a loss; leave them out": counted.mean(),
            "the losses are summed; return their mean": losses.sum(),
        },
    )


def check_smoothing(solution: ModuleType) -> str | None:
    logprobs = LOGITS.log_softmax(-1)
    plain = -logprobs.gather(-1, TARGETS[:, None]).mean()
    rest = (V * -logprobs.mean() - plain) / (V - 1)  # mean over the other tokens
    return explain(
        solution.cross_entropy(LOGITS, TARGETS, SMOOTHING),
        F.cross_entropy(LOGITS, TARGETS, label_smoothing=SMOOTHING),
        {
            "smoothing is ignored": plain,
            "ε is spread over the other V - 1 tokens; it is spread over all V, the target included": (
                (1 - SMOOTHING) * plain + SMOOTHING * rest
            ),
            "ε is not divided by V": (1 - SMOOTHING) * plain + SMOOTHING * V * -logprobs.mean(),
            "the target keeps the share 1; it is 1 - ε": plain + SMOOTHING * -logprobs.mean(),
            "1 - ε and ε are swapped": SMOOTHING * plain + (1 - SMOOTHING) * -logprobs.mean(),
        },
        name="the smoothed loss",
    )


def check_smoothing_of_padding(solution: ModuleType) -> str | None:
    expected = F.cross_entropy(LOGITS, PADDED, label_smoothing=SMOOTHING)
    is_real = PADDED != -100
    plain = F.cross_entropy(LOGITS, PADDED)
    uniform = -LOGITS.log_softmax(-1).mean(-1)
    all_tokens = (1 - SMOOTHING) * plain + SMOOTHING * uniform.mean()
    too_many = (1 - SMOOTHING) * plain + SMOOTHING * uniform.sum() / is_real.sum()
    return explain(
        solution.cross_entropy(LOGITS, PADDED, SMOOTHING),
        expected,
        {
            "the smoothed part is a mean over targets of -100 too; leave them out": all_tokens,
            "the smoothed part is a sum over targets of -100 too; leave them out": too_many,
        },
        name="the smoothed loss with padding",
    )


def check_large_logits(solution: ModuleType) -> str | None:
    logits = LOGITS * 1000
    result = solution.cross_entropy(logits, TARGETS)
    if isinstance(result, torch.Tensor) and not result.isfinite():
        return "large logits give inf or NaN; use log_softmax instead of the logarithm of a softmax"
    return explain(result, F.cross_entropy(logits, TARGETS), name="the loss of large logits")


def check_gradient(solution: ModuleType) -> str | None:
    logits = LOGITS.clone().requires_grad_()
    loss = solution.cross_entropy(logits, PADDED, SMOOTHING)
    if not loss.requires_grad:
        return "the loss has no gradient; use operations of PyTorch, without .item() or .detach()"
    (expected,) = torch.autograd.grad(F.cross_entropy(logits, PADDED, label_smoothing=SMOOTHING), logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    if gradient[PADDED == -100].any():
        return "logits of targets of -100 have a gradient; it must be 0"
    return explain(gradient, expected, name="the gradient of the logits")


def check_masked(solution: ModuleType) -> str | None:
    logits, ids = normal(2, 6, V, seed=2), torch.arange(12).reshape(2, 6) % V
    is_masked = torch.tensor([[0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]], dtype=torch.bool)
    losses = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
    rows = torch.stack([losses[row][is_masked[row]].mean() for row in range(2)])
    return explain(
        solution.masked_lm_loss(logits, ids, is_masked),
        losses[is_masked].mean(),
        {
            "the loss is that of all tokens; only the hidden tokens count": losses.mean(),
            "the loss is that of the visible tokens; is_masked is True for the hidden ones": losses[~is_masked].mean(),
            "the sum over hidden tokens is divided by the number of all tokens": (losses * is_masked).mean(),
            "the losses are summed; return their mean": losses[is_masked].sum(),
            "the mean is taken per row first; each hidden token counts equally": rows.mean(),
        },
    )


CHECKS = {
    "cross_entropy equals the reference": check_plain,
    "cross_entropy leaves out targets of -100": check_padding,
    "cross_entropy smooths labels as the reference": check_smoothing,
    "cross_entropy smooths only real targets": check_smoothing_of_padding,
    "cross_entropy is finite for large logits": check_large_logits,
    "cross_entropy has the gradient of the reference": check_gradient,
    "masked_lm_loss equals the reference": check_masked,
}

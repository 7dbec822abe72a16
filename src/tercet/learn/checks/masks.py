"""Checks of exercise 4: causal and padding masks. The references are in `tercet.nn.attention`."""

from types import ModuleType

import torch
from torch import Tensor

from tercet.learn.compare import explain, normal
from tercet.nn.attention import attention_weights, causal_mask

LENGTHS = torch.tensor([3, 5, 1])
MAX_LEN = 5


def check_causal(solution: ModuleType) -> str | None:
    expected = causal_mask(torch.zeros(1, 1, 5, 5))[0, 0]
    return explain(
        solution.causal_mask(5),
        expected,
        {
            "the mask is inverted: True must mean that a query may attend to a key": ~expected,
            "a query cannot attend to its own token; include the diagonal": expected.tril(-1),
            "the mask is transposed: queries attend to the future; query t has row t": expected.mT,
            "the future is one token too early: query t attends to t + 1": torch.ones(5, 5, dtype=torch.bool).tril(1),
        },
        name="causal_mask(5)",
    )


def check_padding(solution: ModuleType) -> str | None:
    expected = torch.arange(MAX_LEN) < LENGTHS[:, None]
    return explain(
        solution.padding_mask(LENGTHS, MAX_LEN),
        expected,
        {
            "the mask is inverted: True must mean a real token": ~expected,
            "each row has one real token too many; token t is real if t < length": (
                torch.arange(MAX_LEN) <= LENGTHS[:, None]
            ),
            "the padding is on the left; the first `length` tokens are real": expected.flip(-1),
        },
        name="padding_mask",
    )


def check_weights(solution: ModuleType) -> str | None:
    scores, mask = normal(2, 3, 5, 5), causal_mask(torch.zeros(1, 1, 5, 5))
    after = scores.softmax(-1) * mask
    return explain(
        solution.masked_weights(scores, mask),
        attention_weights(scores, mask=mask),
        {
            "the mask is applied after the softmax, so the weights do not sum to 1; apply it to the scores": after,
            "hidden scores are set to 0, whose weight is not 0; use -inf": scores.masked_fill(~mask, 0).softmax(-1),
            "the scores are multiplied by the mask; 0 is a score like others; use -inf": (scores * mask).softmax(-1),
            "the mask is used inverted: True means that a query may attend to a key": (
                scores.masked_fill(mask, -torch.inf).softmax(-1)
            ),
            "the mask hides the keys at which it is True: True means that a query may attend to a key": (
                scores.masked_fill(mask, -1e9).softmax(-1)
            ),
            "the mask is ignored": scores.softmax(-1),
            "the softmax is over the queries; use dim=-1": scores.masked_fill(~mask, -torch.inf).softmax(-2),
            "a small number replaces hidden scores, whose weight is then not 0; use -inf": (
                scores.masked_fill(~mask, -1.0).softmax(-1)
            ),
        },
    )


def check_future(solution: ModuleType) -> str | None:
    scores, changed = normal(2, 3, 6, 6), normal(2, 3, 6, 6)
    changed[..., 4:] = 1e4  # the scores of keys 4 and 5, which queries 0 to 3 must not see
    mask = solution.causal_mask(6)
    first, second = (solution.masked_weights(one, mask)[..., :4, :] for one in (scores, changed))
    if not torch.equal(first, second):
        return "the future is visible: other scores of keys 4 and 5 change the weights of queries 0 to 3"
    return None


def check_padding_changes_nothing(solution: ModuleType) -> str | None:
    scores, v = normal(1, 2, 3, 4), normal(1, 2, 4, 5, seed=2)
    padded = torch.cat((scores, torch.full((1, 2, 3, 2), 50.0)), dim=-1)
    padded_v = torch.cat((v, normal(1, 2, 2, 5, seed=3) * 100), dim=-2)
    mask = solution.padding_mask(torch.tensor([4]), 6)[:, None, None]
    result = solution.masked_weights(padded, mask)
    if not isinstance(result, Tensor) or not result.isfinite().all():
        return "the weights contain NaN; each query has a key that it may attend to"
    if explain(result @ padded_v, scores.softmax(-1) @ v) is not None:
        return "padding changes the output; hidden keys must get the weight 0, even with large scores"
    return None


def check_gradient(solution: ModuleType) -> str | None:
    scores, mask = normal(2, 3, 5, 5).requires_grad_(), causal_mask(torch.zeros(1, 1, 5, 5))
    (solution.masked_weights(scores, mask) * normal(2, 3, 5, 5, seed=2)).sum().backward()
    if scores.grad is None or not scores.grad.isfinite().all():
        return "the gradient of the scores is missing or NaN"
    if scores.grad.masked_select(~mask).any():
        return "hidden scores have a gradient; it must be 0"
    return None


CHECKS = {
    "causal_mask equals the reference": check_causal,
    "padding_mask marks the real tokens": check_padding,
    "masked_weights equals the reference": check_weights,
    "the future does not change earlier tokens": check_future,
    "padding does not change the output": check_padding_changes_nothing,
    "hidden scores get no gradient": check_gradient,
}

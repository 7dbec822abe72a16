"""Reference solution of exercise 10, for tests of its checks."""

from torch import Tensor


def next_probabilities(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    probabilities = (logits / temperature).softmax(-1)
    likely, order = probabilities.sort(descending=True)
    before = likely.cumsum(-1) - likely
    likely = likely * (before < top_p)
    kept = likely.gather(-1, order.argsort(-1))
    return kept / kept.sum(-1, keepdim=True)


def beam_step(scores: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    totals = scores[:, None] + logprobs
    best, index = totals.flatten().topk(len(scores))
    return index // logprobs.shape[1], index % logprobs.shape[1], best

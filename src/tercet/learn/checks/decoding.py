"""Checks of exercise 10: nucleus sampling and beam search. The references are in `tercet.generation.filters`."""

from types import ModuleType

import torch
from torch import Tensor

from tercet.generation.filters import apply_temperature, keep_top_p
from tercet.learn.compare import explain, normal

B, V, W = 3, 10, 3
TEMPERATURE, TOP_P = 0.7, 0.8
PROBABILITIES = torch.tensor([[0.1, 0.4, 0.06, 0.29, 0.15]])
LOGITS = PROBABILITIES.log()


def reference(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    return keep_top_p(apply_temperature(logits, temperature), top_p).softmax(-1)


def _kept(keep: list[bool]) -> Tensor:
    """Return the probabilities of some tokens, divided by their sum."""
    probabilities = PROBABILITIES * torch.tensor(keep)
    return probabilities / probabilities.sum()


def check_temperature(solution: ModuleType) -> str | None:
    logits = normal(B, V)
    return explain(
        solution.next_probabilities(logits, TEMPERATURE, 1.0),
        (logits / TEMPERATURE).softmax(-1),
        {
            "the logits are multiplied by the temperature; divide them": (logits * TEMPERATURE).softmax(-1),
            "the temperature is ignored": logits.softmax(-1),
            "the probabilities are divided by the temperature; divide the logits": logits.softmax(-1) / TEMPERATURE,
            "the result are logits; return probabilities": logits / TEMPERATURE,
            "the result are log-probabilities; return probabilities": (logits / TEMPERATURE).log_softmax(-1),
        },
        name="the result with top_p = 1",
    )


def check_nucleus(solution: ModuleType) -> str | None:
    return explain(
        solution.next_probabilities(LOGITS, 1.0, 0.55),
        _kept([False, True, False, True, False]),
        {
            "the token that crosses p is left out; keep it": _kept([False, True, False, False, False]),
            "one token too many is kept": _kept([False, True, False, True, True]),
            "the tokens are not sorted by probability before they are added": _kept([True, True, True, False, False]),
            "the kept probabilities are not divided by their sum": PROBABILITIES * torch.tensor([0, 1, 0, 1, 0]),
            "top_p is ignored": PROBABILITIES,
            "the nucleus is that of the sorted tokens, but the ids are not sorted; undo the sorting": _kept(
                [True, True, False, False, False]
            ),
            "the result is in the order of the sorted tokens; undo the sorting": torch.tensor(
                [[0.4 / 0.69, 0.29 / 0.69, 0, 0, 0]]
            ),
            "unlikely tokens are kept instead of likely ones; sort in descending order": _kept(
                [True, False, True, True, True]
            ),
        },
    )


def check_one_token(solution: ModuleType) -> str | None:
    result = solution.next_probabilities(LOGITS, 1.0, 1e-6)
    if isinstance(result, Tensor) and not result.isfinite().all():
        return "no token is kept if the most likely one has a probability above p; keep at least one"
    return explain(result, torch.tensor([[0.0, 1, 0, 0, 0]]), name="the result with a small p")


def check_order_of_steps(solution: ModuleType) -> str | None:
    logits = normal(B, V, seed=2)
    before = keep_top_p(logits, TOP_P) / TEMPERATURE
    return explain(
        solution.next_probabilities(logits, TEMPERATURE, TOP_P),
        reference(logits, TEMPERATURE, TOP_P),
        {"top-p is applied before the temperature; divide by the temperature first": before.softmax(-1)},
    )


def check_rows(solution: ModuleType) -> str | None:
    logits = torch.cat((LOGITS, LOGITS.flip(-1), LOGITS.roll(2, -1)))
    return explain(
        solution.next_probabilities(logits, 1.0, 0.55),
        reference(logits, 1.0, 0.55),
        name="the result for rows in different orders",
    )


def beam_inputs() -> tuple[Tensor, Tensor]:
    """Return scores and log-probabilities for which the first hypothesis has two of the best continuations."""
    scores = torch.tensor([-1.0, -1.5, -4.0])
    probabilities = torch.tensor([[0.45, 0.4, 0.1, 0.05], [0.1, 0.1, 0.2, 0.6], [0.02, 0.03, 0.05, 0.9]])
    return scores, probabilities.log()


def check_beam(solution: ModuleType) -> str | None:
    scores, logprobs = beam_inputs()
    totals = scores[:, None] + logprobs
    best, index = totals.flatten().topk(W)
    beams, tokens = index // logprobs.shape[1], index % logprobs.shape[1]
    result = solution.beam_step(scores, logprobs)
    if not isinstance(result, tuple | list) or len(result) != 3:
        return "beam_step must return three tensors: hypotheses, tokens and scores"
    single, token = totals.max(-1)
    order = single.argsort(descending=True)
    products = (scores[:, None] * logprobs).flatten().topk(W)
    unscored = logprobs.flatten().topk(W)
    names = ("the hypotheses", "the tokens", "the scores")
    for name, one, expected, wrong in zip(
        names, result, (beams, tokens, best), (order, token[order], single[order]), strict=True
    ):
        mistakes = {"each hypothesis is continued once; take the W best of all W * V continuations": wrong}
        if name == "the scores":
            mistakes |= {
                "scores and log-probabilities are multiplied; add them": products.values,
                "the scores of the hypotheses are not added": unscored.values,
            }
        if name == "the hypotheses":
            mistakes |= {
                "the index in the flattened table is not split; the hypothesis is index // V": index,
                "the hypothesis is index // V, where V is the vocabulary size, not the number of beams": index // W,
                "hypotheses and tokens are swapped": tokens,
                "the scores of the hypotheses are not added": unscored.indices // logprobs.shape[1],
                "scores and log-probabilities are multiplied; add them": products.indices // logprobs.shape[1],
            }
        if (problem := explain(one, expected, mistakes, name=name)) is not None:
            return problem
    return None


def check_beam_of_random_scores(solution: ModuleType) -> str | None:
    scores, logprobs = normal(4, seed=5), normal(4, 9, seed=6).log_softmax(-1)
    best, index = (scores[:, None] + logprobs).flatten().topk(4)
    for name, one, expected in zip(
        ("the hypotheses", "the tokens", "the scores"),
        solution.beam_step(scores, logprobs),
        (index // 9, index % 9, best),
        strict=True,
    ):
        if (problem := explain(one, expected, name=name)) is not None:
            return problem
    return None


CHECKS = {
    "the temperature divides the logits": check_temperature,
    "the nucleus is the smallest set with probability p": check_nucleus,
    "at least one token is kept": check_one_token,
    "the temperature is applied before top-p": check_order_of_steps,
    "each row has its own nucleus": check_rows,
    "beam_step keeps the best of all continuations": check_beam,
    "beam_step equals the reference for random scores": check_beam_of_random_scores,
}

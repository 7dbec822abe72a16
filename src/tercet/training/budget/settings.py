"""Settings of a run that follow from its size and length.

The learning rate falls with the length of the run. Muon's rate does not depend on the width, because its updates have
the same effect on the hidden states of all widths; that of the output layer does (`recipe/sized.py`). Dropout and the
weight decay of embeddings and output layer rise with the passes over the text: dropout the sooner the larger the model
is in relation to the text, and decay if the tokens of the vocabulary are rare, so that their vectors overfit:

    lr = 0.025 (1000 / steps)^0.4                       within limits
    weight decay = 0.1 passes min(1, 1000 V / U)        at most 1, and 0 below 0.1
    dropout = 0.05 log2(r / 4)                          within limits, rounded to a hundredth
    r = passes sqrt(max(1, N / U))

N is the number of weights of the blocks, U the number of tokens of the text, V the size of the vocabulary. The
measurements behind these rules are in forecasts.md and small-texts.md in benchmarks/log.
"""

import math
from dataclasses import dataclass

from tercet.config import Plain
from tercet.models.sizes import layers_of

RATE, RATE_STEPS, RATE_EXPONENT = 0.025, 1000, 0.4
MIN_RATE, MAX_RATE = 0.002, 0.06
ADAM_SHARE = 0.4  # AdamW's rate as a share of Muon's
SAFE_PASSES, DROPOUT_STEP, MAX_DROPOUT = 4.0, 0.05, 0.3
DECAY_PER_PASS, MIN_DECAY, MAX_DECAY = 0.1, 0.1, 1.0
RARE = 1000  # mean occurrences of a token below which its vector overfits


@dataclass(frozen=True)
class TextSize:
    """Sizes of a text and of the steps over it.

    Attributes:
        unique_tokens: Tokens of the training text.
        step_tokens: Tokens of a step.
        vocab_size: Number of different tokens.
    """

    unique_tokens: int
    step_tokens: int
    vocab_size: int

    def passes(self, steps: int) -> float:
        """Return how often a run of a length reads the text."""
        return steps * self.step_tokens / self.unique_tokens


def run_settings(size: int, steps: int, *, validations: int, text: TextSize | None = None) -> Plain:
    """Return the changes to a recipe with `model.size` for a run of a size and length, as nested mappings.

    Args:
        size: Width of the model.
        steps: Length of the run.
        validations: Number of validations, the last of which is at the last step.
        text: Sizes of the text; None if they are unknown, for a run that is shorter than a few passes.
    """
    interval = -(-steps // validations)
    lr = learning_rate(steps)
    training: Plain = {
        "max_steps": steps,
        "validate_every": interval,
        "save_every": interval,
        "log_every": max(1, min(10, steps // 5)),
        "optimizer": {
            "kind": "muon",
            "lr": lr,
            "adam_lr": round(ADAM_SHARE * lr, 6),
            "adam_weight_decay": 0.0 if text is None else weight_decay(steps, text),
        },
    }
    rate = 0.0 if text is None else dropout(size, text.passes(steps), text.unique_tokens)
    stack: Plain = {"stack": {"dropout": {"embedding": rate, "residual": rate}}} if rate else {}
    return {"model": {"size": size, **stack}, "training": training}


def dropout(size: int, passes: float, unique_tokens: int) -> float:
    """Return the dropout rate of the embeddings and of the branches for a run over a text.

    Args:
        size: Width of the model.
        passes: Passes over the text.
        unique_tokens: Tokens of the text.
    """
    weights = 12 * layers_of(size) * size**2
    return round(min(MAX_DROPOUT, DROPOUT_STEP * overfitting(weights, passes, unique_tokens)), 2)


def weight_decay(steps: int, text: TextSize) -> float:
    """Return the weight decay of embeddings and output layer for a run over a text."""
    decay = DECAY_PER_PASS * text.passes(steps) * min(1.0, RARE * text.vocab_size / text.unique_tokens)
    return 0.0 if decay < MIN_DECAY else round(min(MAX_DECAY, decay), 2)


def overfitting(weights: float, passes: float, unique_tokens: float) -> float:
    """Return log2(r / 4), or 0 if that is negative; r is the number of passes, weighted by the size of the model.

    Args:
        weights: Number of weights of the model.
        passes: Passes over the text.
        unique_tokens: Tokens of the text.
    """
    risk = passes * math.sqrt(max(1.0, weights / unique_tokens))
    return max(0.0, math.log2(max(1e-9, risk / SAFE_PASSES)))


def learning_rate(steps: int) -> float:
    """Return Muon's learning rate for a run of a length: 0.025 (1000 / steps)^0.4 within limits."""
    return round(min(MAX_RATE, max(MIN_RATE, RATE * (RATE_STEPS / steps) ** RATE_EXPONENT)), 6)

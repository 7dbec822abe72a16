"""Exercise 7: Cross-entropy and the masked language model.

The loss of one target is its negative log-likelihood, -ln p(target), in nats. With label smoothing the target has the
probability 1 - ε, and ε is spread equally over all V tokens, the target included:

    loss = -(1 - ε) ln p(target) - ε / V * (sum of ln p over all tokens)

The target -100 marks a token without a loss, such as padding. The mean is over the other targets.

A masked language model (BERT) reads text in which some tokens are hidden. It has a loss only at the hidden tokens,
because it sees all others.

Shapes: N targets, B rows of T tokens, V vocabulary size.
Do not use `nn.CrossEntropyLoss` or `torch.nn.functional.cross_entropy`.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 7`.

Papers: Szegedy et al., "Rethinking the Inception Architecture" (2016), section 7; Devlin et al., "BERT" (2019).
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor


def cross_entropy(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, " N"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the mean loss of the targets that are not -100, with label smoothing."""
    raise NotImplementedError


def masked_lm_loss(
    logits: Float[Tensor, "B T V"], ids: Int[Tensor, "B T"], is_masked: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Return the mean loss of the hidden tokens.

    Args:
        logits: Predictions for all tokens.
        ids: Original tokens, before some were hidden.
        is_masked: True for the hidden tokens.
    """
    raise NotImplementedError

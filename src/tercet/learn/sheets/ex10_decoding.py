"""Exercise 10: Nucleus sampling and beam search.

Sampling: the logits are divided by the temperature and become probabilities. Top-p then keeps the nucleus, which is the
smallest set of most likely tokens whose total probability is at least p. The token that crosses p is kept. The other
tokens get the probability 0, and those of the nucleus are divided by their sum.

Beam search keeps the W best hypotheses. The score of a hypothesis is the sum of the log-probabilities of its tokens. In
one step, each of the W hypotheses can be continued with each of the V tokens. The W best of these W * V continuations
are kept, and several of them may continue the same hypothesis.

Shapes: B rows, V vocabulary size, W beams.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 10`.

Paper: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020).
"""

from jaxtyping import Float, Int
from torch import Tensor


def next_probabilities(logits: Float[Tensor, "B V"], temperature: float, top_p: float) -> Float[Tensor, "B V"]:
    """Return the probabilities from which the next token is drawn.

    Args:
        logits: Scores of the next token.
        temperature: Divisor of the logits, above 0. Less than 1 makes likely tokens more likely.
        top_p: Total probability of the nucleus, above 0 and at most 1.
    """
    raise NotImplementedError


def beam_step(
    scores: Float[Tensor, " W"], logprobs: Float[Tensor, "W V"]
) -> tuple[Int[Tensor, " W"], Int[Tensor, " W"], Float[Tensor, " W"]]:
    """Return the W best continuations, the best one first.

    Args:
        scores: Scores of the hypotheses.
        logprobs: Log-probabilities of the next token of each hypothesis.

    Returns:
        Number of the hypothesis that each continuation extends, its new token, and its score.
    """
    raise NotImplementedError

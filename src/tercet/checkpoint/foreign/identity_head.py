"""The head for masked words of a ModernBERT whose layers before the scores change nothing.

ModernBERT has a dense layer, an activation and a norm before the scores. A model without them, whose final norm is
w n(x) with the weight w, becomes a ModernBERT with a dense layer 1 / w, a linear activation, and a norm with the weight
w: it computes w n(n(x)) = w n(x), up to half of the norms' eps.
"""

import torch
from torch import Tensor

from tercet.config import UserError
from tercet.messages import show
from tercet.models import EncoderOnly, StackSpec

# With at most this eps, the layers change float32 numbers by rounding only.
MAX_EPS, LINEAR = 1e-6, "linear"


def supports_identity_head(stack: StackSpec) -> bool:
    """Return whether the layers of a head can change nothing."""
    return stack.norm_eps <= MAX_EPS and not stack.norm_bias and not stack.biases.feedforward


@torch.no_grad()
def fill_identity_head(model: EncoderOnly) -> None:
    """Set the layers before the unembedding so that they pass on the hidden states, if their activation is linear.

    Raises:
        UserError: If a weight of the final norm is 0.
    """
    weight, transform = model.get_parameter("stack.final_norm.weight"), model.get_submodule("transform")
    if not weight.all():
        raise UserError("stack.final_norm has a weight of 0, which the head of ModernBERT cannot express")
    transform.get_parameter("dense.weight").copy_(torch.diag(1 / weight))
    transform.get_parameter("norm.weight").copy_(weight)


def drop_identity_head(tensors: dict[str, Tensor]) -> None:
    """Remove the layers of a head with a linear activation.

    Raises:
        UserError: If they change the hidden states.
    """
    weight = tensors["final_norm.weight"]
    dense, norm = tensors.pop("head.dense.weight"), tensors.pop("head.norm.weight")
    if not (torch.allclose(dense * weight, torch.eye(len(weight)), atol=1e-5) and torch.equal(norm, weight)):
        raise UserError(
            f"classifier_activation is {show(LINEAR)}, which Tercet supports only if the layers of the head change "
            "nothing"
        )

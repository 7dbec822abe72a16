"""The logit lens: what a model would say if it ended after each block.

    logits = unembedding(final_norm(stream))        at every block, not at the last one alone

nostalgebraist, "interpreting GPT: the logit lens" (2020). After the last block these are the model's own logits,
exactly, for they are made by the same parts: the final norm is met once, and where norms stand after the sums there is
none; BERT's words are scored through its transform. Earlier blocks were not trained to be read: theirs may mean little.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.models import AnyModel, EncoderDecoder, Stack


def stacks_of(model: AnyModel) -> dict[str, Stack]:
    """The stacks by name, in the order in which they read; the last one's hidden states have logits."""
    if isinstance(model, EncoderDecoder):
        return {"encoder": model.encoder, "decoder": model.decoder}
    return {"stack": model.stack}


def stream_names(model: AnyModel) -> dict[str, list[str]]:
    """Of each stack the names of its residual stream, from what the first block reads to what the last one leaves."""
    return {
        name: [f"{name}.dropout", *(f"{name}.blocks.{i}" for i in range(len(stack.blocks)))]
        for name, stack in stacks_of(model).items()
    }


@torch.no_grad()
def read_off(model: AnyModel, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
    """The logits if the last stack ended with `stream`, one of the tensors that `stream_names` names.

    Raises:
        ValueError: for an encoder that scores no words.
    """
    stack = list(stacks_of(model).values())[-1]
    return model.logits(stack.final_norm(stream))

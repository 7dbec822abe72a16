"""The logit lens: the predictions of a model if it ended after each block.

    logits = unembedding(final_norm(stream))        at every block, not only the last one

nostalgebraist, "interpreting GPT: the logit lens" (2020). After the last block these are the model's own logits,
bit for bit, because the same modules compute them. They include the final norm, if the stack has one, and BERT's
transform. Earlier blocks were not trained to predict tokens directly, so their predictions may mean little.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.models import AnyModel, EncoderDecoder, Stack
from tercet.objectives import split_logits


def stacks_of(model: AnyModel) -> dict[str, Stack]:
    """Return the stacks by name, in the order in which they run. The logits are computed from the last one."""
    if isinstance(model, EncoderDecoder):
        return {"encoder": model.encoder, "decoder": model.decoder}
    return {"stack": model.stack}


def stream_names(model: AnyModel) -> dict[str, list[str]]:
    """Return the names of the tensors of each stack's residual stream, from the embedding to the last block."""
    return {
        name: [f"{name}.dropout", *(f"{name}.blocks.{i}" for i in range(len(stack.blocks)))]
        for name, stack in stacks_of(model).items()
    }


@torch.no_grad()
def logit_lens(model: AnyModel, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
    """Return the logits if the last stack ended with `stream`, a tensor named in `stream_names`.

    Raises:
        ValueError: If an encoder has no language-model head.
    """
    stack = list(stacks_of(model).values())[-1]
    return model.logits(stack.final_norm(stream))


@dataclass(frozen=True, kw_only=True)
class TopPredictions:
    """The most likely tokens of each row, in descending order of probability.

    Attributes:
        ids: Ids of the tokens of each row.
        probabilities: Probabilities of these tokens.
    """

    ids: list[list[int]]
    probabilities: Float[Tensor, "T k"]


@torch.no_grad()
def find_top_tokens(logits: Float[Tensor, "T V"], count: int) -> TopPredictions:
    """Return the `count` most likely tokens of each row by softmax, or all if there are fewer."""
    top = logits.float().softmax(-1).topk(min(count, logits.shape[-1]))
    return TopPredictions(ids=top.indices.tolist(), probabilities=top.values)


@torch.no_grad()
def lens_top_tokens(model: AnyModel, activations: Mapping[str, Tensor], count: int) -> dict[str, TopPredictions]:
    """Return the `count` most likely tokens of each row, for each tensor of the last stack's residual stream.

    Only the first text of the batch is used. Rows are processed in chunks, because all logits at once would take layers
    x tokens x vocabulary numbers.
    """
    stack, names = list(stacks_of(model).values())[-1], list(stream_names(model).values())[-1]
    return {
        name: _concatenate(
            [
                find_top_tokens(logits, count)
                for _, logits in split_logits(model, stack.final_norm(activations[name][0]))
            ]
        )
        for name in names
    }


def _concatenate(parts: list[TopPredictions]) -> TopPredictions:
    return TopPredictions(
        ids=[row for part in parts for row in part.ids], probabilities=torch.cat([part.probabilities for part in parts])
    )

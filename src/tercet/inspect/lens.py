"""The logit lens: what a model would say if it ended after each block.

    logits = unembedding(final_norm(stream))        at every block, not at the last one alone

nostalgebraist, "interpreting GPT: the logit lens" (2020). After the last block these are the model's own logits,
exactly, for they are made by the same parts: the final norm is met once, and where norms stand after the sums there is
none; BERT's words are scored through its transform. Earlier blocks were not trained to be read: theirs may mean little.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.models import AnyModel, EncoderDecoder, Stack
from tercet.objectives import split_logits


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
def logit_lens(model: AnyModel, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
    """The logits if the last stack ended with `stream`, one of the tensors that `stream_names` names.

    Raises:
        ValueError: for an encoder that scores no words.
    """
    stack = list(stacks_of(model).values())[-1]
    return model.logits(stack.final_norm(stream))


@dataclass(frozen=True, kw_only=True)
class TopPredictions:
    """The likeliest tokens of each row, the likeliest first."""

    ids: list[list[int]]
    probabilities: Float[Tensor, "T k"]


@torch.no_grad()
def find_top_tokens(logits: Float[Tensor, "T V"], count: int) -> TopPredictions:
    """The `count` likeliest tokens of each row by the softmax of its logits; all, where there are fewer."""
    top = logits.float().softmax(-1).topk(min(count, logits.shape[-1]))
    return TopPredictions(ids=top.indices.tolist(), probabilities=top.values)


@torch.no_grad()
def lens_top_tokens(model: AnyModel, activations: Mapping[str, Tensor], count: int) -> dict[str, TopPredictions]:
    """The logit lens of a recording: by each name of the last stack's stream the `count` likeliest tokens of each row.

    A few rows at a time: the logits of all layers and tokens at once would be layers x tokens x vocabulary.
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

"""Token embedding and unembedding, which may share their matrix."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.models.specs import ModelSpec, StackSpec
from tercet.nn.linear import Linear


class TokenEmbedding(nn.Embedding):
    """Embedding of token ids, multiplied by sqrt(d_model) if the spec sets `scale_embedding`."""

    def __init__(self, spec: ModelSpec, stack: StackSpec, vocab_size: int) -> None:
        super().__init__(_rows(spec, vocab_size), stack.d_model)
        self.scale = math.sqrt(stack.d_model) if spec.scale_embedding else 1.0

    def forward(self, input: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = super().forward(input)
        return x if self.scale == 1.0 else x * self.scale


class SegmentEmbedding(nn.Embedding):
    """Embedding of the segments of a pair (BERT's token types).

    If the input is None, the result is the embedding of the first segment, (1, 1, D).
    """

    def forward(self, input: Int[Tensor, "B T"] | None) -> Float[Tensor, "#B #T D"]:
        return super().forward(
            torch.zeros(1, 1, dtype=torch.long, device=self.weight.device) if input is None else input
        )


class Unembedding(Linear):
    """Linear layer that returns a float32 logit for each token id, without those that pad the vocabulary."""

    bias: nn.Parameter | None  # pyright: ignore[reportIncompatibleVariableOverride] - not optional in Linear

    def __init__(self, spec: ModelSpec, stack: StackSpec, *, bias: bool = False) -> None:
        super().__init__(stack.d_model, _rows(spec, spec.vocab_size), bias=bias)
        self.vocab_size, self.softcap = spec.vocab_size, spec.logit_softcap

    def forward(self, input: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        logits = super().forward(input)[..., : self.vocab_size].float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def _rows(spec: ModelSpec, vocab_size: int) -> int:
    if vocab_size < 1:
        raise ValueError(
            f"vocab_size={vocab_size} must be at least 1; set it to the size of the tokenizer's vocabulary"
        )
    return math.ceil(vocab_size / spec.pad_vocab_to) * spec.pad_vocab_to

"""Ids to vectors at the bottom of a model, vectors to scores at its top; the two may share their matrix."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.models.specs import ModelSpec, StackSpec
from tercet.nn.norm import NORMS


class TokenEmbedding(nn.Embedding):
    """A vector for each id, scaled and normed as the spec says."""

    def __init__(self, spec: ModelSpec, stack: StackSpec, vocab_size: int) -> None:
        super().__init__(_rows(spec, vocab_size), stack.d_model)
        self.scale = math.sqrt(stack.d_model) if spec.scale_embedding else 1.0
        norm = NORMS[stack.norm](stack.d_model, eps=stack.norm_eps, bias=stack.norm_bias)
        self.norm = norm if spec.embedding_norm else nn.Identity()

    def forward(self, input: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = super().forward(input)
        return self.norm(x if self.scale == 1.0 else x * self.scale)


class Unembedding(nn.Linear):
    """A score for each id, in float32; ids that only pad the vocabulary have none."""

    def __init__(self, spec: ModelSpec, stack: StackSpec) -> None:
        super().__init__(stack.d_model, _rows(spec, spec.vocab_size), bias=False)
        self.vocab_size, self.softcap = spec.vocab_size, spec.logit_softcap

    def forward(self, input: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        logits = super().forward(input)[..., : self.vocab_size].float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def _rows(spec: ModelSpec, vocab_size: int) -> int:
    if vocab_size < 1:
        raise ValueError(f"vocab_size={vocab_size} must be at least 1; the tokenizer knows it")
    return math.ceil(vocab_size / spec.pad_vocab_to) * spec.pad_vocab_to

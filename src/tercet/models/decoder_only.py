"""The decoder-only Transformer (GPT): each token looks back, and each hidden state scores the next token.

    hidden = stack(embedding(tokens));  logits = hidden @ unembeddingᵀ

Radford et al. (2018, 2019). It holds no loss, tokenizer, optimizer or decoding state.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.models.specs import DecoderOnlySpec
from tercet.models.stack import Stack
from tercet.nn.cache import Cache
from tercet.nn.init import initialise
from tercet.nn.norm import NORMS


class DecoderOnly(nn.Module):
    """Args:
    spec: sizes and variants; a vocab_size of at least 1.
    seed: of the initial weights.

    Raises:
        ValueError: for sizes that do not fit together.
    """

    def __init__(self, spec: DecoderOnlySpec, *, seed: int = 0) -> None:
        super().__init__()
        if spec.vocab_size < 1:
            raise ValueError(f"vocab_size={spec.vocab_size} must be at least 1; the tokenizer knows it")
        self.spec = spec
        stack = spec.stack
        rows = math.ceil(spec.vocab_size / spec.pad_vocab_to) * spec.pad_vocab_to
        self.embedding = nn.Embedding(rows, stack.d_model)
        self.embedding_norm = (
            NORMS[stack.norm](stack.d_model, eps=stack.norm_eps, bias=stack.norm_bias)
            if spec.embedding_norm
            else nn.Identity()
        )
        self.stack = Stack(stack, causal=True, max_len=spec.max_len)
        self.unembedding = nn.Linear(stack.d_model, rows, bias=False)
        if spec.tie_embeddings:
            self.unembedding.weight = self.embedding.weight
        initialise(self, spec.init, seed=seed)

    @property
    def max_len(self) -> int:
        return self.spec.max_len

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        padding: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        return self.logits(self.hidden(tokens, padding=padding, documents=documents))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        padding: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden states after the last norm; see `Stack.forward` for the arguments."""
        if tokens.shape[1] > self.max_len:
            raise ValueError(f"{tokens.shape[1]} tokens do not fit into the context of max_len={self.max_len}")
        x = self.embedding(tokens)  # (B, T, D)
        if self.spec.scale_embedding:
            x = x * math.sqrt(self.spec.stack.d_model)
        return self.stack(self.embedding_norm(x), padding=padding, documents=documents, cache=cache)

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Scores of the next token, in float32; ids that only pad the vocabulary have none."""
        logits = self.unembedding(hidden)[..., : self.vocab_size].float()
        cap = self.spec.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def start(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], *, capacity: int
    ) -> tuple[Float[Tensor, "B V"], Cache]:
        """Read the prompts.

        Args:
            tokens: prompts, padded on the right with any id.
            lengths: real tokens of each row, at least one.
            capacity: the most tokens a row will hold, prompt included; at most max_len.

        Returns:
            the logits after each row's last real token, and the state for `step`.
        """
        stack = self.spec.stack
        if not tokens.shape[1] <= capacity <= self.max_len:
            raise ValueError(
                f"capacity={capacity} must hold the {tokens.shape[1]} tokens given, at most max_len={self.max_len}"
            )
        cache = Cache(
            n_layers=stack.n_layers,
            n_kv_heads=stack.n_heads if stack.n_kv_heads is None else stack.n_kv_heads,
            d_head=stack.head_width,
            batch=tokens.shape[0],
            capacity=capacity,
            device=tokens.device,
            dtype=self.embedding.weight.dtype,
        )
        hidden = self.hidden(tokens, cache=cache)  # (B, T, D)
        cache.advance(lengths)
        last = hidden[torch.arange(len(lengths), device=lengths.device), lengths - 1]  # (B, D)
        return self.logits(last), cache

    def step(self, tokens: Int[Tensor, " B"], cache: Cache) -> Float[Tensor, "B V"]:
        """Append one token to each row; the logits of the one after it."""
        hidden = self.hidden(tokens[:, None], cache=cache)  # (B, 1, D)
        cache.advance(1)
        return self.logits(hidden[:, 0])

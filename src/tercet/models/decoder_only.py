"""The decoder-only Transformer (GPT), in which each token attends only to itself and to earlier tokens.

    hidden = stack(embedding(tokens));  logits = hidden @ unembeddingᵀ, plus an optional bias per token

Radford et al. (2018, 2019). The model does not contain a loss, tokenizer, optimizer or decoding state.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.models.model import Model
from tercet.models.specs import DecoderOnlySpec
from tercet.models.stack import Stack
from tercet.models.vocabulary import TokenEmbedding, Unembedding
from tercet.nn.cache import StackCache
from tercet.nn.init import initialize


class DecoderOnly(Model[DecoderOnlySpec]):
    """The decoder-only Transformer, which computes the logits of the next token.

    Args:
        spec: Sizes and variants. vocab_size must be at least 1.
        seed: Seed of the initial weights.

    Raises:
        ValueError: If sizes do not fit together.
    """

    def __init__(self, spec: DecoderOnlySpec, *, seed: int = 0) -> None:
        super().__init__(spec)
        self.embedding = TokenEmbedding(spec, spec.stack, spec.vocab_size)
        self.stack = Stack(spec.stack, causal=True, max_len=spec.max_len, embedding_norm=spec.embedding_norm)
        self.unembedding = Unembedding(spec, spec.stack, bias=spec.logit_bias)
        if spec.tie_embeddings:
            self.unembedding.weight = self.embedding.weight
        initialize(self, spec.init, seed=seed)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the float32 logits of the next token at each position; see `Stack.forward` for the arguments."""
        return self.logits(self.hidden(tokens, token_mask=token_mask, documents=documents))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states after the last norm; see `Stack.forward` for the arguments.

        Raises:
            ValueError: If there are more than max_len tokens per row.
        """
        self.check_length(tokens)
        return self.stack(self.embedding(tokens), token_mask=token_mask, documents=documents, cache=cache)

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the float32 logits of the next token."""
        return self.unembedding(hidden)

    def start(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], *, capacity: int
    ) -> tuple[Float[Tensor, "B V"], StackCache]:
        """Run the prefill: read the prompts and fill a new KV cache.

        Args:
            tokens: Prompts, padded on the right with any token id.
            lengths: Number of real tokens in each row, at least one.
            capacity: Maximum number of tokens per row, including the prompt; at most max_len.

        Returns:
            The logits after the last real token of each row, and the KV cache for `step`.

        Raises:
            ValueError: If `capacity` is less than the length of the prompts or more than max_len.
        """
        if not tokens.shape[1] <= capacity <= self.max_len:
            raise ValueError(
                f"capacity={capacity} must be at least the {tokens.shape[1]} prompt tokens "
                f"and at most max_len={self.max_len}"
            )
        cache = self.new_cache(tokens.shape[0], capacity=capacity)
        hidden = self.hidden(tokens, cache=cache)  # (B, T, D)
        return self.logits(cache.read(hidden, lengths)), cache

    def new_cache(self, batch: int, *, capacity: int) -> StackCache:
        """Return an empty KV cache with `batch` rows of `capacity` tokens each."""
        return self.stack.new_cache(batch, capacity=capacity)

    def step(self, tokens: Int[Tensor, " B"], cache: StackCache) -> Float[Tensor, "B V"]:
        """Run one decode step: append one token to each row and return the logits of the next one."""
        hidden = self.hidden(tokens[:, None], cache=cache)  # (B, 1, D)
        cache.advance(1)
        return self.logits(hidden[:, 0])

    def read_ahead(self, tokens: Int[Tensor, "B T"], cache: StackCache) -> Float[Tensor, "B T V"]:
        """Return the logits after each of several new tokens per row, without adding the tokens to the rows.

        Call `cache.advance` afterwards with the number of tokens to keep in each row. Later tokens do not attend to the
        tokens that are not kept.

        Args:
            tokens: New tokens, padded on the right with any token id.
            cache: KV cache of the previous tokens.
        """
        return self.logits(self.hidden(tokens, cache=cache))

"""The encoder-decoder Transformer, whose decoder attends to the encoder's output.

    memory = encoder(embedding(source));  hidden = decoder(embedding(target), memory);  logits = hidden @ unembeddingᵀ

Vaswani et al., "Attention Is All You Need" (2017). Neither the encoder nor the cross-attention attends to padding of
the source, which the source's token mask marks. The model does not contain a loss, tokenizer, optimizer or decoding
state.
"""

from functools import partial

from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.models.model import Model
from tercet.models.specs import EncoderDecoderSpec
from tercet.models.stack import Stack
from tercet.models.vocabulary import TokenEmbedding, Unembedding
from tercet.nn.cache import StackCache
from tercet.nn.init import initialize


class EncoderDecoder(Model[EncoderDecoderSpec]):
    """The encoder-decoder Transformer, which computes the logits of the next target token.

    Args:
        spec: Sizes and variants. vocab_size must be at least 1.
        seed: Seed of the initial weights.

    Raises:
        ValueError: If sizes do not fit together.
    """

    def __init__(self, spec: EncoderDecoderSpec, *, seed: int = 0) -> None:
        super().__init__(spec)
        source_size = spec.vocab_size if spec.source_vocab_size is None else spec.source_vocab_size
        self.source_embedding = TokenEmbedding(spec, spec.encoder, source_size)
        self.embedding = TokenEmbedding(spec, spec.decoder, spec.vocab_size)
        stack = partial(Stack, max_len=spec.max_len, embedding_norm=spec.embedding_norm)
        self.encoder = stack(spec.encoder, causal=False)
        self.decoder = stack(spec.decoder, causal=True, cross=True)
        self.unembedding = Unembedding(spec, spec.decoder, bias=spec.logit_bias)
        if spec.share_embeddings:
            self.source_embedding.weight = self.embedding.weight
        if spec.tie_embeddings:
            self.unembedding.weight = self.embedding.weight
        initialize(self, spec.init, seed=seed)

    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        *,
        source_token_mask: Bool[Tensor, "B S"] | None = None,
        target_token_mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the float32 logits of the next target token at each target position.

        Args:
            source: Token ids of the sources.
            target: Token ids of the targets. Each token attends only to itself, earlier target tokens and the source.
            source_token_mask, target_token_mask: True at real tokens (default: all tokens are real).
        """
        memory = self.encode(source, token_mask=source_token_mask)
        return self.logits(
            self.hidden(target, memory, token_mask=target_token_mask, memory_token_mask=source_token_mask)
        )

    def encode(
        self, source: Int[Tensor, "B S"], *, token_mask: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B S D"]:
        """Return the memory, which is the encoder's output. `token_mask` is True at real tokens."""
        self.check_length(source, "source")
        return self.encoder(self.source_embedding(source), token_mask=token_mask)

    def hidden(
        self,
        target: Int[Tensor, "B T"],
        memory: Float[Tensor, "M S D"] | None,
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        memory_token_mask: Bool[Tensor, "M S"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the decoder's hidden states after its last norm.

        Args:
            target: Token ids.
            memory: Output of the encoder; None if the cache contains its keys and values.
            token_mask, memory_token_mask, cache: As in `Stack.forward`.

        Raises:
            ValueError: If there are more than max_len target tokens per row.
        """
        self.check_length(target, "target")
        return self.decoder(
            self.embedding(target),
            token_mask=token_mask,
            memory=memory,
            memory_token_mask=memory_token_mask,
            cache=cache,
        )

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the float32 logits of the next token."""
        return self.unembedding(hidden)

    def start(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"],
        *,
        source: Int[Tensor, "B S"],
        source_token_mask: Bool[Tensor, "B S"] | None = None,
        capacity: int,
    ) -> tuple[Float[Tensor, "B V"], StackCache]:
        """Run the prefill: encode the sources, read the prefixes of their targets and fill a new KV cache.

        Args:
            tokens: Target prefixes, padded on the right with any token id.
            lengths: Number of real tokens in each prefix, at least one.
            source: One source per row.
            source_token_mask: True at real tokens of the sources (default: all tokens are real).
            capacity: Maximum number of target tokens per row, including the prefix; at most max_len.

        Returns:
            The logits after the last real token of each row, and the KV cache for `step`.

        Raises:
            ValueError: If `capacity` is less than the length of the prefixes or more than max_len, or if the number of
                sources differs from the number of prefixes.
        """
        if not tokens.shape[1] <= capacity <= self.max_len:
            raise ValueError(
                f"capacity={capacity} must be at least the {tokens.shape[1]} target tokens "
                f"and at most max_len={self.max_len}"
            )
        if len(source) != len(tokens):
            raise ValueError(
                f"each target prefix requires one source: {len(source)} sources for {len(tokens)} prefixes; "
                "to decode several rows per source, start with one and call cache.expand_beams"
            )
        memory = self.encode(source, token_mask=source_token_mask)
        cache = self.new_cache(tokens.shape[0], capacity=capacity)
        cache.memory_token_mask = (
            source.new_ones(source.shape).bool() if source_token_mask is None else source_token_mask
        )
        hidden = self.hidden(tokens, memory, memory_token_mask=cache.memory_token_mask, cache=cache)
        return self.logits(cache.read(hidden, lengths)), cache

    def new_cache(self, batch: int, *, capacity: int) -> StackCache:
        """Return an empty KV cache with `batch` rows of `capacity` tokens each."""
        return self.decoder.new_cache(batch, capacity=capacity)

    def step(self, tokens: Int[Tensor, " B"], cache: StackCache) -> Float[Tensor, "B V"]:
        """Run one decode step: append one token to each row and return the logits of the next one."""
        hidden = self.hidden(tokens[:, None], None, memory_token_mask=cache.memory_token_mask, cache=cache)  # (B, 1, D)
        cache.advance(1)
        return self.logits(hidden[:, 0])

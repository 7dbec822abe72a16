"""The decoder-only Transformer (GPT): each token looks back, and each hidden state scores the next token.

    hidden = stack(embedding(tokens));  logits = hidden @ unembeddingᵀ, plus a bias for each token if wanted

Radford et al. (2018, 2019). It holds no loss, tokenizer, optimizer or decoding state.
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
    """The decoder-only Transformer: the next token's logits from the tokens before it.

    Args:
        spec: sizes and variants; a vocab_size of at least 1.
        seed: of the initial weights.

    Raises:
        ValueError: for sizes that do not fit together.
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
        return self.logits(self.hidden(tokens, token_mask=token_mask, documents=documents))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden states after the last norm; see `Stack.forward` for the arguments."""
        self.check_length(tokens)
        return self.stack(self.embedding(tokens), token_mask=token_mask, documents=documents, cache=cache)

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Scores of the next token, in float32."""
        return self.unembedding(hidden)

    def start(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], *, capacity: int
    ) -> tuple[Float[Tensor, "B V"], StackCache]:
        """Read the prompts.

        Args:
            tokens: prompts, padded on the right with any id.
            lengths: real tokens of each row, at least one.
            capacity: the most tokens a row will hold, prompt included; at most max_len.

        Returns:
            the logits after each row's last real token, and the state for `step`.
        """
        if not tokens.shape[1] <= capacity <= self.max_len:
            raise ValueError(
                f"capacity={capacity} must hold the {tokens.shape[1]} tokens given, at most max_len={self.max_len}"
            )
        cache = self.new_cache(tokens.shape[0], capacity=capacity)
        hidden = self.hidden(tokens, cache=cache)  # (B, T, D)
        return self.logits(cache.read(hidden, lengths)), cache

    def new_cache(self, batch: int, *, capacity: int) -> StackCache:
        """An empty decoding state of `batch` rows with room for `capacity` tokens each."""
        return self.stack.new_cache(batch, capacity=capacity)

    def step(self, tokens: Int[Tensor, " B"], cache: StackCache) -> Float[Tensor, "B V"]:
        """Append one token to each row; the logits of the one after it."""
        hidden = self.hidden(tokens[:, None], cache=cache)  # (B, 1, D)
        cache.advance(1)
        return self.logits(hidden[:, 0])

    def read_ahead(self, tokens: Int[Tensor, "B T"], cache: StackCache) -> Float[Tensor, "B T V"]:
        """The logits after each of the next tokens of each row, padded on the right with any id.

        They are not counted yet: `cache.advance` says how many of them stand, and the rest is never seen again.
        """
        return self.logits(self.hidden(tokens, cache=cache))

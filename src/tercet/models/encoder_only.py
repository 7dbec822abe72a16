"""The encoder-only Transformer (BERT), in which each token attends to all tokens.

    hidden = stack(embedding(tokens) + segment(segments));  logits = transform(hidden) @ unembeddingᵀ + bias

Devlin et al. (2019). Depending on its spec, the model also has a pooler, a next-sentence head and a classifier. It does
not contain a loss, tokenizer or optimizer. Nor does it select the masked tokens: to save time, the loss passes only
their hidden states to `logits`.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.models.model import Model
from tercet.models.specs import EncoderOnlySpec
from tercet.models.stack import Stack
from tercet.models.vocabulary import SegmentEmbedding, TokenEmbedding, Unembedding
from tercet.nn.heads import Pooler, Transform
from tercet.nn.init import initialize
from tercet.nn.norm import norm_factory
from tercet.nn.pooling import pool


class EncoderOnly(Model[EncoderOnlySpec]):
    """The encoder-only Transformer, which computes hidden states and the logits of the heads in its spec.

    Args:
        spec: Sizes, variants and heads. vocab_size must be at least 1.
        seed: Seed of the initial weights.

    Raises:
        ValueError: If sizes do not fit together, or if the spec has a classifier without labels.
    """

    # Each of these exists only if the spec has it. The methods that need a missing head raise a ValueError.
    segment_embedding: SegmentEmbedding
    transform: Transform
    unembedding: Unembedding
    pooler: Pooler
    next_sentence: nn.Linear
    classifier: nn.Linear

    def __init__(self, spec: EncoderOnlySpec, *, seed: int = 0) -> None:
        super().__init__(spec)
        stack, width = spec.stack, spec.stack.d_model
        self.embedding = TokenEmbedding(spec, stack, spec.vocab_size)
        if spec.n_segments:
            self.segment_embedding = SegmentEmbedding(spec.n_segments, width)
        self.stack = Stack(stack, causal=False, max_len=spec.max_len, embedding_norm=spec.embedding_norm)
        if spec.has_transform:
            norm = norm_factory(stack.norm, width, eps=stack.norm_eps, bias=stack.norm_bias)
            self.transform = Transform(width, norm=norm, activation=stack.activation, bias=stack.biases.feedforward)
        if spec.masked_head is not None:
            self.unembedding = Unembedding(spec, stack, bias=spec.masked_head.bias)
            if spec.tie_embeddings:
                self.unembedding.weight = self.embedding.weight
        if spec.pooler:
            self.pooler = Pooler(width, activation=spec.pooler_activation)
        if spec.next_sentence:
            self.next_sentence = nn.Linear(width, 2)
        if spec.classifier is not None:
            if not spec.classifier.labels:
                raise ValueError("classifier.labels is empty; set it to the labels of the data")
            self.classifier_dropout = nn.Dropout(spec.classifier.dropout)
            self.classifier = nn.Linear(width, len(spec.classifier.labels))
        initialize(self, spec.init, seed=seed)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the float32 logits of the token at each position; see `hidden` for the arguments.

        Raises:
            ValueError: If the spec has no `masked_head`, or for the same reasons as in `hidden`.
        """
        return self.logits(self.hidden(tokens, token_mask=token_mask, documents=documents, segments=segments))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states after the last norm.

        Args:
            tokens: Token ids.
            token_mask: True at real tokens. Padding may be at any position and does not change the result.
            documents: Document number of each position. Tokens attend only to their own document, and positions count
                from its start.
            segments: Segment of each token (default: 0, the first).

        Raises:
            ValueError: If `segments` is given and the model has none, or if the sequence is longer than max_len.
        """
        self.check_length(tokens)
        x = self.embedding(tokens)  # (B, T, D)
        if self.spec.n_segments:
            x = x + self.segment_embedding(segments)
        elif segments is not None:
            raise ValueError(
                "the model has no segments (n_segments=0); omit `segments`, or train a model with n_segments=2"
            )
        return self.stack(x, token_mask=token_mask, documents=documents)

    def mlm_transform(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return the input of the unembedding: the hidden states, transformed if the head has a transform.

        Raises:
            ValueError: If the spec has no `masked_head`.
        """
        if self.spec.masked_head is None:
            raise _no_head("masked_head", "it cannot predict masked tokens; set masked_head={} and train it")
        return self.transform(hidden) if self.spec.masked_head.transform else hidden

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the float32 logits of the token at each position.

        Raises:
            ValueError: If the spec has no `masked_head`.
        """
        states = self.mlm_transform(hidden)  # first, because it raises a clear error if there is no masked_head
        return self.unembedding(states)

    def pooled(
        self, hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B D"]:
        """Apply BERT's pooler to the hidden state of the first real token of each row.

        Raises:
            ValueError: If the model has no pooler.
        """
        if not self.spec.pooler:
            raise _no_head("pooler", "pool the hidden states with tercet.nn.pool instead, with kind 'mean' or 'first'")
        return self.pooler(pool(hidden, token_mask, "first"))

    def next_sentence_logits(
        self, hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B 2"]:
        """Return float32 logits, (B, 2): that the second segment follows the first, and that it was drawn at random.

        Raises:
            ValueError: If the model has no next-sentence head.
        """
        if not self.spec.next_sentence:
            raise _no_head("next_sentence", "it was not trained on sentence pairs; compare embeddings instead")
        return self.next_sentence(self.pooled(hidden, token_mask)).float()

    def classify(
        self, hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B *T L"]:
        """Return the float32 logits of each label, per text (B, L) or per token (B, T, L).

        A regression model returns one number instead: by how many `target_std` the target is above `target_mean`.

        Raises:
            ValueError: If the model has no classifier.
        """
        head = self.spec.classifier
        if head is None:
            raise _no_head("classifier", "train it on labeled examples first")
        if head.over == "tokens":
            x = hidden
        else:
            x = self.pooled(hidden, token_mask) if head.pooling == "pooler" else pool(hidden, token_mask, head.pooling)
        x = self.transform(x) if head.transform else x
        return self.classifier(self.classifier_dropout(x)).float()


def _no_head(name: str, remedy: str) -> ValueError:
    return ValueError(f"the model has no {name}: {remedy}")

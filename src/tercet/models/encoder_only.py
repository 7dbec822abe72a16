"""The encoder-only Transformer (BERT): each token looks at all others, and each hidden state says what stands there.

    hidden = stack(embedding(tokens) + segment(segments));  logits = transform(hidden) @ unembeddingᵀ + bias

Devlin et al. (2019). Beside the scores of masked words there may be a pooler, a next-sentence head and a classifier, as
the spec says. It holds no loss, tokenizer or optimizer, and does not know which tokens are masked: a loss asks for the
scores of those rows alone.
"""

from functools import partial

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.models.model import Model
from tercet.models.specs import EncoderOnlySpec
from tercet.models.stack import Stack
from tercet.models.vocabulary import SegmentEmbedding, TokenEmbedding, Unembedding
from tercet.nn.heads import Pooler, Transform
from tercet.nn.init import initialize
from tercet.nn.norm import NORMS
from tercet.nn.pooling import pool


class EncoderOnly(Model[EncoderOnlySpec]):
    """The encoder-only Transformer: hidden states of all tokens, and the logits of the heads that its spec has.

    Args:
        spec: sizes, variants and heads; a vocab_size of at least 1.
        seed: of the initial weights.

    Raises:
        ValueError: for sizes that do not fit together.
    """

    # Each head is there only if the spec has it; its method says so where it is not.
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
        if spec.masked_head is not None:
            if spec.masked_head.transform:
                norm = partial(NORMS[stack.norm], width, eps=stack.norm_eps, bias=stack.norm_bias)
                self.transform = Transform(width, norm=norm, activation=stack.activation, bias=stack.biases.feedforward)
            self.unembedding = Unembedding(spec, stack, bias=spec.masked_head.bias)
            if spec.tie_embeddings:
                self.unembedding.weight = self.embedding.weight
        if spec.pooler:
            self.pooler = Pooler(width, activation=spec.pooler_activation)
        if spec.next_sentence:
            self.next_sentence = nn.Linear(width, 2)
        if spec.classifier is not None:
            if not spec.classifier.labels:
                raise ValueError("a classifier without labels; the labelled data know them")
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
        return self.logits(self.hidden(tokens, token_mask=token_mask, documents=documents, segments=segments))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden states after the last norm.

        Args:
            token_mask: True at real tokens; padding may stand anywhere and changes nothing.
            documents: a number for each position; tokens see their own document only, and count from its start.
            segments: which part of a pair each token belongs to; the first, 0, where nothing is said.
        """
        self.check_length(tokens)
        x = self.embedding(tokens)  # (B, T, D)
        if self.spec.n_segments:
            x = x + self.segment_embedding(segments)
        elif segments is not None:
            raise ValueError("the model has no segments (n_segments=0); leave them out, or train one with n_segments=2")
        return self.stack(x, token_mask=token_mask, documents=documents)

    def mlm_transform(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """What the unembedding reads: the transform of the hidden states, or themselves where there is none."""
        if self.spec.masked_head is None:
            raise _no_head("masked_head", "it cannot score words; masked_head={} gives it one, to be trained")
        return self.transform(hidden) if self.spec.masked_head.transform else hidden

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Scores of the token that stands at each place, in float32."""
        states = self.mlm_transform(hidden)  # first: it says what is missing
        return self.unembedding(states)

    def pooled(
        self, hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B D"]:
        """BERT's pooler on each row's first real token."""
        if not self.spec.pooler:
            raise _no_head("pooler", "pool its hidden states with tercet.nn.pool instead, by 'mean' or 'first'")
        return self.pooler(pool(hidden, token_mask, "first"))

    def next_sentence_logits(
        self, hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B 2"]:
        """Scores, in float32, of the second segment being what follows the first, and of its being drawn by chance."""
        if not self.spec.next_sentence:
            raise _no_head("next_sentence", "it was not trained on pairs of sentences; compare vectors instead")
        return self.next_sentence(self.pooled(hidden, token_mask)).float()

    def classify(
        self, hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B *T L"]:
        """A score for each label, in float32: of a text (B, L), or of each of its tokens (B, T, L).

        A number has one: how many of the spec's `target_std` it is above `target_mean`.
        """
        head = self.spec.classifier
        if head is None:
            raise _no_head("classifier", "train it on labelled texts first")
        if head.over == "tokens":
            x = hidden
        else:
            x = self.pooled(hidden, token_mask) if head.pooling == "pooler" else pool(hidden, token_mask, head.pooling)
        return self.classifier(self.classifier_dropout(x)).float()


def _no_head(name: str, remedy: str) -> ValueError:
    return ValueError(f"the model has no {name}: {remedy}")

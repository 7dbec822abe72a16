"""What a model is, as data: frozen, comparable, written to `config.json` and read back."""

from collections import Counter
from dataclasses import field
from typing import Annotated, Literal

from tercet.nn.specs import Activation, Init, Learned, Norm, Normal, Placement, PoolerActivation, Pooling, Position
from tercet.spec import (
    Context,
    Epsilon,
    Interval,
    Layers,
    ProblemType,
    ShareBelowOne,
    TargetDeviation,
    TargetMean,
    VocabularySize,
    Width,
    check_problem_type,
    spec,
)


@spec
class BranchDropout:
    """Each branch's own rate."""

    attention: ShareBelowOne  # on what self- and cross-attention give
    feedforward: ShareBelowOne  # on what the feed-forward network gives


@spec
class Dropout:
    """The share of numbers set to zero in training, in each of four places."""

    embedding: ShareBelowOne = 0.0  # on the sum of token and position embedding
    attention: ShareBelowOne = 0.0  # on the attention weights
    activation: ShareBelowOne = 0.0  # inside the feed-forward network, on the activations
    residual: ShareBelowOne | BranchDropout = 0.0  # on each branch, before it is added to the stream

    @property
    def branches(self) -> BranchDropout:
        """The rate of each branch."""
        value = self.residual
        return value if isinstance(value, BranchDropout) else BranchDropout(attention=value, feedforward=value)


@spec
class Biases:
    """Which linear layers of a block have a bias."""

    qkv: bool  # the projections to queries, keys and values
    out: bool  # attention's output
    feedforward: bool  # the matrices of the feed-forward network


@spec
class StackSpec:
    """A stack of equal blocks: the body of every model.

    Sizes that are None follow from the others: n_kv_heads = n_heads, d_head = d_model / n_heads, d_ff = 4 d_model.

    Args:
        bias: of the linear layers: all of them, none, or each kind by itself.
        final_norm: a norm after the last block; None follows the placement: all but "post" have one.
        parallel: attention and feed-forward network read the same input and are added together (GPT-J, PaLM).
    """

    d_model: Width
    n_layers: Layers
    n_heads: Layers
    n_kv_heads: Layers | None = None
    d_head: Width | None = None
    d_ff: Width | None = None
    position: Position = field(default_factory=Learned)
    norm: Norm = "layer"
    norm_eps: Epsilon = 1e-5
    norm_bias: bool = True
    placement: Placement = "pre"
    activation: Activation = "gelu"
    gated: bool = False
    final_norm: bool | None = None
    parallel: bool = False
    bias: bool | Biases = True
    qk_norm: bool = False
    dropout: Dropout = field(default_factory=Dropout)

    @property
    def head_width(self) -> int:
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def biases(self) -> Biases:
        """Of each kind of linear layer."""
        value = self.bias
        return value if isinstance(value, Biases) else Biases(qkv=value, out=value, feedforward=value)

    @property
    def has_final_norm(self) -> bool:
        return self.placement != "post" if self.final_norm is None else self.final_norm

    @property
    def inner_width(self) -> int:
        """Of the feed-forward network."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff


@spec
class ModelSpec:
    """What all families have.

    Args:
        vocab_size: token ids; 0 in a recipe, where the tokenizer says it.
        max_len: the context: the most tokens it can look at, on each side.
        pad_vocab_to: rows of the embedding are rounded up to a multiple of this; the extra ids get no logits.
        tie_embeddings: one matrix embeds tokens and scores them (Press and Wolf 2017).
        scale_embedding: token embeddings times sqrt(d_model) (Vaswani et al. 2017, 3.4).
        embedding_norm: a norm on the sum of token, position and segment, before the first block.
        logit_softcap: logits become c * tanh(logits / c) (Gemma 2).
    """

    vocab_size: VocabularySize = 0
    max_len: Context = 256
    pad_vocab_to: Annotated[int, Interval(ge=1, le=1 << 16)] = 1
    tie_embeddings: bool = True
    scale_embedding: bool = False
    embedding_norm: bool = False
    logit_softcap: Annotated[float, Interval(gt=0, le=10**6)] | None = None
    init: Init = field(default_factory=Normal)


@spec
class DecoderOnlySpec(ModelSpec):
    """A language model that reads from left to right (GPT).

    Args:
        logit_bias: a number for each token, added to its score.
    """

    family: Literal["decoder-only"] = "decoder-only"
    logit_bias: bool = False
    stack: StackSpec


@spec
class EncoderDecoderSpec(ModelSpec):
    """A translator: an encoder reads the source, a decoder writes the target and looks across (Vaswani et al. 2017).

    Args:
        source_vocab_size: the source's own vocabulary; None where both sides share one.
        share_embeddings: one embedding for source and target, which needs a shared vocabulary; with tie_embeddings one
            matrix serves in all three places.
        logit_bias: a number for each token, added to its score (Marian).
    """

    family: Literal["encoder-decoder"] = "encoder-decoder"
    source_vocab_size: VocabularySize | None = None
    share_embeddings: bool = True
    logit_bias: bool = False
    encoder: StackSpec
    decoder: StackSpec

    def __post_init__(self) -> None:
        if self.encoder.d_model != self.decoder.d_model:
            raise ValueError(
                f"the decoder looks at the encoder's output, so their widths must be equal: "
                f"encoder.d_model={self.encoder.d_model}, decoder.d_model={self.decoder.d_model}"
            )
        if self.share_embeddings and self.source_vocab_size is not None:
            raise ValueError("share_embeddings needs one vocabulary for both sides; set it to false, or join them")


@spec
class MaskedHead:
    """What scores the words at masked places.

    Args:
        transform: a dense layer, the stack's activation and a norm, before the unembedding (BERT).
        bias: a number for each token, added to its score.
    """

    transform: bool = False
    bias: bool = False


@spec
class Classifier:
    """A score for each label; or of a number, the one score that it is.

    Args:
        labels: their names, in the order of the scores; none in a recipe, where the data know them. A number has one,
            its own name.
        over: whether a text has a label, or each of its tokens.
        problem_type: one of the labels, any number of them, each by itself, or a number.
        target_mean, target_std: of the numbers that were learnt: the score is how many standard deviations above the
            mean, so that whatever their unit the loss of a constant answer is 1.
        pooling: what stands for a text: the mean of its hidden states, the first one, or BERT's pooler of the first.
        dropout: on what the scores are made from.
    """

    labels: tuple[str, ...] = ()
    over: Literal["texts", "tokens"] = "texts"
    problem_type: ProblemType = "single_label_classification"
    target_mean: TargetMean = 0.0
    target_std: TargetDeviation = 1.0
    pooling: Pooling | Literal["pooler"] = "mean"
    dropout: ShareBelowOne = 0.1

    def __post_init__(self) -> None:
        duplicates = [label for label, count in Counter(self.labels).items() if count > 1]
        if duplicates:
            raise ValueError(f"label {min(duplicates)!r} stands in labels twice")
        check_problem_type(self.problem_type, self.over)
        if self.problem_type != "regression" and (self.target_mean, self.target_std) != (0, 1):
            raise ValueError("target_mean and target_std are of numbers: set problem_type to regression")
        if self.problem_type == "regression" and len(self.labels) > 1:
            raise ValueError(f"problem_type=regression gives one number, and labels names {len(self.labels)}")


@spec
class EncoderOnlySpec(ModelSpec):
    """An encoder: it reads a whole text, each token seeing all others (BERT).

    Args:
        n_segments: parts that a text may have, each with a vector added to its tokens (BERT's token types); 0 for none.
        masked_head: None where it does not score words.
        pooler: BERT's, which next_sentence and a classifier may read.
        pooler_activation: what it ends with; DistilBERT's is a ReLU.
        next_sentence: says whether the second segment follows the first.
    """

    family: Literal["encoder-only"] = "encoder-only"
    stack: StackSpec
    n_segments: Annotated[int, Interval(ge=0, le=1024)] = 0
    masked_head: MaskedHead | None = field(default_factory=MaskedHead)
    pooler: bool = False
    pooler_activation: PoolerActivation = "tanh"
    next_sentence: bool = False
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        uses_pooler = (
            self.classifier is not None and self.classifier.over == "texts" and self.classifier.pooling == "pooler"
        )
        if not self.pooler and (self.next_sentence or uses_pooler):
            reader = "next_sentence" if self.next_sentence else 'a classifier with pooling="pooler"'
            raise ValueError(f"{reader} reads the pooler; set pooler to true")


AnySpec = DecoderOnlySpec | EncoderDecoderSpec | EncoderOnlySpec


def stack_specs(spec: AnySpec) -> tuple[StackSpec, ...]:
    """Of every stack of blocks: a decoder's, an encoder's, or both."""
    return (spec.encoder, spec.decoder) if isinstance(spec, EncoderDecoderSpec) else (spec.stack,)


SPECS: dict[str, type[AnySpec]] = {
    "decoder-only": DecoderOnlySpec,
    "encoder-decoder": EncoderDecoderSpec,
    "encoder-only": EncoderOnlySpec,
}

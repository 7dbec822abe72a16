"""Specs of models: frozen, comparable settings that are stored in `config.json`.

A setting without a value is null in a recipe and None in Python.
"""

import math
from collections import Counter
from dataclasses import field
from typing import Annotated, Literal

from tercet.nn.specs import (
    Activation,
    CustomAttention,
    CustomFeedForward,
    Init,
    Learned,
    Norm,
    Normal,
    Parallel,
    Placement,
    PoolerActivation,
    Position,
    QKNorm,
    Rotary,
    Window,
)
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

Softcap = Annotated[float, Interval(gt=0, le=10**6)]


@spec
class BranchDropout:
    """Dropout rate of each branch.

    Args:
        attention: Rate of the output of self- and cross-attention.
        feedforward: Rate of the output of the feed-forward network.
    """

    attention: ShareBelowOne
    feedforward: ShareBelowOne


@spec
class Dropout:
    """Dropout rates in four places. A rate is the share of numbers that are set to zero in training.

    Args:
        embedding: Rate of the sum of token and position embedding.
        attention: Rate of the attention weights.
        activation: Rate of the activations of the feed-forward network.
        residual: Rate of the output of attention and of the feed-forward network, before it is added to the residual
            stream; one number, or one for each of the two.
    """

    embedding: ShareBelowOne = 0.0
    attention: ShareBelowOne = 0.0
    activation: ShareBelowOne = 0.0
    residual: ShareBelowOne | BranchDropout = 0.0

    @property
    def branches(self) -> BranchDropout:
        """Dropout rate of each branch, also if `residual` is a single number."""
        value = self.residual
        return value if isinstance(value, BranchDropout) else BranchDropout(attention=value, feedforward=value)


@spec
class Biases:
    """Biases of the linear layers of a block, by kind of layer.

    Args:
        qkv: If True, the projections of queries, keys and values have biases.
        out: If True, the output projection of attention has a bias.
        feedforward: If True, the layers of the feed-forward network have biases.
    """

    qkv: bool
    out: bool
    feedforward: bool


@spec
class StackSpec:
    """A stack of identical blocks, which is the body of every model.

    Args:
        d_model: Width of the residual stream.
        n_layers: Number of blocks.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads, which must divide n_heads (default: n_heads). Fewer than n_heads is
            grouped-query attention, 1 is multi-query attention.
        d_head: Width of a head (default: d_model / n_heads).
        d_ff: Width of the hidden layer of the feed-forward network (default: 4 d_model; with a gate the smallest
            multiple of 8 that is at least 8/3 d_model, so that three matrices have about as many weights as two with
            4 d_model; Shazeer 2020).
        position: Position scheme.
        window: Sliding window of self-attention; None if all layers attend to all tokens.
        norm: Kind of norm: `layer`, `layer_std` (divides by the standard deviation plus epsilon), `rms`, or a norm of
            another package.
        norm_eps: Epsilon of the norms. Norms of queries and keys have 1e-6 instead.
        norm_bias: If True, norms have a bias; must be False with norm `rms`.
        placement: Placement of the norms in a block: `pre`, `post`, `sandwich` or `branch`; see `nn/residual.py`.
        activation: Activation function of the feed-forward network, or one of another package.
        gated: If True, a third matrix gates the feed-forward network (with activation `silu`: SwiGLU).
        feedforward: Feed-forward network of another package; None for Tercet's. It gets the settings of Tercet's.
        attention: Attention of another package; None for Tercet's. It gets the settings of Tercet's.
        first_norm: If False, the first block has no norm before self-attention, because the embeddings are already
            normalized (Warner et al., "ModernBERT", 2024). Requires placement `pre` or `sandwich`.
        final_norm: If True, a norm follows the last block (default: True unless the placement is `post`).
        parallel: If True, attention and the feed-forward network read the same input, and their outputs are added
            together (GPT-J, PaLM). With `separate_norms`, each has its own norm before it, if the placement has one
            (GPT-NeoX).
        bias: True if all linear layers have biases, False if none has, or one value for each kind of layer.
        qk_norm: If True, apply an RMS norm to the queries and keys of each head; with `all_heads`, to those of all
            heads together (OLMo 2).
        attention_softcap: Bound c of the attention scores, which become c * tanh(scores / c) before biases and mask
            (Gemma 2); None for no bound. Attention is then slower, because no fused implementation supports it.
        dropout: Dropout rates.
    """

    d_model: Width
    n_layers: Layers
    n_heads: Layers
    n_kv_heads: Layers | None = None
    d_head: Width | None = None
    d_ff: Width | None = None
    position: Position = field(default_factory=Learned)
    window: Window | None = None
    norm: Norm = "layer"
    norm_eps: Epsilon = 1e-5
    norm_bias: bool = True
    placement: Placement = "pre"
    activation: Activation = "gelu"
    gated: bool = False
    feedforward: CustomFeedForward | None = None
    attention: CustomAttention | None = None
    first_norm: bool = True
    final_norm: bool | None = None
    parallel: Parallel = False
    bias: bool | Biases = True
    qk_norm: QKNorm = False
    attention_softcap: Softcap | None = None
    dropout: Dropout = field(default_factory=Dropout)

    def __post_init__(self) -> None:
        skipped = self.position.skip_layers if isinstance(self.position, Rotary) else ()
        for key, layers in (
            ("window.global_layers", () if self.window is None else self.window.global_layers),
            ("position.skip_layers", skipped),
        ):
            if layers and max(layers) >= self.n_layers:
                raise ValueError(f"{key} has {max(layers)}, but the last layer is {self.n_layers - 1}")
        if isinstance(self.position, Rotary) and self.position.local_base is not None and self.window is None:
            raise ValueError("position.local_base is the base in layers with a window; set window too")
        if not self.first_norm and self.placement not in ("pre", "sandwich"):
            raise ValueError(f"placement={self.placement} has no norm before self-attention; set first_norm to true")

    @property
    def is_local(self) -> list[bool]:
        """Whether each layer has a window."""
        window = self.window
        return [window is not None and layer not in window.global_layers for layer in range(self.n_layers)]

    @property
    def head_width(self) -> int:
        """Width of a head, also if `d_head` is None."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads, also if `n_kv_heads` is None."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def biases(self) -> Biases:
        """Biases of each kind of linear layer, also if `bias` is a single value."""
        value = self.bias
        return value if isinstance(value, Biases) else Biases(qkv=value, out=value, feedforward=value)

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block, also if `final_norm` is None."""
        return self.placement != "post" if self.final_norm is None else self.final_norm

    @property
    def inner_width(self) -> int:
        """Width of the hidden layer of the feed-forward network, also if `d_ff` is None."""
        if self.d_ff is not None:
            return self.d_ff
        return 8 * math.ceil(self.d_model / 3) if self.gated else 4 * self.d_model


@spec
class ModelSpec:
    """Settings that all model families have.

    Args:
        vocab_size: Number of token ids. 0 in a recipe stands for the size of the tokenizer's vocabulary.
        max_len: Context length, which is the maximum number of tokens of a sequence. In a translation model it applies
            to source and target separately.
        pad_vocab_to: The number of rows of the embedding is rounded up to a multiple of this. Padding ids get no
            logits.
        tie_embeddings: If True, embedding and unembedding share one matrix (Press and Wolf 2017).
        scale_embedding: If True, multiply token embeddings by sqrt(d_model) (Vaswani et al. 2017, 3.4).
        embedding_norm: If True, apply a norm to the sum of token, position and segment embedding before the first
            block.
        logit_softcap: Bound c of the logits, which become c * tanh(logits / c) (Gemma 2); None for no bound.
        init: Initialization of the weights.
    """

    vocab_size: VocabularySize = 0
    max_len: Context = 256
    pad_vocab_to: Annotated[int, Interval(ge=1, le=1 << 16)] = 1
    tie_embeddings: bool = True
    scale_embedding: bool = False
    embedding_norm: bool = False
    logit_softcap: Softcap | None = None
    init: Init = field(default_factory=Normal)


@spec
class DecoderOnlySpec(ModelSpec):
    """A decoder-only language model (GPT).

    Args:
        logit_bias: If True, add a bias per token to the logits.
        stack: Blocks of the model.
    """

    family: Literal["decoder-only"] = "decoder-only"
    logit_bias: bool = False
    stack: StackSpec


@spec
class EncoderDecoderSpec(ModelSpec):
    """An encoder-decoder translation model (Vaswani et al. 2017).

    Args:
        source_vocab_size: Size of the source vocabulary; None if source and target share a vocabulary.
        share_embeddings: If True, source and target share one embedding, which requires a shared vocabulary. With
            tie_embeddings, one matrix is used in all three places.
        logit_bias: If True, add a bias per token to the logits (Marian).
        encoder: Blocks of the encoder.
        decoder: Blocks of the decoder, which may differ from the encoder's except for `d_model`.
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
                f"encoder and decoder must have the same width for cross-attention: "
                f"encoder.d_model={self.encoder.d_model}, decoder.d_model={self.decoder.d_model}"
            )
        if self.share_embeddings and self.source_vocab_size is not None:
            raise ValueError(
                "share_embeddings requires one vocabulary for both sides; set it to false, or use a joint vocabulary"
            )


@spec
class MaskedHead:
    """Head that computes the logits of masked tokens.

    Args:
        transform: If True, a dense layer, the stack's activation and a norm precede the unembedding (BERT).
        bias: If True, add a bias per token to the logits.
    """

    transform: bool = False
    bias: bool = False


@spec
class Classifier:
    """A classification or regression head.

    Args:
        labels: Names of the labels in the order of the scores; empty in a recipe, which takes them from the data. A
            regression model has one name, that of its number.
        over: `texts` if each text has a label, `tokens` if each token has one.
        problem_type: `single_label_classification` (exactly one label), `multi_label_classification` (any number of
            labels, each scored independently) or `regression` (a number).
        target_mean, target_std: Mean and standard deviation of the training targets in regression. The model predicts
            by how many standard deviations a target is above the mean, so that predicting the mean for every text has
            a loss of 1, in any unit of the targets.
        pooling: Representation of a text: `mean` of its hidden states, its `first` hidden state, or `pooler`, which
            applies BERT's pooler to the first hidden state.
        transform: If True, a dense layer, the stack's activation and a norm precede the classifier (ModernBERT). If
            `masked_head` has such a transform too, both heads share it.
        dropout: Dropout rate of the input of the classifier.
    """

    labels: tuple[str, ...] = ()
    over: Literal["texts", "tokens"] = "texts"
    problem_type: ProblemType = "single_label_classification"
    target_mean: TargetMean = 0.0
    target_std: TargetDeviation = 1.0
    pooling: Literal["mean", "first", "pooler"] = "mean"
    transform: bool = False
    dropout: ShareBelowOne = 0.1

    def __post_init__(self) -> None:
        duplicates = [label for label, count in Counter(self.labels).items() if count > 1]
        if duplicates:
            raise ValueError(f"duplicate label in labels: {min(duplicates)!r}")
        check_problem_type(self.problem_type, self.over)
        if self.problem_type != "regression" and (self.target_mean, self.target_std) != (0, 1):
            raise ValueError("target_mean and target_std require problem_type=regression")
        if self.problem_type == "regression" and len(self.labels) > 1:
            raise ValueError(f"problem_type=regression has one output, but labels has {len(self.labels)} names")


@spec
class EncoderOnlySpec(ModelSpec):
    """An encoder-only model, in which each token attends to all tokens (BERT).

    Args:
        stack: Blocks of the model.
        n_segments: Number of segment embeddings (BERT's token types). That of its segment is added to each token; 0 for
            a model without segments.
        masked_head: Head for masked tokens; None for none.
        pooler: If True, the model has BERT's pooler, which next_sentence and a classifier can use.
        pooler_activation: Activation of the pooler; DistilBERT uses a ReLU.
        next_sentence: If True, a head predicts whether the second segment follows the first.
        classifier: Classifier head; None for none.
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
            raise ValueError(f"{reader} requires the pooler; set pooler to true")

    @property
    def has_transform(self) -> bool:
        """Whether a head has a dense layer, an activation and a norm before its last layer."""
        return any(head is not None and head.transform for head in (self.masked_head, self.classifier))


AnySpec = DecoderOnlySpec | EncoderDecoderSpec | EncoderOnlySpec


def stack_specs(spec: AnySpec) -> tuple[StackSpec, ...]:
    """Return the specs of all stacks: one, or those of the encoder and the decoder in this order."""
    return (spec.encoder, spec.decoder) if isinstance(spec, EncoderDecoderSpec) else (spec.stack,)


SPECS: dict[str, type[AnySpec]] = {
    "decoder-only": DecoderOnlySpec,
    "encoder-decoder": EncoderDecoderSpec,
    "encoder-only": EncoderOnlySpec,
}

"""Import and export of DistilBERT models of the `transformers` library.

DistilBERT (Sanh et al. 2019) is a BERT without segments. Its pooler has a ReLU instead of tanh. Its norms have an
epsilon of 1e-12, which is not in the config, and there is no dropout after attention.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tercet.checkpoint.foreign.config_keys import (
    ACTIVATION_NAMES,
    raise_config_errors,
    read_activation,
    read_bool,
    read_model_type,
    read_value,
    with_ids,
)
from tercet.checkpoint.foreign.features import (
    FIXED_POSITIONS,
    Feature,
    Support,
    features_of_classifier,
    features_of_heads,
    features_of_stack,
    features_of_vocabulary,
    rewrite_model,
)
from tercet.checkpoint.foreign.label_names import read_labels, read_problem_type, write_labels
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain
from tercet.models import BranchDropout, Classifier, Dropout, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.models.target_scale import remove_target_scale
from tercet.nn import Learned

KIND = "DistilBERT"
EPSILON = 1e-12
NAMES = {
    "embedding": "embeddings.word_embeddings",
    "stack.position.table": "embeddings.position_embeddings",
    "stack.embedding_norm": "embeddings.LayerNorm",
    "stack.blocks.N.self_attention.query": "transformer.layer.N.attention.q_lin",
    "stack.blocks.N.self_attention.key": "transformer.layer.N.attention.k_lin",
    "stack.blocks.N.self_attention.value": "transformer.layer.N.attention.v_lin",
    "stack.blocks.N.self_attention.out": "transformer.layer.N.attention.out_lin",
    "stack.blocks.N.self_residual.after": "transformer.layer.N.sa_layer_norm",
    "stack.blocks.N.feedforward.up": "transformer.layer.N.ffn.lin1",
    "stack.blocks.N.feedforward.down": "transformer.layer.N.ffn.lin2",
    "stack.blocks.N.feedforward_residual.after": "transformer.layer.N.output_layer_norm",
    "transform.dense": "vocab_transform",
    "transform.norm": "vocab_layer_norm",
    "unembedding": "vocab_projector",
    "pooler.dense": "pre_classifier",
    "classifier": "classifier",
}
HEADS = ("vocab_", "pre_classifier.", "classifier.")  # prefixes of the names of the heads' tensors
LABELS, TIED = "classifier.weight", ("vocab_projector.weight", "embeddings.word_embeddings.weight")


def from_distilbert(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderOnly:
    """Build the equivalent of a DistilBertModel, DistilBertForMaskedLM or DistilBERT classifier, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or belong to another model.
    """
    tensors, spec = _foreign_names(state), distilbert_spec(config, state, n_ids=n_ids)
    tied = None if spec.masked_head is None else TIED
    return build_model(EncoderOnly, spec, tensors, distilbert_source, kind=KIND, tied=tied)


def distilbert_spec(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None
) -> EncoderOnlySpec:
    """Return the spec of the model that `from_distilbert` would build, from config and the tensors' names and shapes.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(KIND):
        return with_ids(_spec(config, _foreign_names(state)), n_ids)


def is_distilbert(spec: EncoderOnlySpec) -> bool:
    """Return whether a model is exported as a DistilBERT instead of a BERT.

    This is the case if its pooler has a ReLU, or if it has no pooler, no segments, and norms with an epsilon of 1e-12.
    """
    if spec.pooler:
        return spec.pooler_activation == "relu"
    return spec.n_segments == 0 and spec.stack.norm_eps == EPSILON


def distilbert_support(spec: EncoderOnlySpec) -> Support:
    """Return the features of a model with the values that `to_distilbert` supports."""
    stack = spec.stack
    return Support(
        f"{KIND} of transformers",
        [
            *features_of_stack("stack", stack, placement="post", positions=FIXED_POSITIONS, gated=False),
            *features_of_heads("stack", stack),
            ("stack.norm_eps", stack.norm_eps, [EPSILON]),
            ("n_segments", spec.n_segments, [0]),
            *features_of_vocabulary(
                spec, embedding_norm=True, tied=spec.masked_head is not None and spec.tie_embeddings
            ),
            *_features_of_heads_on_top(spec),
        ],
    )


def to_distilbert(model: EncoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of the DistilBERT class with the model's heads; the inverse of `from_distilbert`.

    Raises:
        UserError: If DistilBERT does not support a feature of the model; the feature is named.
    """
    model = remove_target_scale(model)
    spec, stack = model.spec, model.spec.stack
    masked = spec.masked_head is not None
    distilbert_support(spec).check()
    export_spec = replace(
        spec,
        pad_vocab_to=1,
        scale_embedding=False,
        masked_head=MaskedHead(transform=True, bias=True) if masked else None,
        stack=replace(stack, position=Learned(), bias=True, norm_bias=True),
    )
    equivalent = rewrite_model(model, export_spec)
    config = _config(equivalent.spec)
    prefix = "" if config["architectures"] == ["DistilBertModel"] else "distilbert."
    return config, export_state(own_tensors(equivalent), distilbert_source, prefix=prefix, unprefixed=HEADS)


def _features_of_heads_on_top(spec: EncoderOnlySpec) -> list[Feature]:
    head = spec.classifier
    texts = head is not None and head.over == "texts"
    return [
        *([] if spec.masked_head is None else [("masked_head.transform", spec.masked_head.transform, [True])]),
        ("next_sentence", spec.next_sentence, [False]),
        *features_of_classifier(spec),
        *([("classifier.pooling", head.pooling, ["pooler"])] if head is not None and texts else []),
        *([] if texts else [("pooler", spec.pooler, [False])]),
    ]


def _architecture(spec: EncoderOnlySpec) -> str:
    if spec.classifier is None:
        return "DistilBertModel" if spec.masked_head is None else "DistilBertForMaskedLM"
    over = {"texts": "Sequence", "tokens": "Token"}[spec.classifier.over]
    return f"DistilBertFor{over}Classification"


def _config(spec: EncoderOnlySpec) -> Plain:
    stack, classifier = spec.stack, spec.classifier
    config: Plain = {
        "architectures": [_architecture(spec)],
        "model_type": "distilbert",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "sinusoidal_pos_embds": False,
        "dim": stack.d_model,
        "n_layers": stack.n_layers,
        "n_heads": stack.n_heads,
        "hidden_dim": stack.inner_width,
        "activation": ACTIVATION_NAMES[stack.activation],
        "dropout": stack.dropout.branches.feedforward,
        "attention_dropout": stack.dropout.attention,
        "tie_word_embeddings": spec.tie_embeddings,
    }
    return (
        config
        if classifier is None
        else config | write_labels(classifier) | {"seq_classif_dropout": classifier.dropout}
    )


def _spec(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EncoderOnlySpec:
    read_model_type(config, "distilbert")
    rate = read_value(config, "dropout", float)
    texts = "pre_classifier.weight" in state
    classifier = None
    if LABELS in state:
        over = "texts" if texts else "tokens"
        classifier = Classifier(
            labels=read_labels(config, len(state[LABELS])),
            over=over,
            problem_type=read_problem_type(config, len(state[LABELS]), over),
            pooling="pooler" if texts else "mean",
            dropout=read_value(config, "seq_classif_dropout", float, 0.2) if texts else rate,
        )
    return EncoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int),
        embedding_norm=True,
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        masked_head=MaskedHead(transform=True, bias=True) if any(name.startswith("vocab_") for name in state) else None,
        pooler=texts,
        pooler_activation="relu" if texts else "tanh",
        classifier=classifier,
        stack=StackSpec(
            d_model=read_value(config, "dim", int),
            n_layers=read_value(config, "n_layers", int),
            n_heads=read_value(config, "n_heads", int),
            d_ff=read_value(config, "hidden_dim", int),
            position=Learned(),
            norm_eps=EPSILON,
            placement="post",
            activation=read_activation(config, "activation"),
            dropout=Dropout(
                embedding=rate,
                attention=read_value(config, "attention_dropout", float),
                residual=BranchDropout(attention=0.0, feedforward=rate),
            ),
        ),
    )


def _foreign_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    positions = "embeddings.position_ids"  # 0, 1, 2 ...
    return strip_names(state, prefix="distilbert.", no_weight=lambda name: name == positions)


def distilbert_source(native_name: str) -> Source:
    """Return the tensor of a DistilBERT in `transformers` that corresponds to the tensor `native_name` of Tercet."""
    return Source(name=foreign_name(native_name, NAMES))

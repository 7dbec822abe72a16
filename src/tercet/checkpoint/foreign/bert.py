"""Import and export of BERT models of the `transformers` library.

The names of the weights determine the heads: masked words, next sentences, the pooler, and a classifier over texts
(which reads the pooler) or over tokens (in models without a pooler). Old files in which the weight and bias of a norm
are named gamma and beta, or the prefix `bert.` is missing, are supported. Unknown names are rejected.
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
from tercet.checkpoint.foreign.state_dict import (
    Source,
    build_model,
    export_state,
    foreign_name,
    merge_tied,
    strip_names,
)
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.models import Classifier, Dropout, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.models.target_scale import remove_target_scale
from tercet.nn import Learned

KIND = "BERT"
NAMES = {
    "embedding": "embeddings.word_embeddings",
    "segment_embedding": "embeddings.token_type_embeddings",
    "stack.position.table": "embeddings.position_embeddings",
    "stack.embedding_norm": "embeddings.LayerNorm",
    "stack.blocks.N.self_attention.query": "encoder.layer.N.attention.self.query",
    "stack.blocks.N.self_attention.key": "encoder.layer.N.attention.self.key",
    "stack.blocks.N.self_attention.value": "encoder.layer.N.attention.self.value",
    "stack.blocks.N.self_attention.out": "encoder.layer.N.attention.output.dense",
    "stack.blocks.N.self_residual.after": "encoder.layer.N.attention.output.LayerNorm",
    "stack.blocks.N.feedforward.up": "encoder.layer.N.intermediate.dense",
    "stack.blocks.N.feedforward.down": "encoder.layer.N.output.dense",
    "stack.blocks.N.feedforward_residual.after": "encoder.layer.N.output.LayerNorm",
    "transform.dense": "cls.predictions.transform.dense",
    "transform.norm": "cls.predictions.transform.LayerNorm",
    "unembedding": "cls.predictions.decoder",
    "pooler.dense": "pooler.dense",
    "next_sentence": "cls.seq_relationship",
    "classifier": "classifier",
}
LABELS = "classifier.weight"
BIAS, DECODER = "cls.predictions.bias", "cls.predictions.decoder"


def from_bert(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderOnly:
    """Build the equivalent of a BertModel, BertForPreTraining, BertForMaskedLM or BERT classifier, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or belong to another model.
    """
    tensors, spec = _foreign_names(state), bert_spec(config, state, n_ids=n_ids)
    tied = merge_decoder(tensors, spec, decoder=DECODER, bias=BIAS, kind=KIND)
    return build_model(EncoderOnly, spec, tensors, bert_source, kind=KIND, tied=tied)


def bert_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderOnlySpec:
    """Return the spec of the model that `from_bert` would build, from the config and the tensors' names and shapes.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(KIND):
        return with_ids(_spec(config, _foreign_names(state)), n_ids)


def bert_support(spec: EncoderOnlySpec) -> Support:
    """Return the features of a model with the values that `to_bert` supports."""
    return Support(
        f"{KIND} of transformers",
        [
            *features_of_stack("stack", spec.stack, placement="post", positions=FIXED_POSITIONS, gated=False),
            *features_of_heads("stack", spec.stack),
            *features_of_vocabulary(
                spec, embedding_norm=True, tied=spec.masked_head is not None and spec.tie_embeddings
            ),
            *_features_of_heads_on_top(spec),
        ],
    )


def to_bert(model: EncoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of the BERT class that has the model's heads; the inverse of `from_bert`.

    Raises:
        UserError: If BERT does not support a feature of the model; the feature is named.
    """
    model = remove_target_scale(model)
    spec, stack = model.spec, model.spec.stack
    masked = spec.masked_head is not None
    bert_support(spec).check()
    export_spec = replace(
        spec,
        pad_vocab_to=1,
        scale_embedding=False,
        n_segments=max(1, spec.n_segments),
        masked_head=MaskedHead(transform=True, bias=True) if masked else None,
        stack=replace(stack, position=Learned(), bias=True, norm_bias=True),
    )
    equivalent = rewrite_model(model, export_spec)
    config = _config(equivalent.spec)
    prefix = "" if config["architectures"] == ["BertModel"] else "bert."
    state = export_state(own_tensors(equivalent), bert_source, prefix=prefix, unprefixed=("cls.", "classifier."))
    if masked and not spec.tie_embeddings:
        state[f"{DECODER}.bias"] = state[BIAS].clone()  # `transformers` uses this one if the matrices are not tied
    return config, state


def _features_of_heads_on_top(spec: EncoderOnlySpec) -> list[Feature]:
    features = features_of_classifier(spec)
    if spec.masked_head is not None:
        features.append(("masked_head.transform", spec.masked_head.transform, [True]))
    if spec.classifier is not None:
        tokens = spec.classifier.over == "tokens"
        features.append(
            ("pooler", spec.pooler, [False]) if tokens else ("classifier.pooling", spec.classifier.pooling, ["pooler"])
        )
    return [*features, *([("pooler_activation", spec.pooler_activation, ["tanh"])] if spec.pooler else [])]


def _architecture(spec: EncoderOnlySpec) -> str:
    if spec.classifier is not None:
        return "BertForSequenceClassification" if spec.classifier.over == "texts" else "BertForTokenClassification"
    if spec.masked_head is not None:
        return "BertForPreTraining" if spec.next_sentence else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if spec.next_sentence else "BertModel"


def _config(spec: EncoderOnlySpec) -> Plain:
    stack, classifier = spec.stack, spec.classifier
    config: Plain = {
        "architectures": [_architecture(spec)],
        "model_type": "bert",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "position_embedding_type": "absolute",
        "type_vocab_size": spec.n_segments,
        "hidden_size": stack.d_model,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "intermediate_size": stack.inner_width,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "layer_norm_eps": stack.norm_eps,
        "hidden_dropout_prob": stack.dropout.branches.feedforward,
        "attention_probs_dropout_prob": stack.dropout.attention,
        "tie_word_embeddings": spec.tie_embeddings,
    }
    if classifier is not None:
        config |= write_labels(classifier) | {"classifier_dropout": classifier.dropout}
    return config


def read_encoder(config: Mapping[str, Any], kind: str) -> StackSpec:
    """Return the spec of the stack in the config of a BERT, or in another config with the same keys.

    Raises:
        UserError: If the model is not an encoder, its positions are not a table, or a value is missing or invalid.
    """
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise UserError(f"position_embedding_type is {positions!r}; Tercet supports {kind} only with 'absolute'")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UserError(f"it is a decoder (is_decoder, add_cross_attention); Tercet supports {kind} only as an encoder")
    hidden_dropout = read_value(config, "hidden_dropout_prob", float)
    return StackSpec(
        d_model=read_value(config, "hidden_size", int),
        n_layers=read_value(config, "num_hidden_layers", int),
        n_heads=read_value(config, "num_attention_heads", int),
        d_ff=read_value(config, "intermediate_size", int),
        position=Learned(),
        norm_eps=read_value(config, "layer_norm_eps", float),
        placement="post",
        activation=read_activation(config, "hidden_act"),
        dropout=Dropout(
            embedding=hidden_dropout,
            attention=read_value(config, "attention_probs_dropout_prob", float),
            residual=hidden_dropout,
        ),
    )


def merge_decoder(
    tensors: dict[str, Tensor], spec: EncoderOnlySpec, *, decoder: str, bias: str, kind: str
) -> tuple[str, str] | None:
    """Merge the two names of the bias of the masked head, of which only `bias` remains in `tensors`.

    Args:
        tensors: Tensors by name, changed in place.
        spec: Spec of the model.
        decoder: Name of the output layer.
        bias: Name of the bias that remains.
        kind: Name of the model, for error messages.

    Returns:
        Names of the output's and the embedding's matrix for `tied` of `build_model`; None if there is no masked head.

    Raises:
        UserError: If the tensors under both names differ although the matrices are tied.
    """
    if spec.masked_head is None:
        return None
    if not spec.tie_embeddings and f"{decoder}.bias" in tensors:
        tensors[bias] = tensors.pop(f"{decoder}.bias")  # `transformers` uses this one if not tied
    merge_tied(tensors, f"{decoder}.bias", bias, kind)
    return f"{decoder}.weight", f"{NAMES['embedding']}.weight"


def read_classifier(config: Mapping[str, Any], weight: Tensor, *, pooler: bool) -> Classifier:
    """Return a classifier over texts, which reads the pooler, or over tokens if there is none.

    Args:
        config: Content of config.json.
        weight: Weight of the classifier (labels, D).
        pooler: If True, the model has a pooler, which the classifier reads.
    """
    dropout_key = "hidden_dropout_prob" if config.get("classifier_dropout") is None else "classifier_dropout"
    over = "texts" if pooler else "tokens"
    return Classifier(
        labels=read_labels(config, len(weight)),
        over=over,
        problem_type=read_problem_type(config, len(weight), over),
        pooling="pooler" if pooler else "mean",
        dropout=read_value(config, dropout_key, float),
    )


def _spec(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EncoderOnlySpec:
    read_model_type(config, "bert")
    masked, pooler = any(name.startswith("cls.predictions.") for name in state), "pooler.dense.weight" in state
    return EncoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int),
        n_segments=read_value(config, "type_vocab_size", int),
        embedding_norm=True,
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        masked_head=MaskedHead(transform=True, bias=True) if masked else None,
        pooler=pooler,
        next_sentence="cls.seq_relationship.weight" in state,
        classifier=read_classifier(config, state[LABELS], pooler=pooler) if LABELS in state else None,
        stack=read_encoder(config, KIND),
    )


def _foreign_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    positions = "embeddings.position_ids"  # 0, 1, 2 ...
    return strip_names(state, prefix="bert.", no_weight=lambda name: name == positions, rename=_new_name)


def _new_name(name: str) -> str:
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        name = f"{name.removesuffix(old)}{new}" if name.endswith(old) else name
    return name


def bert_source(native_name: str) -> Source:
    """Return the tensor of a BERT in `transformers` that corresponds to the tensor `native_name` of Tercet."""
    return Source(name=BIAS if native_name == "unembedding.bias" else foreign_name(native_name, NAMES))

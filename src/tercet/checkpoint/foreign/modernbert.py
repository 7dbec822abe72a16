"""Import and export of ModernBERT models of the `transformers` library.

ModernBERT (Warner et al. 2024) is an encoder with rotary positions and gated feed-forward networks. Its embeddings are
normalized, so the first block has no norm before attention. Most layers have a sliding window and another base of the
rotation. Each class has at most one head: masked words, or a classifier over texts or over tokens, each with a dense
layer, an activation and a norm before its last layer. See `identity_head.py` and `linear_classifier.py` for models
without these layers.

layer_types       kind of each layer, "sliding_attention" or "full_attention"; by default every third layer, from the
                  first on, is a full one (global_attn_every_n_layers in older files)
local_attention   length of the window: tokens attend to those at a distance of at most half of it; sliding_window is
                  half of it
rope_parameters   one mapping for each kind of layer; in older files global_rope_theta and local_rope_theta
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

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
    Feature,
    Support,
    features_of_heads,
    features_of_layers,
    features_of_scaling,
    features_of_stack,
    features_of_vocabulary,
    rewrite_model,
)
from tercet.checkpoint.foreign.identity_head import (
    LINEAR,
    drop_identity_head,
    fill_identity_head,
    supports_identity_head,
)
from tercet.checkpoint.foreign.label_names import read_labels, read_problem_type, write_labels
from tercet.checkpoint.foreign.linear_classifier import (
    features_of_labels,
    read_linear_classifier,
    write_linear_classifier,
)
from tercet.checkpoint.foreign.llama_layers import GLOBAL, LOCAL
from tercet.checkpoint.foreign.rotary_config import read_rotary, write_rotary
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.messages import show
from tercet.models import (
    Biases,
    BranchDropout,
    Classifier,
    Dropout,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.models.target_scale import remove_target_scale
from tercet.nn import Rotary
from tercet.nn.specs import Window
from tercet.spec import Layers, check_range

KIND, CLASS, MODEL_TYPE = "ModernBERT", "ModernBert", "modernbert"
NAMES = {
    "embedding": "embeddings.tok_embeddings",
    "stack.embedding_norm": "embeddings.norm",
    "stack.blocks.N.self_residual.before": "layers.N.attn_norm",
    "stack.blocks.N.self_attention.query": "layers.N.attn.Wqkv",
    "stack.blocks.N.self_attention.key": "layers.N.attn.Wqkv",
    "stack.blocks.N.self_attention.value": "layers.N.attn.Wqkv",
    "stack.blocks.N.self_attention.out": "layers.N.attn.Wo",
    "stack.blocks.N.feedforward_residual.before": "layers.N.mlp_norm",
    "stack.blocks.N.feedforward.gate": "layers.N.mlp.Wi",
    "stack.blocks.N.feedforward.up": "layers.N.mlp.Wi",
    "stack.blocks.N.feedforward.down": "layers.N.mlp.Wo",
    "stack.final_norm": "final_norm",
    "transform.dense": "head.dense",
    "transform.norm": "head.norm",
    "unembedding": "decoder",
    "classifier": "classifier",
}
PARTS = {"query": (0, 3), "key": (1, 3), "value": (2, 3), "gate": (0, 2), "up": (1, 2)}  # place in a joint matrix
PREFIX, HEADS = "model.", ("head.", "decoder.", "classifier.")  # names of the heads' tensors have no prefix
LABELS, TIED = "classifier.weight", ("decoder.weight", "embeddings.tok_embeddings.weight")
CLASSIFIERS: dict[str, Literal["texts", "tokens"]] = {
    f"{CLASS}ForSequenceClassification": "texts",
    f"{CLASS}ForTokenClassification": "tokens",
}
POOLINGS: dict[str, Literal["mean", "first"]] = {"mean": "mean", "cls": "first"}
POOLING_NAMES = {pooling: name for name, pooling in POOLINGS.items()}
# Defaults of transformers.
WINDOW, INTERVAL, BASE, LOCAL_BASE, EPS, ACTIVATION, POOLING = 128, 3, 160_000.0, 10_000.0, 1e-5, "gelu", "cls"


def from_modernbert(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderOnly:
    """Build the equivalent of a ModernBertModel, ModernBertForMaskedLM or ModernBERT classifier, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    spec = modernbert_spec(config, state, n_ids=n_ids)
    tensors = strip_names(state, prefix=PREFIX, no_weight=lambda name: False)
    if spec.masked_head is not None and not spec.masked_head.transform:
        drop_identity_head(tensors)
    if spec.classifier is not None and not spec.classifier.transform:
        tensors = read_linear_classifier(tensors, eps=spec.stack.norm_eps)
    tied = None if spec.masked_head is None else TIED
    return build_model(EncoderOnly, spec, tensors, modernbert_source, kind=KIND, tied=tied)


def modernbert_spec(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None
) -> EncoderOnlySpec:
    """Return the spec of the model that `from_modernbert` would build, from config and the tensors' names and shapes.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(KIND):
        return with_ids(_spec(config, state), n_ids)


def is_modernbert(spec: EncoderOnlySpec) -> bool:
    """Return whether an encoder has the position scheme, placement and kind of norm of ModernBERT."""
    stack = spec.stack
    return isinstance(stack.position, Rotary) and stack.placement != "post" and stack.norm != "rms"


def modernbert_support(spec: EncoderOnlySpec) -> Support:
    """Return the features of a model with the values that `to_modernbert` supports."""
    stack = spec.stack
    tied = spec.masked_head is not None and spec.classifier is None and spec.tie_embeddings
    return Support(
        f"{KIND} of transformers",
        [
            *features_of_stack(
                "stack", stack, placement="pre", positions=["rotary"], gated=True, layers_differ=True, first_norm=False
            ),
            *features_of_layers("stack", stack, window=True, local_base=True),
            *features_of_scaling("stack", stack, []),
            ("stack.position.share", stack.position.share if isinstance(stack.position, Rotary) else 1.0, [1.0]),
            *features_of_heads("stack", stack),
            ("n_segments", spec.n_segments, [0]),
            *features_of_vocabulary(spec, embedding_norm=True, tied=tied),
            *_features_of_heads_on_top(spec),
        ],
    )


def to_modernbert(model: EncoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of the ModernBERT class with the model's head; the inverse of `from_modernbert`.

    If the model has a classifier, its head for masked words is left out.

    Raises:
        UserError: If ModernBERT does not support a feature of the model; the feature is named.
    """
    model = remove_target_scale(model)
    modernbert_support(model.spec).check()
    spec, stack = model.spec, model.spec.stack
    biases = stack.biases
    attention = biases.qkv or biases.out
    head = None if spec.classifier is not None else spec.masked_head
    export_spec = replace(
        spec,
        pad_vocab_to=1,
        scale_embedding=False,
        masked_head=None if head is None else replace(head, transform=True),
        stack=replace(stack, bias=Biases(qkv=attention, out=attention, feedforward=biases.feedforward)),
    )
    equivalent = rewrite_model(model, export_spec)
    config = _config(equivalent.spec)
    if head is not None and not head.transform:
        fill_identity_head(equivalent)
        config["classifier_activation"] = LINEAR
    prefix = "" if config["architectures"] == [f"{CLASS}Model"] else PREFIX
    state = export_state(own_tensors(equivalent), modernbert_source, prefix=prefix, unprefixed=HEADS)
    if spec.classifier is not None and not spec.classifier.transform:
        config |= {"classifier_activation": LINEAR, "classifier_bias": True}
        state = write_linear_classifier(state, f"{prefix}final_norm", eps=stack.norm_eps)
    return config, state


def modernbert_source(native_name: str) -> Source:
    """Return the tensor of a ModernBERT in `transformers` that corresponds to the tensor `native_name` of Tercet."""
    part, parts = PARTS.get(native_name.split(".")[-2], (0, 1))
    return Source(name=foreign_name(native_name, NAMES), part=part, parts=parts)


def _features_of_heads_on_top(spec: EncoderOnlySpec) -> list[Feature]:
    head, classifier = spec.masked_head, spec.classifier
    return [
        *(
            []
            if head is None or classifier is not None or supports_identity_head(spec.stack)
            else [("masked_head.transform", head.transform, [True])]
        ),
        *features_of_labels(spec),
        *(
            [("classifier.pooling", classifier.pooling, list(POOLING_NAMES))]
            if classifier is not None and classifier.over == "texts"
            else []
        ),
        ("pooler", spec.pooler, [False]),
        ("next_sentence", spec.next_sentence, [False]),
    ]


def _architecture(spec: EncoderOnlySpec) -> str:
    if spec.classifier is not None:
        return next(name for name, over in CLASSIFIERS.items() if over == spec.classifier.over)
    return f"{CLASS}Model" if spec.masked_head is None else f"{CLASS}ForMaskedLM"


def _config(spec: EncoderOnlySpec) -> Plain:
    stack, classifier, position = spec.stack, spec.classifier, spec.stack.position
    assert isinstance(position, Rotary)
    rope = write_rotary(position, by_kind=True)["rope_parameters"]
    config: Plain = {
        "architectures": [_architecture(spec)],
        "model_type": MODEL_TYPE,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "tie_word_embeddings": spec.tie_embeddings,
        "hidden_size": stack.d_model,
        "intermediate_size": stack.inner_width,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "hidden_activation": ACTIVATION_NAMES[stack.activation],
        "norm_eps": stack.norm_eps,
        "norm_bias": stack.norm_bias,
        "attention_bias": stack.biases.qkv,
        "mlp_bias": stack.biases.feedforward,
        "layer_types": [LOCAL if is_local else GLOBAL for is_local in stack.is_local],
        "local_attention": WINDOW if stack.window is None else stack.window.size,
        "rope_parameters": rope,
        "global_rope_theta": rope[GLOBAL]["rope_theta"],  # read by older versions, as is local_rope_theta
        "local_rope_theta": rope[LOCAL]["rope_theta"],
        "embedding_dropout": stack.dropout.embedding,
        "attention_dropout": stack.dropout.attention,
        "mlp_dropout": stack.dropout.activation,
        "classifier_activation": ACTIVATION_NAMES[stack.activation],
        "classifier_bias": stack.biases.feedforward,
        "decoder_bias": spec.masked_head is not None and spec.masked_head.bias,
        "cls_token_id": None,  # the defaults of transformers are ids of another vocabulary
        "sep_token_id": None,
    }
    if classifier is not None:
        config |= write_labels(classifier) | {"classifier_dropout": classifier.dropout}
        if classifier.over == "texts":
            config["classifier_pooling"] = POOLING_NAMES[classifier.pooling]
    return config


def _spec(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EncoderOnlySpec:
    read_model_type(config, MODEL_TYPE)
    stack, classifier = _stack(config), _read_classifier(config, state) if LABELS in state else None
    has_head = "head.dense.weight" in state
    masked = has_head and classifier is None
    is_linear = config.get("classifier_activation") == LINEAR
    passes_on = masked and is_linear and supports_identity_head(stack)
    if has_head and not passes_on and (classifier is None or classifier.transform):
        _check_transform(config, stack)
    bias = read_bool(config, "decoder_bias", True)
    return EncoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int),
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        embedding_norm=True,
        masked_head=MaskedHead(transform=not passes_on, bias=bias) if masked else None,
        classifier=classifier,
        stack=stack,
    )


def _stack(config: Mapping[str, Any]) -> StackSpec:
    is_local = _read_layers(config)
    attention_dropout = read_value(config, "attention_dropout", float, 0.0)
    bias = read_bool(config, "attention_bias", False)
    size = read_value(config, "local_attention", int, WINDOW)
    window = Window(
        size=2 * read_value(config, "sliding_window", int, 1) if config.get("sliding_window") is not None else size,
        global_layers=tuple(layer for layer, has_window in enumerate(is_local) if not has_window),
    )
    return StackSpec(
        d_model=read_value(config, "hidden_size", int),
        n_layers=len(is_local),
        n_heads=read_value(config, "num_attention_heads", int),
        d_head=None if config.get("head_dim") is None else read_value(config, "head_dim", int),
        d_ff=read_value(config, "intermediate_size", int),
        position=_read_positions(config, is_local),
        window=window if any(is_local) else None,
        norm_eps=read_value(config, "norm_eps", float, EPS),
        norm_bias=read_bool(config, "norm_bias", False),
        activation=read_activation({"hidden_activation": ACTIVATION, **config}, "hidden_activation"),
        gated=True,
        first_norm=False,
        bias=Biases(qkv=bias, out=bias, feedforward=read_bool(config, "mlp_bias", False)),
        dropout=Dropout(
            embedding=read_value(config, "embedding_dropout", float, 0.0),
            attention=attention_dropout,
            activation=read_value(config, "mlp_dropout", float, 0.0),
            residual=BranchDropout(attention=attention_dropout, feedforward=0.0),
        ),
    )


def _read_layers(config: Mapping[str, Any]) -> list[bool]:
    """Return whether each layer has a window."""
    n_layers, kinds = read_value(config, "num_hidden_layers", int), config.get("layer_types")
    check_range("num_hidden_layers", n_layers, Layers)  # before lists of this length are made
    if kinds is None:
        if (interval := read_value(config, "global_attn_every_n_layers", int, INTERVAL)) < 1:
            raise UserError(f"global_attn_every_n_layers is {interval}; it must be at least 1")
        return [layer % interval != 0 for layer in range(n_layers)]
    if not isinstance(kinds, list) or len(kinds) != n_layers or any(kind not in (LOCAL, GLOBAL) for kind in kinds):
        raise UserError(f"layer_types must contain {LOCAL!r} or {GLOBAL!r} for each of the {n_layers} layers")
    return [kind == LOCAL for kind in kinds]


def _read_positions(config: Mapping[str, Any], is_local: list[bool]) -> Rotary:
    """Return the rotary positions, with the base of layers with a window if there are layers of both kinds."""
    rope = config.get("rope_parameters")
    by_kind = cast("dict[str, Any]", rope) if isinstance(rope, dict) else {GLOBAL: rope, LOCAL: rope}

    def read(kind: str, key: str, base: float) -> Rotary:
        settings = {
            "rope_theta": config.get(key),
            "rope_scaling": config.get("rope_scaling"),
            "rope_parameters": by_kind.get(kind),
            "max_position_embeddings": config.get("max_position_embeddings"),
        }
        position = read_rotary(settings, kind=KIND, base=base)
        if position.scaling is not None:
            raise UserError(
                f"the rotation is scaled by {position.scaling.kind!r}, which Tercet does not support for {KIND}"
            )
        return position

    position = read(GLOBAL, "global_rope_theta", BASE)
    local_base = read(LOCAL, "local_rope_theta", LOCAL_BASE).base
    if all(is_local):
        return replace(position, base=local_base)
    return position if local_base == position.base or not any(is_local) else replace(position, local_base=local_base)


def _check_transform(config: Mapping[str, Any], stack: StackSpec) -> None:
    """Require that the dense layer of the head has the activation and the bias of the feed-forward networks.

    Raises:
        UserError: If one of them differs.
    """
    keys = {"classifier_activation": ACTIVATION, **config}
    if read_activation(keys, "classifier_activation") != stack.activation:
        raise UserError(
            f"classifier_activation is {show(keys['classifier_activation'])}, but Tercet supports only the activation "
            "of the blocks, hidden_activation"
        )
    if (bias := read_bool(config, "classifier_bias", False)) != stack.biases.feedforward:
        raise UserError(f"classifier_bias is {show(bias)}, but Tercet supports only the value of mlp_bias")


def _read_classifier(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Classifier:
    names: Any = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(cast("list[Any]", names)) == 1 else None
    if name not in CLASSIFIERS:
        raise UserError(
            f"architectures is {show(names)}; Tercet supports these with a classifier: {', '.join(CLASSIFIERS)}"
        )
    n_labels, over = len(state[LABELS]), CLASSIFIERS[name]
    pooling = read_value(config, "classifier_pooling", str, POOLING)
    if over == "texts" and pooling not in POOLINGS:
        raise UserError(f"classifier_pooling is {pooling!r}; supported: {', '.join(map(repr, POOLINGS))}")
    return Classifier(
        labels=read_labels(config, n_labels),
        over=over,
        problem_type=read_problem_type(config, n_labels, over),
        pooling=POOLINGS[pooling] if over == "texts" else "mean",
        transform=config.get("classifier_activation") != LINEAR,
        dropout=read_value(config, "classifier_dropout", float, 0.0),
    )

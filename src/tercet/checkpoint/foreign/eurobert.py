"""Import and export of EuroBERT models of the `transformers` library.

EuroBERT (Boizard et al. 2025) is an encoder with the blocks of a Llama. Each class has at most one head: masked words,
or a classifier over texts or over tokens. The logits of masked words have a bias if the feed-forward networks have one.

The classifier over texts computes V GELU(U x + u) + v, and Tercet's is linear. Since GELU(x) - GELU(-x) = x, a linear
classifier W x + b of L labels is written as

    U = [W; -W; 0]    u = 0    V = [I, -I, 0]    v = b

which needs 2 L <= d_model. Only classifiers of this form are read.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tercet.checkpoint.foreign.config_keys import raise_config_errors, read_bool, read_model_type, read_value, with_ids
from tercet.checkpoint.foreign.features import (
    Feature,
    Support,
    features_of_classifier,
    features_of_vocabulary,
    fold_embedding_norm,
    gate_squared_relu,
    rewrite_model,
)
from tercet.checkpoint.foreign.label_names import read_labels, read_problem_type, write_labels
from tercet.checkpoint.foreign.llama import NAMES as LLAMA_NAMES
from tercet.checkpoint.foreign.llama import features_of_family, read_stack, write_biases, write_stack
from tercet.checkpoint.foreign.llama_families import Family
from tercet.checkpoint.foreign.rotary_config import read_context
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead
from tercet.models.target_scale import remove_target_scale

FAMILY = Family(
    kind="EuroBERT", qkv_bias="attention_bias", out_bias="attention_bias", feedforward_bias="mlp_bias",
    divisible_width=True,
)  # fmt: skip
NAMES = {**LLAMA_NAMES, "classifier": "classifier"}
PREFIX, DENSE = "model.", "dense"  # DENSE: layer before the scores of a classifier over texts
HEADS = ("lm_head.", "classifier.", f"{DENSE}.")  # prefixes of the names of the heads' tensors
LABELS, TIED = "classifier.weight", ("lm_head.weight", "embed_tokens.weight")
POOLINGS: dict[str, Literal["mean", "first"]] = {
    "mean": "mean",
    "late": "mean",
    "bos": "first",
}  # late: the mean of the tokens' scores
POOLING_NAMES = {"mean": "mean", "first": "bos"}


def from_eurobert(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderOnly:
    """Build the equivalent of a EuroBertModel, EuroBertForMaskedLM or EuroBERT classifier, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    spec = eurobert_spec(config, state, n_ids=n_ids)
    tensors = dict(_read_linear_classifier(strip_names(state, prefix=PREFIX, no_weight=lambda name: False)))
    tied = None if spec.masked_head is None else TIED
    return build_model(EncoderOnly, spec, tensors, eurobert_source, kind=FAMILY.kind, tied=tied)


def eurobert_spec(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None
) -> EncoderOnlySpec:
    """Return the spec of the model that `from_eurobert` would build, from config and the tensors' names and shapes.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(FAMILY.kind):
        return with_ids(_spec(config, state), n_ids)


def eurobert_support(spec: EncoderOnlySpec) -> Support:
    """Return the features of a model with the values that `to_eurobert` supports."""
    spec = _equivalent(spec)
    return Support(
        f"{FAMILY.kind} of transformers",
        [
            *features_of_family(spec.stack, FAMILY),
            ("n_segments", spec.n_segments, [0]),
            *features_of_vocabulary(spec, embedding_norm=False, tied=_ties_logits(spec)),
            *_features_of_heads_on_top(spec),
        ],
    )


def to_eurobert(model: EncoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of the EuroBERT class with the model's head; the inverse of `from_eurobert`.

    If the model has a classifier, its head for masked words is left out.

    Raises:
        UserError: If EuroBERT does not support a feature of the model; the feature is named.
    """
    model = remove_target_scale(model)
    eurobert_support(model.spec).check()
    spec = _equivalent(model.spec)
    stack, masked_head = spec.stack, spec.masked_head
    has_bias = stack.biases.feedforward or (masked_head is not None and masked_head.bias)
    biases = write_biases(replace(stack.biases, feedforward=has_bias), FAMILY)
    export_spec = replace(
        spec,
        pad_vocab_to=1,
        scale_embedding=False,
        tie_embeddings=_ties_logits(spec),
        masked_head=None if masked_head is None else MaskedHead(bias=has_bias),
        stack=replace(stack, bias=biases),
    )
    equivalent = rewrite_model(model, export_spec)
    config = _config(equivalent.spec)
    prefix = "" if config["architectures"] == ["EuroBertModel"] else PREFIX
    state = export_state(own_tensors(equivalent), eurobert_source, prefix=prefix, unprefixed=HEADS)
    return config, _write_linear_classifier(state) if _classifies_texts(spec) else state


def _equivalent(spec: EncoderOnlySpec) -> EncoderOnlySpec:
    """Return the spec of an equivalent model with EuroBERT's embeddings and feed-forward network, and one head."""
    spec = fold_embedding_norm(spec)
    masked_head = None if spec.classifier is not None else spec.masked_head
    return replace(spec, masked_head=masked_head, stack=gate_squared_relu(spec.stack))


def _ties_logits(spec: EncoderOnlySpec) -> bool:
    return spec.masked_head is not None and spec.tie_embeddings


def _features_of_heads_on_top(spec: EncoderOnlySpec) -> list[Feature]:
    head, limit = spec.classifier, spec.stack.d_model // 2
    texts = head is not None and head.over == "texts"
    return [
        *([] if spec.masked_head is None else [("masked_head.transform", spec.masked_head.transform, [False])]),
        ("pooler", spec.pooler, [False]),
        ("next_sentence", spec.next_sentence, [False]),
        *features_of_classifier(spec),
        *([("classifier.pooling", head.pooling, list(POOLING_NAMES))] if head is not None and texts else []),
        *(
            [("number of classifier.labels", len(head.labels), [min(len(head.labels), limit)])]
            if head is not None and texts
            else []
        ),
    ]


def _classifies_texts(spec: EncoderOnlySpec) -> bool:
    return spec.classifier is not None and spec.classifier.over == "texts"


def _architecture(spec: EncoderOnlySpec) -> str:
    if spec.classifier is None:
        return "EuroBertModel" if spec.masked_head is None else "EuroBertForMaskedLM"
    return f"EuroBertFor{'Sequence' if _classifies_texts(spec) else 'Token'}Classification"


def _config(spec: EncoderOnlySpec) -> Plain:
    classifier = spec.classifier
    pooling = (
        {"classifier_pooling": POOLING_NAMES[classifier.pooling]} if classifier and _classifies_texts(spec) else {}
    )
    return {
        "architectures": [_architecture(spec)],
        "model_type": "eurobert",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "tie_word_embeddings": spec.tie_embeddings,
        **write_stack(spec.stack, FAMILY),
        **({} if classifier is None else write_labels(classifier)),
        **pooling,
    }


def _spec(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EncoderOnlySpec:
    read_model_type(config, "eurobert")
    stack, tied = read_stack(config, FAMILY), read_bool(config, "tie_word_embeddings", False)
    # A tied output matrix may be missing. Only the names in classes with a head have the prefix.
    masked = TIED[0] in state or (tied and any(name.startswith(PREFIX) for name in state))
    classifier = _read_classifier(config, state) if LABELS in state else None
    return EncoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_context(config, stack.position),
        tie_embeddings=tied,
        masked_head=MaskedHead(bias=stack.biases.feedforward) if masked and classifier is None else None,
        classifier=classifier,
        stack=stack,
    )


def _read_classifier(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Classifier:
    n_labels, over = len(state[LABELS]), "texts" if f"{DENSE}.weight" in state else "tokens"
    pooling = read_value(config, "classifier_pooling", str, "late")
    if pooling not in POOLINGS:
        raise UserError(f"classifier_pooling is {pooling!r}; supported: {', '.join(map(repr, POOLINGS))}")
    return Classifier(
        labels=read_labels(config, n_labels),
        over=over,
        problem_type=read_problem_type(config, n_labels, over),
        pooling=POOLINGS[pooling] if over == "texts" else "mean",
        dropout=0.0,
    )


def _write_linear_classifier(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a linear classifier over texts replaced by the equivalent one with a GELU."""
    weight = state[LABELS]
    n_labels, width = weight.shape
    identity = torch.eye(n_labels, dtype=weight.dtype, device=weight.device)
    scores = torch.cat([identity, -identity, weight.new_zeros(n_labels, width - 2 * n_labels)], dim=1)
    dense = torch.cat([weight, -weight, weight.new_zeros(width - 2 * n_labels, width)])
    return {**state, LABELS: scores, f"{DENSE}.weight": dense, f"{DENSE}.bias": dense.new_zeros(width)}


def _read_linear_classifier(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors with the linear classifier over texts, if there is one; reverse `_write_linear_classifier`.

    Raises:
        UserError: If the classifier is not linear.
    """
    names = LABELS, f"{DENSE}.weight", f"{DENSE}.bias"
    if not all(name in state for name in names):
        return state
    scores, dense, _ = (state[name] for name in names)
    linear = {name: tensor for name, tensor in state.items() if name not in names} | {LABELS: dense[: len(scores)]}
    if dense.ndim == 2 and 2 * len(scores) <= dense.shape[1]:
        expected = _write_linear_classifier(linear)
        if all(torch.equal(state[name], expected[name]) for name in names):
            return linear
    raise UserError(
        f"the text classifier of this {FAMILY.kind} has a hidden layer, which Tercet does not support; "
        "open the model from which it was fine-tuned"
    )


def eurobert_source(native_name: str) -> Source:
    """Return the tensor of a EuroBERT in `transformers` that corresponds to the tensor `native_name` of Tercet."""
    return Source(name=foreign_name(native_name, NAMES))

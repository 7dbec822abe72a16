"""BERT as the `transformers` library keeps it: its config into our spec, its names into ours, nothing guessed.

What the weights have decides the heads: masked words, next sentences, the pooler, and a classifier over texts (which
reads the pooler) or over tokens (which has none beside it). Old files call a norm's weight and bias gamma and beta, and
may put `bert.` before a name or leave it out; all of these are read. What a name does not tell is refused.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tercet.checkpoint.weights import first_names, read_tensors, shape_of
from tercet.config import UserError, nearest
from tercet.models import Classifier, Dropout, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.nn import Learned
from tercet.nn.feedforward import Activation

Value = TypeVar("Value", int, float, str)

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

# Ours and theirs: of the whole model, of block and layer number N, and of the heads.
EMBEDDINGS = {
    "embedding": "embeddings.word_embeddings",
    "segment_embedding": "embeddings.token_type_embeddings",
    "stack.position.table": "embeddings.position_embeddings",
    "stack.embedding_norm": "embeddings.LayerNorm",
}
LAYER = {
    "self_attention.query": "attention.self.query",
    "self_attention.key": "attention.self.key",
    "self_attention.value": "attention.self.value",
    "self_attention.out": "attention.output.dense",
    "self_residual.after": "attention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "feedforward_residual.after": "output.LayerNorm",
}
HEADS = {
    "transform.dense": "cls.predictions.transform.dense",
    "transform.norm": "cls.predictions.transform.LayerNorm",
    "pooler.dense": "pooler.dense",
    "next_sentence": "cls.seq_relationship",
    "classifier": "classifier",
}
BIAS, DECODER = "cls.predictions.bias", "cls.predictions.decoder"


def from_bert(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EncoderOnly:
    """The model, in eval mode, of a BertModel, BertForPreTraining, BertForMaskedLM or a BERT that classifies.

    Args:
        config: what its config.json holds.
        state: its tensors by name.

    Raises:
        UserError: where the two do not belong together, or are of another model.
    """
    state = _plain_names(state)
    spec = _spec(config, state)
    try:
        with torch.random.fork_rng(devices=[]):  # building torch's own layers draws from the global generator
            model = EncoderOnly(spec)
    except ValueError as error:
        raise UserError(f"the config of this BERT does not fit together: {error}") from None
    _fill(model, state)
    return model.eval()


def read_bert(folder: Path, config: Mapping[str, Any]) -> EncoderOnly:
    """`from_bert` with the weights in `folder`: model.safetensors, or else pytorch_model.bin without running its code.

    Raises:
        UserError: as `from_bert`, and where the file is broken.
    """
    path = folder / "model.safetensors"
    state = read_tensors(path) if path.is_file() else _read_pickle(folder / "pytorch_model.bin")
    try:
        return from_bert(config, state)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


def _spec(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EncoderOnlySpec:
    kind, positions = config.get("model_type", "bert"), config.get("position_embedding_type", "absolute")
    if kind != "bert":
        raise UserError(f"model_type is {kind!r}; Tercet reads 'bert' alone")
    if positions != "absolute":
        raise UserError(f"position_embedding_type is {positions!r}; Tercet reads a BERT of 'absolute' ones alone")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UserError("it is a decoder (is_decoder, add_cross_attention); Tercet reads BERT as an encoder alone")
    activation = _take(config, "hidden_act", str)
    if activation not in ACTIVATIONS:
        raise UserError(f"hidden_act is {activation!r}, which Tercet does not have{nearest(activation, ACTIVATIONS)}")
    hidden_dropout = _take(config, "hidden_dropout_prob", float)
    masked = any(name.startswith("cls.predictions.") for name in state)
    pooler = "pooler.dense.weight" in state
    try:
        return EncoderOnlySpec(
            vocab_size=_take(config, "vocab_size", int),
            max_len=_take(config, "max_position_embeddings", int),
            n_segments=_take(config, "type_vocab_size", int),
            embedding_norm=True,
            tie_embeddings=bool(config.get("tie_word_embeddings", True)),
            masked_head=MaskedHead(transform=True, bias=True) if masked else None,
            pooler=pooler,
            next_sentence="cls.seq_relationship.weight" in state,
            classifier=_classifier(config, state, pooler=pooler, dropout=hidden_dropout),
            stack=StackSpec(
                d_model=_take(config, "hidden_size", int),
                n_layers=_take(config, "num_hidden_layers", int),
                n_heads=_take(config, "num_attention_heads", int),
                d_ff=_take(config, "intermediate_size", int),
                position=Learned(),
                norm_eps=_take(config, "layer_norm_eps", float),
                placement="post",
                activation=ACTIVATIONS[activation],
                dropout=Dropout(
                    embedding=hidden_dropout,
                    attention=_take(config, "attention_probs_dropout_prob", float),
                    residual=hidden_dropout,
                ),
            ),
        )
    except ValueError as error:
        raise UserError(f"the config of this BERT does not fit together: {error}") from None


def _classifier(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, pooler: bool, dropout: float
) -> Classifier | None:
    if "classifier.weight" not in state:
        return None
    count, names = len(state["classifier.weight"]), config.get("id2label") or {}
    numbered = [f"LABEL_{number}" for number in range(count)]  # what transformers writes where nobody gave names
    labels = [str(names.get(str(number), names.get(number, ""))) for number in range(len(names))]
    # A file may keep the two names of a default beside a num_labels that was given later.
    if len(labels) != count and (config.get("num_labels") == count or (not labels and count == 2)):
        labels = numbered
    if len(labels) != count or not all(labels):
        raise UserError(f"the classifier scores {count} labels and id2label names {len(names)}; name them all")
    own = config.get("classifier_dropout")
    return Classifier(
        labels=tuple(labels),
        over="texts" if pooler else "tokens",
        pooling="pooler" if pooler else "mean",
        dropout=dropout if own is None else _take(config, "classifier_dropout", float),
    )


def _take(config: Mapping[str, Any], key: str, kind: type[Value]) -> Value:
    value = config.get(key)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        told = "has no" if value is None else f"has {value!r} as"
        raise UserError(f"config.json {told} {key}; put back the {kind.__name__} that the weights were trained with")
    return value


def _plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefix, without the old names, and without what is no weight."""
    plain: dict[str, Tensor] = {}
    for given, tensor in state.items():
        name = given.removeprefix("bert.")
        if name == "embeddings.position_ids":  # 0, 1, 2 ...
            continue
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            name = f"{name.removesuffix(old)}{new}" if name.endswith(old) else name
        if name in plain:
            raise UserError(f"{name} stands in the weights twice, under {given} too; leave one out")
        plain[name] = tensor
    return plain


def _fill(model: EncoderOnly, state: dict[str, Tensor]) -> None:
    own = model.state_dict()
    if model.spec.masked_head is not None:
        if not model.spec.tie_embeddings and f"{DECODER}.bias" in state:
            state[BIAS] = state.pop(f"{DECODER}.bias")  # of the two it is the one that counts
        _untwin(state, f"{DECODER}.bias", BIAS)
        if model.spec.tie_embeddings:
            _untwin(state, f"{DECODER}.weight", "embeddings.word_embeddings.weight")
            own.pop("unembedding.weight")  # filled with the embedding
    theirs = {name: _their_name(name) for name in own}
    missing = [name for name in theirs.values() if name not in state]
    unknown = [name for name in state if name not in set(theirs.values())]
    shapes = [(name, own[ours], state[name]) for ours, name in theirs.items() if name in state]
    told = [
        *([f"{first_names(missing)} missing"] if missing else []),
        *([f"{first_names(unknown)} unknown"] if unknown else []),
        *(
            f"{name} has shape {shape_of(found)} where the config needs {shape_of(wanted)}"
            for name, wanted, found in [each for each in shapes if each[1].shape != each[2].shape][:2]
        ),
    ]
    if told:
        raise UserError(f"the weights do not fit the config of this BERT: {'; '.join(told)}")
    with torch.no_grad():
        for ours, tensor in own.items():
            tensor.copy_(state[theirs[ours]])


def _untwin(state: dict[str, Tensor], second: str, first: str) -> None:
    """One tensor may stand under two names; two tensors where there should be one are no model that we know."""
    if second in state:
        tensor = state.pop(second)
        if not torch.equal(state.setdefault(first, tensor), tensor):
            raise UserError(f"{second} is not the same as {first}, with which BERT shares it; leave out the wrong one")


def _their_name(name: str) -> str:
    if name == "unembedding.bias":
        return BIAS
    if name == "unembedding.weight":
        return f"{DECODER}.weight"
    part, _, kind = name.rpartition(".")
    if part.startswith("stack.blocks."):
        number, _, inside = part.removeprefix("stack.blocks.").partition(".")
        return f"encoder.layer.{number}.{LAYER[inside]}.{kind}"
    return f"{(EMBEDDINGS | HEADS)[part]}.{kind}"


def _read_pickle(path: Path) -> Mapping[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a whole file of weights ({reason}); copy it again") from None
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UserError(f"{path} holds more than weights by name; save the model's state_dict alone")
    return state

"""Import of RoBERTa models of the `transformers` library, which are BERTs with other positions.

RoBERTa is described by Liu et al. (2019). XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) only
differ in the vocabulary. Positions of tokens are counted from pad_token_id + 1, so the previous rows of the position
table are dropped. A classifier over texts has an additional layer on the first token, which equals BERT's pooler. A
RoBERTa is exported as a BERT: without these rows, only the names of the tensors differ.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from tercet.checkpoint.foreign.bert import NAMES as BERT_NAMES
from tercet.checkpoint.foreign.bert import merge_decoder, read_classifier, read_encoder
from tercet.checkpoint.foreign.config_keys import raise_config_errors, read_bool, read_model_type, read_value, with_ids
from tercet.checkpoint.foreign.state_dict import Source, build_model, foreign_name, strip_names
from tercet.config import UserError
from tercet.models import EncoderOnly, EncoderOnlySpec, MaskedHead

KIND = "RoBERTa"
MODEL_TYPES = ("roberta", "xlm-roberta", "camembert")
NAMES = {
    **BERT_NAMES,
    "transform.dense": "lm_head.dense",
    "transform.norm": "lm_head.layer_norm",
    "unembedding": "lm_head.decoder",
}
OVER_TEXTS = {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
POSITIONS = "stack.position.table.weight"
BIAS, DECODER = "lm_head.bias", "lm_head.decoder"


def from_roberta(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderOnly:
    """Build the equivalent of a RobertaModel, RobertaForMaskedLM or RoBERTa classifier, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or belong to another model.
    """
    tensors, spec = _foreign_names(state), roberta_spec(config, state, n_ids=n_ids)
    tied = merge_decoder(tensors, spec, decoder=DECODER, bias=BIAS, kind=KIND)
    texts = spec.classifier is not None and spec.classifier.over == "texts"
    source = partial(_source, names=NAMES | (OVER_TEXTS if texts else {}), skipped_rows=_first_position(config))
    return build_model(EncoderOnly, spec, tensors, source, kind=KIND, tied=tied)


def roberta_spec(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None
) -> EncoderOnlySpec:
    """Return the spec of the model that `from_roberta` would build, from config and the tensors' names and shapes.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(KIND):
        return with_ids(_spec(config, _foreign_names(state)), n_ids)


def _spec(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EncoderOnlySpec:
    read_model_type(config, *MODEL_TYPES)
    stack = read_encoder(config, KIND)
    masked, texts = any(name.startswith("lm_head.") for name in state), "classifier.dense.weight" in state
    if masked and stack.activation != "gelu":
        raise UserError(
            f"hidden_act is {config['hidden_act']!r}, but the masked head of {KIND} always uses 'gelu'; "
            "Tercet supports a single activation for both"
        )
    weight = state.get("classifier.out_proj.weight" if texts else "classifier.weight")
    return EncoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int) - _first_position(config),
        n_segments=read_value(config, "type_vocab_size", int),
        embedding_norm=True,
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        masked_head=MaskedHead(transform=True, bias=True) if masked else None,
        pooler=texts or "pooler.dense.weight" in state,
        classifier=None if weight is None else read_classifier(config, weight, pooler=texts),
        stack=stack,
    )


def _first_position(config: Mapping[str, Any]) -> int:
    """Return the row of the position table that belongs to the first token."""
    pad = read_value(config, "pad_token_id", int, 1)
    if pad < 0:
        raise UserError(
            f"pad_token_id is {pad}, but must be at least 0, since the positions of {KIND} start after it; "
            "put back the id of the trained model"
        )
    return pad + 1


def _foreign_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by their names without the prefix "roberta.".

    Position ids are left out, and so is the pooler if the classifier has its own dense layer instead.
    """
    unread_prefixes = ("pooler.",) if "classifier.dense.weight" in state else ()
    return strip_names(
        state,
        prefix="roberta.",
        no_weight=lambda name: name == "embeddings.position_ids" or name.startswith(unread_prefixes),
    )


def _source(native_name: str, names: Mapping[str, str], skipped_rows: int) -> Source:
    name = BIAS if native_name == "unembedding.bias" else foreign_name(native_name, names)
    return Source(name=name, skipped_rows=skipped_rows if native_name == POSITIONS else 0)

"""Readers of third-party models, by the model_type in their config.json."""

from collections.abc import Callable
from typing import NamedTuple

from tercet.checkpoint.foreign.bart import FAMILIES as BART_FAMILIES
from tercet.checkpoint.foreign.bart import bart_spec, from_bart
from tercet.checkpoint.foreign.bert import bert_spec, from_bert
from tercet.checkpoint.foreign.distilbert import distilbert_spec, from_distilbert
from tercet.checkpoint.foreign.eurobert import eurobert_spec, from_eurobert
from tercet.checkpoint.foreign.gpt2 import from_gpt2, gpt2_spec
from tercet.checkpoint.foreign.llama import from_llama, llama_spec
from tercet.checkpoint.foreign.llama_families import FAMILIES as LLAMA_FAMILIES
from tercet.checkpoint.foreign.marian import from_marian, marian_spec
from tercet.checkpoint.foreign.modernbert import from_modernbert, modernbert_spec
from tercet.checkpoint.foreign.neox import from_neox, neox_spec
from tercet.checkpoint.foreign.opt import from_opt, opt_spec
from tercet.checkpoint.foreign.roberta import MODEL_TYPES as ROBERTA_TYPES
from tercet.checkpoint.foreign.roberta import from_roberta, roberta_spec
from tercet.checkpoint.foreign.t5 import FAMILIES as T5_FAMILIES
from tercet.checkpoint.foreign.t5 import from_t5, t5_spec
from tercet.checkpoint.foreign.t5gemma import from_t5gemma, t5gemma_spec
from tercet.models import AnyModel, AnySpec


class Reader(NamedTuple):
    """Functions that convert config and tensors of a third-party model.

    Attributes:
        spec: Function that returns the spec of the equivalent model in Tercet, such as `bert_spec`.
        model: Function that returns the equivalent model in Tercet, such as `from_bert`.
    """

    spec: Callable[..., AnySpec]
    model: Callable[..., AnyModel]


READERS = {  # by model_type
    "bert": Reader(bert_spec, from_bert), "gpt2": Reader(gpt2_spec, from_gpt2),
    "gpt_neox": Reader(neox_spec, from_neox), "opt": Reader(opt_spec, from_opt),
    "marian": Reader(marian_spec, from_marian),
    "distilbert": Reader(distilbert_spec, from_distilbert), "eurobert": Reader(eurobert_spec, from_eurobert),
    "modernbert": Reader(modernbert_spec, from_modernbert), "t5gemma": Reader(t5gemma_spec, from_t5gemma),
    **dict.fromkeys(LLAMA_FAMILIES, Reader(llama_spec, from_llama)),
    **dict.fromkeys(BART_FAMILIES, Reader(bart_spec, from_bart)),
    **dict.fromkeys(T5_FAMILIES, Reader(t5_spec, from_t5)),
    **dict.fromkeys(ROBERTA_TYPES, Reader(roberta_spec, from_roberta)),
}  # fmt: skip

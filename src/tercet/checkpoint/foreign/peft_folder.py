"""Import and export of adapters of `transformers` models, as written by `peft`.

The queries, keys and values of a GPT-2 or GPT-NeoX have one matrix in `transformers`, but three in Tercet, each with
its own low-rank update. On export, the update of the single matrix is

    [B1 A1; B2 A2; B3 A3] = diag(B1, B2, B3) [A1; A2; A3]

which has three times the rank. On import, each of the three matrices gets its rows of B and the whole A. The rows of a
GPT-NeoX are ordered by head.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoint.adapter import Adapter, LowRank, write_adapter
from tercet.checkpoint.foreign.bart import FAMILIES as BART_FAMILIES
from tercet.checkpoint.foreign.bart import bart_source, is_bart
from tercet.checkpoint.foreign.bert import bert_source
from tercet.checkpoint.foreign.distilbert import distilbert_source
from tercet.checkpoint.foreign.eurobert import DENSE, eurobert_source
from tercet.checkpoint.foreign.export_files import extend_card
from tercet.checkpoint.foreign.features import Support
from tercet.checkpoint.foreign.gpt2 import gpt2_source
from tercet.checkpoint.foreign.llama import llama_source
from tercet.checkpoint.foreign.llama_families import FAMILIES
from tercet.checkpoint.foreign.marian import marian_source, reorder_low_rank
from tercet.checkpoint.foreign.modernbert import is_modernbert, modernbert_source
from tercet.checkpoint.foreign.neox import neox_source
from tercet.checkpoint.foreign.opt import opt_source
from tercet.checkpoint.foreign.state_dict import Source
from tercet.checkpoint.foreign.t5 import FAMILIES as T5_FAMILIES
from tercet.checkpoint.foreign.t5 import divides_logits, is_t5, t5_source
from tercet.checkpoint.foreign.t5gemma import is_t5gemma, query_scales, t5gemma_source
from tercet.checkpoint.foreign.transformers_folder import to_transformers, transformers_support
from tercet.checkpoint.trained_model import TrainedModel
from tercet.checkpoint.weights import first_names, own_tensors, tied_names
from tercet.config import UserError
from tercet.models import AnyModel, AnySpec, EncoderDecoder, EncoderOnly, EncoderOnlySpec
from tercet.storage import write_atomically

CODE = """
from peft import PeftModel
from transformers import {architecture}

model = {architecture}.from_pretrained("base")
model = PeftModel.from_pretrained(model, "this_folder")
"""
WORDS = "`base` is the base model: `tercet convert RUN/pretrained base --to hf` writes it."
BASE = "base"  # folder that this command writes, since `pretrained` of a run has Tercet's format
TASK_TYPES = {  # task_type in peft by suffix of the architecture; masked language models have none
    "LMHeadModel": "CAUSAL_LM", "ForCausalLM": "CAUSAL_LM", "MTModel": "SEQ_2_SEQ_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM", "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
}  # fmt: skip
SourceOf = Callable[[str], Source]  # from the name of a tensor in Tercet to the tensor in `transformers`


def peft_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Prepare the export of a model's adapter, and return the function that writes it into a folder.

    Raises:
        UserError: If the model has no adapter, or `transformers` does not support a feature of the model.
    """
    if trained_model.adapter is None:
        raise UserError(
            f"{trained_model.folder} has no adapter for --to peft; train one with --set 'adapter={{kind: lora}}'"
        )
    peft_support(trained_model.model.spec).check()
    config, state = to_transformers(trained_model.model)
    architecture: str = config["architectures"][0]
    task_type = next((task for end, task in TASK_TYPES.items() if architecture.endswith(end)), None)
    adapter = _export_adapter(trained_model.adapter, trained_model.model, config["model_type"], state)
    adapter = replace(adapter, base=BASE, task_type=task_type)
    card = extend_card(trained_model, "peft", CODE.format(architecture=architecture), WORDS)

    def write(folder: Path) -> None:
        write_atomically(folder / "README.md", card.encode())
        write_adapter(folder, adapter)

    return write


def peft_support(spec: AnySpec) -> Support:
    """Return the features of a model with the values that the export of its adapter supports.

    The classifier of a ModernBERT without a transform is rejected: the config of the base model has no linear
    activation, and no bias of the layer before the scores.
    """
    support = transformers_support(spec)
    if not isinstance(spec, EncoderOnlySpec) or spec.classifier is None or not is_modernbert(spec):
        return support
    return replace(support, features=[*support.features, ("classifier.transform", spec.classifier.transform, [True])])


def import_adapter(adapter: Adapter, model: AnyModel, folder: Path, config: Mapping[str, Any]) -> Adapter:
    """Convert an adapter from the names and layouts of `transformers` to those of Tercet.

    Args:
        adapter: Adapter as read from `folder`.
        model: Base model of the adapter.
        folder: Folder of the adapter, for error messages.
        config: Content of config.json of the base model; empty if it has none.

    Raises:
        UserError: If the model does not have the layers or full weights of the adapter, or if embedding and output of
            the model share a full weight.
    """
    unknown = list(adapter.layers)
    for model_type, source in _sources(model, config).items():
        names = _names(model, source)
        matches = {name: foreign for name in names if (foreign := _find(_layer(names[name].name), adapter.layers))}
        unknown = min(unknown, [name for name in adapter.layers if name not in matches.values()], key=len)
        if not unknown:
            _check_ties(adapter, model, names, folder)
            layers = {
                _layer(name): _read(adapter.layers[foreign], name, names[name], model_type)
                for name, foreign in matches.items()
            }
            return Adapter(base=adapter.base, layers=layers, full_weights=_read_full_weights(adapter, names, folder))
    raise UserError(
        f"{folder} does not fit this model, which has no {first_names(unknown)}; use the base model of the adapter"
    )


def _check_ties(adapter: Adapter, model: AnyModel, names: Mapping[str, Source], folder: Path) -> None:
    """Reject an adapter with a full weight that two modules of the base model share; `peft` sets only one of them.

    Raises:
        UserError: If there is such a weight; the message contains its name.
    """
    ties = tied_names(model)
    tied = {names[name].name for name in ties.values() if name in names}
    heads = ("lm_head.weight", *tied)
    if ties and (
        saved_weights := [name for name in adapter.full_weights if any(name.endswith(head) for head in heads)]
    ):
        raise UserError(
            f"{folder} has its own {first_names(saved_weights)}, but its model has a single matrix for embedding and "
            "output; merge it in peft (merge_and_unload)"
        )


def _export_adapter(adapter: Adapter, model: AnyModel, model_type: str, state: Mapping[str, Tensor]) -> Adapter:
    """Convert an adapter from Tercet's names and layouts to those of `transformers`, the inverse of `import_adapter`.

    Args:
        adapter: Adapter of the model.
        model: Model in Tercet.
        model_type: Type of the exported model in `transformers`.
        state: Tensors of the exported model, by their names in `transformers`.
    """
    names = _names(model, _sources(model, {})[model_type])
    parts_by_layer, sources = dict[str, dict[int, LowRank]](), dict[str, Source]()
    for layer, low_rank in adapter.layers.items():
        source = names[f"{layer}.weight"]
        key = _layer(_find(source.name, state) or source.name)
        parts_by_layer.setdefault(key, {})[source.part] = _write(low_rank, f"{layer}.weight", source, model_type)
        sources[key] = source
    saved_modules = {key.rpartition(".")[0] for name in adapter.full_weights if (key := _find(names[name].name, state))}
    if "classifier" in saved_modules:  # that of a EuroBERT consists of two layers
        saved_modules |= {DENSE} & {key.rpartition(".")[0] for key in state}
    # `peft` also saves every module whose name ends in that of a saved one: with "classifier", DistilBERT's
    # "pre_classifier" as well.
    full_weights = {
        key: tensor for key, tensor in state.items() if key.rpartition(".")[0].endswith(tuple(saved_modules))
    }
    layers = {key: _join(parts, sources[key]) for key, parts in parts_by_layer.items()}
    transposed = any(names[f"{layer}.weight"].transposed for layer in adapter.layers)
    return Adapter(base=adapter.base, layers=layers, full_weights=full_weights, transposed=transposed)


def _sources(model: AnyModel, config: Mapping[str, Any]) -> dict[str, SourceOf]:
    """Return a function from names in Tercet to tensors in `transformers`, for each possible model_type.

    Args:
        model: Model in Tercet.
        config: Content of config.json of the folder that the model was read from; empty for an export of Tercet.
    """
    if isinstance(model, EncoderOnly):
        # RoBERTa's blocks have BERT's names.
        return {
            "bert": bert_source,
            "distilbert": distilbert_source,
            "eurobert": eurobert_source,
            "modernbert": modernbert_source,
        }
    if isinstance(model, EncoderDecoder):
        if is_t5(model.spec):
            source = partial(t5_source, spec=model.spec, divide_logits=divides_logits(model.spec))
            return dict.fromkeys(T5_FAMILIES, source)
        if is_t5gemma(model.spec):
            return {"t5gemma": partial(t5gemma_source, query_scales=query_scales(config, model.spec))}
        if is_bart(model.spec):
            return dict.fromkeys(BART_FAMILIES, partial(bart_source, shared=True))
        return {"marian": partial(marian_source, shared=True)}
    stack = model.spec.stack
    families = {name: family for name, family in FAMILIES.items() if family.qk_norm == stack.qk_norm}
    return {
        "gpt2": gpt2_source,
        "opt": opt_source,
        "gpt_neox": partial(neox_source, n_heads=stack.n_heads),
        **{name: partial(llama_source, family=family, norm_eps=stack.norm_eps) for name, family in families.items()},
    }


def _names(model: AnyModel, source: SourceOf) -> dict[str, Source]:
    """Return the source of each tensor of the model, by its name in Tercet; tensors without a source are left out."""
    names = dict[str, Source]()
    for name in own_tensors(model):
        with suppress(KeyError):  # the model in `transformers` has no such part
            names[name] = source(name)
    return names


def _find(name: str, names: Iterable[str]) -> str | None:
    """Return the first of `names` that equals `name` or ends in it after a dot; None if there is none."""
    return next((key for key in names if key == name or key.endswith(f".{name}")), None)


def _layer(name: str) -> str:
    return name.removesuffix(".weight")


def _read(low_rank: LowRank, name: str, source: Source, model_type: str) -> LowRank:
    a, b = low_rank.A, source.select(low_rank.B)
    a, b = reorder_low_rank(name, a, b) if model_type == "marian" else (a, b)
    return LowRank(A=a, B=b, scaling=low_rank.scaling * source.scale)


def _write(low_rank: LowRank, name: str, source: Source, model_type: str) -> LowRank:
    """Convert a low-rank update to the layout of `transformers`, as one part of a matrix; the inverse of `_read`."""
    a, b = (
        reorder_low_rank(name, low_rank.A, low_rank.B, inverse=True)
        if model_type == "marian"
        else (low_rank.A, low_rank.B)
    )
    return LowRank(A=a, B=b, scaling=low_rank.scaling / source.scale)


def _join(parts: Mapping[int, LowRank], source: Source) -> LowRank:
    """Combine the low-rank updates of the parts of a matrix into one update of the whole matrix.

    Args:
        parts: Updates by the number of the part. The update of a missing part is zero.
        source: Tensor in `transformers` of one of these parts.
    """
    low_ranks = [parts[part] for part in sorted(parts)]
    if source.parts == 1:
        return low_ranks[0]
    n_rows, scaling = len(low_ranks[0].B), low_ranks[0].scaling
    b = low_ranks[0].B.new_zeros(source.parts, n_rows, sum(len(low_rank.A) for low_rank in low_ranks))
    column = 0
    for part, low_rank in zip(sorted(parts), low_ranks, strict=True):
        b[part, :, column : column + len(low_rank.A)] = low_rank.B * (low_rank.scaling / scaling)
        column += len(low_rank.A)
    return LowRank(A=torch.cat([low_rank.A for low_rank in low_ranks]), B=source.join(tuple(b)), scaling=scaling)


def _read_full_weights(adapter: Adapter, names: Mapping[str, Source], folder: Path) -> dict[str, Tensor]:
    matches = {name: foreign for name in names if (foreign := _find(names[name].name, adapter.full_weights))}
    if unmatched := [name for name in adapter.full_weights if name not in matches.values()]:
        raise UserError(f"{folder}: this model has no {first_names(unmatched)}; use the base model of the adapter")
    return {name: names[name].read(adapter.full_weights[foreign]) for name, foreign in matches.items()}

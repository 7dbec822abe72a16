"""Import and export of adapters of `transformers` models, as written by `peft`.

If one matrix in `transformers` is several in Tercet (GPT-2's queries, keys and values), the product of the former is

    [B1 A1; B2 A2; B3 A3] = diag(B1, B2, B3) [A1; A2; A3]

of three times the rank. In the other direction, each of the latter gets its rows of B, with the same A.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tercet.checkpoint.adapter import Adapter, LowRank, write_adapter
from tercet.checkpoint.foreign.bert import bert_source
from tercet.checkpoint.foreign.distilbert import distilbert_source
from tercet.checkpoint.foreign.export_files import extend_card
from tercet.checkpoint.foreign.gpt2 import gpt2_source
from tercet.checkpoint.foreign.llama import FAMILIES, llama_source
from tercet.checkpoint.foreign.marian import marian_source, reorder_low_rank
from tercet.checkpoint.foreign.state_dict import Source
from tercet.checkpoint.foreign.t5 import FAMILIES as T5_FAMILIES
from tercet.checkpoint.foreign.t5 import is_t5, t5_source
from tercet.checkpoint.foreign.transformers_folder import to_transformers
from tercet.checkpoint.trained_model import TrainedModel
from tercet.checkpoint.weights import first_names, own_tensors, tied_names
from tercet.config import UserError
from tercet.models import AnyModel, EncoderDecoder, EncoderOnly
from tercet.storage import write_atomically

CODE = """
from peft import PeftModel
from transformers import {architecture}

model = {architecture}.from_pretrained("base")
model = PeftModel.from_pretrained(model, "this_folder")
"""
WORDS = "`base` is the base model: `tercet convert RUN/pretrained base --to hf` writes it."
BASE = "base"  # of that command, since a run's ../pretrained is not a folder of `transformers`
TASK_TYPES = {  # by suffix of the architecture; peft has none for masked language models
    "LMHeadModel": "CAUSAL_LM", "ForCausalLM": "CAUSAL_LM", "MTModel": "SEQ_2_SEQ_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM", "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
}  # fmt: skip
SourceOf = Callable[[str], Source]  # the source of a tensor, by its name in Tercet


def peft_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Prepare the export, and return the function that writes it.

    Raises:
        UserError: If the model has no adapter, or the format does not support the model.
    """
    if trained_model.adapter is None:
        raise UserError(f"{trained_model.folder} has no adapter for --to peft; train one with adapter: lora")
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


def import_adapter(adapter: Adapter, model: AnyModel, folder: Path) -> Adapter:
    """Convert the adapter in `folder` from the names of the other library to those of the model.

    Raises:
        UserError: If the model does not have its layers.
    """
    unknown = list(adapter.layers)
    for model_type, source in _sources(model).items():
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
    """Reject a saved weight that two modules of the base share; `peft` would set only one of them.

    Raises:
        UserError: With the weight.
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
    """Reverse `import_adapter`. `state` contains the names of the whole exported model."""
    names = _names(model, _sources(model)[model_type])
    parts_by_layer, n_parts = dict[str, dict[int, LowRank]](), dict[str, int]()
    for layer, low_rank in adapter.layers.items():
        source = names[f"{layer}.weight"]
        key = _layer(_find(source.name, state) or source.name)
        parts_by_layer.setdefault(key, {})[source.part] = _write(low_rank, f"{layer}.weight", source, model_type)
        n_parts[key] = source.parts
    saved_modules = {key.rpartition(".")[0] for name in adapter.full_weights if (key := _find(names[name].name, state))}
    # `peft` also matches names that end in that of a saved module: such as DistilBERT's "pre_classifier".
    full_weights = {
        key: tensor for key, tensor in state.items() if key.rpartition(".")[0].endswith(tuple(saved_modules))
    }
    layers = {key: _join(parts, n_parts[key]) for key, parts in parts_by_layer.items()}
    transposed = any(names[f"{layer}.weight"].transposed for layer in adapter.layers)
    return Adapter(base=adapter.base, layers=layers, full_weights=full_weights, transposed=transposed)


def _sources(model: AnyModel) -> dict[str, SourceOf]:
    """Return the sources of the model's tensors, by possible model_type in `transformers`."""
    if isinstance(model, EncoderOnly):
        return {"bert": bert_source, "distilbert": distilbert_source}  # RoBERTa's blocks have BERT's names
    if isinstance(model, EncoderDecoder):
        if is_t5(model.spec):
            source = partial(t5_source, spec=model.spec, divide_logits=model.spec.scale_embedding)
            return dict.fromkeys(T5_FAMILIES, source)
        return {"marian": partial(marian_source, shared=True)}
    stack = model.spec.stack
    families = {name: family for name, family in FAMILIES.items() if family.qk_norm == stack.qk_norm}
    return {
        "gpt2": gpt2_source,
        **{name: partial(llama_source, family=family, norm_eps=stack.norm_eps) for name, family in families.items()},
    }


def _names(model: AnyModel, source: SourceOf) -> dict[str, Source]:
    """Return the source of each of the model's tensors that has one."""
    names = dict[str, Source]()
    for name in own_tensors(model):
        with suppress(KeyError):  # the other model has no such part
            names[name] = source(name)
    return names


def _find(name: str, names: Iterable[str]) -> str | None:
    """Return the name in `names` that equals `name` or ends with it, as in a larger model."""
    return next((key for key in names if key == name or key.endswith(f".{name}")), None)


def _layer(name: str) -> str:
    return name.removesuffix(".weight")


def _read(low_rank: LowRank, name: str, source: Source, model_type: str) -> LowRank:
    a, b = low_rank.A, low_rank.B.chunk(source.parts)[source.part]
    a, b = reorder_low_rank(name, a, b) if model_type == "marian" else (a, b)
    return LowRank(A=a, B=b, scaling=low_rank.scaling * source.scale)


def _write(low_rank: LowRank, name: str, source: Source, model_type: str) -> LowRank:
    """Reverse `_read`, except for the other parts."""
    a, b = (
        reorder_low_rank(name, low_rank.A, low_rank.B, inverse=True)
        if model_type == "marian"
        else (low_rank.A, low_rank.B)
    )
    return LowRank(A=a, B=b, scaling=low_rank.scaling / source.scale)


def _join(parts: Mapping[int, LowRank], n_parts: int) -> LowRank:
    """Join several low-rank updates to one, in which each has its rows."""
    low_ranks = [parts[part] for part in sorted(parts)]
    if n_parts == 1:
        return low_ranks[0]
    n_rows, scaling = len(low_ranks[0].B), low_ranks[0].scaling
    b = low_ranks[0].B.new_zeros(n_parts * n_rows, sum(len(low_rank.A) for low_rank in low_ranks))
    column = 0
    for part, low_rank in zip(sorted(parts), low_ranks, strict=True):
        rows, columns = slice(part * n_rows, (part + 1) * n_rows), slice(column, column + len(low_rank.A))
        b[rows, columns] = low_rank.B * (low_rank.scaling / scaling)
        column += len(low_rank.A)
    return LowRank(A=torch.cat([low_rank.A for low_rank in low_ranks]), B=b, scaling=scaling)


def _read_full_weights(adapter: Adapter, names: Mapping[str, Source], folder: Path) -> dict[str, Tensor]:
    matches = {name: foreign for name in names if (foreign := _find(names[name].name, adapter.full_weights))}
    if unmatched := [name for name in adapter.full_weights if name not in matches.values()]:
        raise UserError(f"{folder}: this model has no {first_names(unmatched)}; use the base model of the adapter")
    return {name: names[name].read(adapter.full_weights[foreign]) for name, foreign in matches.items()}

"""Export of a folder for `AutoModel` and `AutoTokenizer` of the `transformers` library."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tercet.checkpoint.chat_template import write_chat_template
from tercet.checkpoint.foreign.auto_tokenizer import special_names, tokenizer_config, tokenizer_json
from tercet.checkpoint.foreign.bart import bart_support, is_bart, to_bart
from tercet.checkpoint.foreign.bert import bert_support, to_bert
from tercet.checkpoint.foreign.distilbert import distilbert_support, is_distilbert, to_distilbert
from tercet.checkpoint.foreign.eurobert import eurobert_support, to_eurobert
from tercet.checkpoint.foreign.export_files import generation_config, json_text, special_ids
from tercet.checkpoint.foreign.features import Support
from tercet.checkpoint.foreign.gpt2 import gpt2_support, to_gpt2
from tercet.checkpoint.foreign.llama import llama_support, to_llama
from tercet.checkpoint.foreign.marian import marian_support, to_marian
from tercet.checkpoint.foreign.modernbert import is_modernbert, modernbert_support, to_modernbert
from tercet.checkpoint.foreign.neox import is_neox, neox_support, to_neox
from tercet.checkpoint.foreign.opt import is_opt, opt_support, to_opt
from tercet.checkpoint.foreign.t5 import is_t5, t5_support, to_t5
from tercet.checkpoint.foreign.t5gemma import is_t5gemma, t5gemma_support, to_t5gemma
from tercet.checkpoint.trained_model import TrainedModel
from tercet.checkpoint.weights import write_tensors
from tercet.config import Plain
from tercet.models import AnyModel, AnySpec, EncoderDecoder, EncoderDecoderSpec, EncoderOnly, EncoderOnlySpec
from tercet.nn import Rotary
from tercet.storage import write_atomically

OPENING = "## Open it with transformers"


def transformers_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Prepare the export, and return the function that writes it into a folder.

    Raises:
        UserError: If `transformers` does not support a feature of the model, or if a translator has no bos or eos.
    """
    model, tokenizer = trained_model.model, trained_model.tokenizer
    config, state = to_transformers(model)
    generation = generation_config(trained_model)
    ids = special_ids(tokenizer)
    if isinstance(model, EncoderOnly) and tokenizer.mask_id is not None:
        ids["mask_token_id"] = tokenizer.mask_id
    start = {"decoder_start_token_id": tokenizer.bos_id} if isinstance(model, EncoderDecoder) else {}
    # Some translators have a config for each side, from which `transformers` reads the ids of the side.
    side_tokenizers = {"encoder": trained_model.source_tokenizer, "decoder": tokenizer}
    config |= {side: {**config[side], **special_ids(own)} for side, own in side_tokenizers.items() if side in config}
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    files = {
        "config.json": json_text({**config, **ids, **start, "dtype": dtype}),
        "tokenizer.json": tokenizer_json(tokenizer, model.spec) + "\n",
        "tokenizer_config.json": json_text(
            tokenizer_config(tokenizer, model.spec, has_chat_template=trained_model.chat_template is not None)
        ),
        "README.md": _card(trained_model, config["architectures"][0]),
    }
    if generation is not None:
        files["generation_config.json"] = json_text(generation)
    if trained_model.source_tokenizer is not tokenizer:
        files["source_tokenizer.json"] = tokenizer_json(trained_model.source_tokenizer, model.spec) + "\n"

    def write(folder: Path) -> None:
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
        if trained_model.chat_template is not None:
            write_chat_template(folder, trained_model.chat_template)
        write_tensors(folder / "model.safetensors", state)

    return write


def to_transformers(model: AnyModel) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of the equivalent model in `transformers`.

    Raises:
        UserError: If no class supports a feature of the model; the feature is named.
    """
    return _exporter(model.spec).model(model)


def transformers_support(spec: AnySpec) -> Support:
    """Return the features of a model with the values that `to_transformers` supports."""
    return _exporter(spec).support(spec)


class _Exporter(NamedTuple):
    support: Callable[[Any], Support]
    model: Callable[[Any], tuple[Plain, dict[str, Tensor]]]


def _exporter(spec: AnySpec) -> _Exporter:
    """Return the functions for the class of `transformers` that is nearest to a model."""
    if isinstance(spec, EncoderOnlySpec):
        if is_modernbert(spec):
            return _Exporter(modernbert_support, to_modernbert)
        if isinstance(spec.stack.position, Rotary) and spec.stack.placement != "post":
            return _Exporter(eurobert_support, to_eurobert)
        return _Exporter(distilbert_support, to_distilbert) if is_distilbert(spec) else _Exporter(bert_support, to_bert)
    if isinstance(spec, EncoderDecoderSpec):
        if is_t5(spec):
            return _Exporter(t5_support, to_t5)
        if is_t5gemma(spec):
            return _Exporter(t5gemma_support, to_t5gemma)
        return _Exporter(bart_support, to_bart) if is_bart(spec) else _Exporter(marian_support, to_marian)
    if is_neox(spec):
        return _Exporter(neox_support, to_neox)
    if is_opt(spec):
        return _Exporter(opt_support, to_opt)
    is_llama = isinstance(spec.stack.position, Rotary)
    return _Exporter(llama_support, to_llama) if is_llama else _Exporter(gpt2_support, to_gpt2)


def _card(trained_model: TrainedModel, architecture: str) -> str:
    spec = trained_model.model.spec
    text = trained_model.readme() or trained_model.card.to_markdown(spec, n_parameters=trained_model.n_parameters)
    if OPENING in text:
        return text
    lines = [
        f"from transformers import AutoTokenizer, {architecture}",
        "",
        f'model = {architecture}.from_pretrained("this_folder")',
        'tokenizer = AutoTokenizer.from_pretrained("this_folder")',
    ]
    words = ""
    if trained_model.source_tokenizer is not trained_model.tokenizer:
        shared = isinstance(spec, EncoderDecoderSpec) and spec.source_vocab_size is None
        vocabulary = "is split differently" if shared else "has its own vocabulary"
        pad = special_names(trained_model.source_tokenizer).get("pad")
        pad_token = "" if pad is None else f", pad_token={pad!r}"
        lines[0] += ", PreTrainedTokenizerFast"
        lines.append(
            'source_tokenizer = PreTrainedTokenizerFast(tokenizer_file="this_folder/source_tokenizer.json", '
            f"split_special_tokens=True{pad_token})"
        )
        words = f"\nThe source {vocabulary}, in source_tokenizer.json; the other tokenizer is the target's.\n"
    code = "\n".join(lines)
    return f"{text.rstrip()}\n\n{OPENING}\n\n```python\n{code}\n```\n{words}"

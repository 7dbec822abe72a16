"""Model folders: all files that are needed to use a model, each readable without Tercet.

    config.json             spec: sizes and variants              model.safetensors   weights; each tied one once
    tokenizer.json          format of the `tokenizers` library    README.md           card for people
    generation_config.json  end tokens and maximum length         card.json           card for programs
    source_tokenizer.json   if a translator's source has its own vocabulary
    chat_template.jinja     turns a conversation into a text, for models that were trained on conversations
    text_vectors.json       how an encoder computes the vector of a text, unless as usual (`sentence_settings.py`)
    manifest.json           size and hash of each file; on loading, all files except README.md are checked

An encoder does not generate text and has no generation_config.json. A source_tokenizer.json may also accompany a
vocabulary that both sides share: it then splits the source differently, into the same ids. A LoRA adapter is stored in
two files instead of model.safetensors (`adapter.py`), and is merged into the weights of its base model on loading.

Folders of the `transformers` library with a model and its tokenizer can be loaded directly if `READERS` contains their
model_type. GGUF files, and folders with one GGUF file, can be loaded as well; they contain both model and tokenizer.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.checkpoint.adapter import (
    Adapter,
    adapter_of,
    build_adapted_model,
    find_base,
    is_adapter,
    is_foreign_adapter,
    merge_adapter,
    read_adapter,
    write_adapter,
)
from tercet.checkpoint.card import Card, current_versions
from tercet.checkpoint.chat_template import read_chat_template, write_chat_template
from tercet.checkpoint.find_model import find_model
from tercet.checkpoint.foreign.config_keys import name_in_errors
from tercet.checkpoint.foreign.config_settings import check_folder, rename_keys
from tercet.checkpoint.foreign.export_files import generation_settings, json_text
from tercet.checkpoint.foreign.gguf_folder import load_gguf, read_gguf_card, read_gguf_spec
from tercet.checkpoint.foreign.peft_folder import import_adapter
from tercet.checkpoint.foreign.readers import READERS
from tercet.checkpoint.foreign.sentence_folder import read_sentence_settings
from tercet.checkpoint.foreign.state_dict import read_state_dict
from tercet.checkpoint.foreign.unsupported import UNSUPPORTED_TYPES
from tercet.checkpoint.hub import name_of_folder
from tercet.checkpoint.model_files import replace_model_folder
from tercet.checkpoint.sentence_settings import SentenceSettings, read_text_vectors, write_text_vectors
from tercet.checkpoint.trained_model import TrainedModel
from tercet.checkpoint.weights import check_described, check_weights, read_tensors, read_weights, write_weights
from tercet.config import Plain, UserError, parse, suggest, to_plain
from tercet.memory import keep_memory
from tercet.messages import shorten
from tercet.models import SPECS, AnyModel, AnySpec, EncoderDecoderSpec, EncoderOnly, EncoderOnlySpec, build, build_meta
from tercet.nn.lora import lora_layers
from tercet.reading.bounded_json import read_json_file
from tercet.storage import (
    Manifest,
    read_manifest,
    read_whole,
    write_atomically,
)
from tercet.tokens import Tokenizer
from tercet.tokens.foreign import load_tokenizers

EDITABLE_FILES = {"README.md"}  # may be changed after the model was written


def save_model(
    folder: Path | str,
    model: AnyModel,
    tokenizer: Tokenizer,
    card: Card,
    *,
    source_tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
    sentence: SentenceSettings | None = None,
    projection: nn.Sequential | None = None,
    readme: str | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model folder, replacing a previous one as a whole.

    For a model with an adapter, only the adapter is written. Its base model is in `pretrained/`, next to `folder`.

    Args:
        folder: Model folder; it is created if necessary. Files in it that are not part of a model are left unchanged.
        model: Model to write.
        tokenizer: Tokenizer of the model; for a translator, that of the target.
        card: Card, written without the folders of its paths and without metrics that are not finite (invalid in JSON).
        source_tokenizer: Tokenizer of a translator's source, if it is not the same as `tokenizer`.
        chat_template: Jinja template that turns a conversation into a text.
        sentence: Settings by which an encoder computes the vector of a text, if they are not the defaults.
        projection: Dense layers of these settings.
        readme: Content of README.md; by default it is generated from the card.
        state: Full tensors by name to write instead of the model's, as gathered from sharded training.

    Raises:
        UserError: If the disk is full or cannot be written to.
        TypeError: If the model is another module of PyTorch.
        ValueError: If tokenizers and model differ in their ids, or state, model and its spec in the names of tensors.
    """
    sizes = {name: item.vocab_size for name, item in _tokenizers(tokenizer, source_tokenizer).items()}
    if sizes != _sizes(_find_spec(model), separate_source=source_tokenizer is not None):
        raise ValueError(f"tokenizers have {sizes} ids, but the model has {_sizes(model.spec)}")
    if state is None and not lora_layers(model):
        check_described(model)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    metrics = {name: float(x) for name, x in card.metrics.items() if math.isfinite(x)}
    card = replace(card.remove_folders(), metrics=metrics)
    generates = not isinstance(model.spec, EncoderOnlySpec)
    texts = {
        "config.json": json_text({**to_plain(model.spec), "tercet_version": current_versions()["tercet"]}),
        **{name: item.to_json() for name, item in _tokenizers(tokenizer, source_tokenizer).items()},
        **({"generation_config.json": json_text(generation_settings(tokenizer))} if generates else {}),
        "card.json": json_text(to_plain(card)),
        "README.md": card.to_markdown(model.spec, n_parameters=n_parameters) if readme is None else readme,
    }
    with replace_model_folder(Path(folder)) as new:
        for name, text in texts.items():
            write_atomically(new / name, text.encode())
        if chat_template is not None:
            write_chat_template(new, chat_template)
        write_text_vectors(new, sentence or SentenceSettings(), projection)
        if lora_layers(model):
            write_adapter(new, adapter_of(model, state))
        else:
            write_weights(new / "model.safetensors", model, state)


def save_trained(trained_model: TrainedModel, folder: Path | str, *, readme: str | None = None) -> None:
    """Write a loaded model in Tercet's own format. `folder`, `readme` and errors are those of `save_model`."""
    save_model(
        folder,
        trained_model.model,
        trained_model.tokenizer,
        trained_model.card,
        source_tokenizer=trained_model.separate_source_tokenizer,
        chat_template=trained_model.chat_template,
        sentence=trained_model.sentence,
        projection=trained_model.projection,
        readme=readme,
    )


def load_model(path: Path | str) -> TrainedModel:
    """Load a model from its folder, from a run (best or else last model) or from a supported third-party format.

    Raises:
        UserError: If there is no model, or its files are damaged or do not match.
    """
    folder = find_model(Path(path))
    keep_memory()  # a loaded model is usually run next
    if folder.is_file():
        _check(folder.parent, read_manifest(folder.parent), [folder.name])
        return load_gguf(folder, Path(path))
    return read_whole(folder, lambda manifest: _load(folder, manifest))


def _load(folder: Path, manifest: Manifest | None) -> TrainedModel:
    _check(folder, manifest)
    if is_foreign_adapter(folder):
        return _load_foreign_adapter(folder)
    config = read_json_file(folder / "config.json")
    if _is_foreign(config):
        return _load_foreign(folder, config)
    spec = _spec(config, folder / "config.json")
    separate_source = isinstance(spec, EncoderDecoderSpec) and (folder / "source_tokenizer.json").is_file()
    tokenizers = {name: Tokenizer.load(folder / name) for name in _sizes(spec, separate_source=separate_source)}
    _check_sizes(folder, spec, tokenizers)
    tokenizer = _apply_saved_ids(tokenizers["tokenizer.json"], folder)
    source_tokenizer = tokenizers.get("source_tokenizer.json", tokenizer)
    card = _read_card(folder)
    if card.tokenizer_hash and card.tokenizer_hash != tokenizer_hash(tokenizer, source_tokenizer):
        raise UserError(
            f"{folder}: tokenizer.json is not the one that the model was trained with; "
            "put back the tokenizer.json that was saved with the model"
        )
    template = read_chat_template(folder)
    adapter = read_adapter(folder) if is_adapter(folder) else None
    if adapter is None:
        model = _build(folder, spec)
    else:
        model = build_adapted_model(load_model(_find_base(folder, adapter)).model, spec, adapter, folder)
    sentence, projection = _text_vectors(read_text_vectors, folder, model)
    return TrainedModel.wrap(
        model.eval(), tokenizer, source_tokenizer=source_tokenizer, card=card, chat_template=template, folder=folder,
        adapter=adapter, sentence=sentence, projection=projection,
    )  # fmt: skip


def _text_vectors(
    read: Callable[[Path, int], tuple[SentenceSettings, nn.Sequential | None]], folder: Path, model: AnyModel
) -> tuple[SentenceSettings | None, nn.Sequential | None]:
    return read(folder, model.spec.stack.d_model) if isinstance(model, EncoderOnly) else (None, None)


def _build(folder: Path, spec: AnySpec) -> AnyModel:
    try:
        with torch.random.fork_rng(devices=[]):  # building torch's own layers draws from the global generator
            # Check the weights before memory is allocated.
            n_tensors = len(read_tensors(folder / "model.safetensors"))
            check_weights(folder / "model.safetensors", build_meta(spec, n_tensors=n_tensors))
            model = build(spec)
    except ValueError as error:
        raise UserError(f"{folder / 'config.json'}: {error}") from None
    read_weights(folder / "model.safetensors", model)
    return model


def _load_foreign_adapter(folder: Path) -> TrainedModel:
    adapter = read_adapter(folder)
    base = load_model(_find_base(folder, adapter))
    config_path = base.folder / "config.json"  # a GGUF file has none
    config = read_json_file(config_path) if config_path.is_file() else {}
    native_adapter = import_adapter(adapter, base.model, folder, config)
    merge_adapter(base.model, native_adapter, folder)
    return replace(base, adapter=native_adapter, folder=folder, card=_adapter_card(folder, base.card))


def _adapter_card(folder: Path, base: Card) -> Card:
    """Return the card of a model with an adapter that `peft` wrote into `folder`."""
    return replace(base, name=folder.name)


def _find_base(folder: Path, adapter: Adapter) -> Path:
    path = find_base(folder, adapter)
    if is_adapter(find_model(path)):
        raise UserError(
            f"base model of the adapter in {folder} is itself an adapter: {path}; use a model without an adapter"
        )
    return path


def read_spec(path: Path | str) -> AnySpec:
    """Read the spec of the model that `load_model` would load, without building the model.

    For third-party formats, tensor names and a few tensors may also be read, such as embeddings that may be tied.

    Raises:
        UserError: If there is no model, or a file that is read is damaged.
    """
    folder = find_model(Path(path))
    if folder.is_file():
        return read_gguf_spec(folder)
    if is_foreign_adapter(folder):
        return read_spec(_find_base(folder, read_adapter(folder)))
    return read_whole(folder, lambda manifest: _read_spec(folder, manifest))


def read_card(path: Path | str) -> Card:
    """Read the card of the model that `load_model` would load, without loading the model.

    That of a third-party model only has a name, unless it is an adapter, which has the card of its base model.

    Raises:
        UserError: If there is no model, or one of the files in its folder does not match the manifest.
    """

    def read(manifest: Manifest | None) -> Card:
        _check(folder, manifest)
        if is_foreign_adapter(folder):
            return _adapter_card(folder, read_card(_find_base(folder, read_adapter(folder))))
        return (
            Card(name=name_of_folder(folder))
            if _is_foreign(read_json_file(folder / "config.json"))
            else _read_card(folder)
        )

    folder = find_model(Path(path))
    return read_gguf_card(folder) if folder.is_file() else read_whole(folder, read)


def _read_card(folder: Path) -> Card:
    path = folder / "card.json"
    return parse(Card, read_json_file(path), name=str(path)) if path.is_file() else Card(name=name_of_folder(folder))


def _read_spec(folder: Path, manifest: Manifest | None) -> AnySpec:
    _check(folder, manifest, ["config.json"])
    config = read_json_file(folder / "config.json")
    if not _is_foreign(config):
        return _spec(config, folder / "config.json")
    tokenizer, _ = load_tokenizers(folder, config)
    with name_in_errors(folder):
        reader = READERS[str(config["model_type"])]
        return reader.spec(rename_keys(config), read_state_dict(folder), n_ids=tokenizer.vocab_size)


def _check(folder: Path, manifest: Manifest | None, names: Iterable[str] | None = None) -> None:
    """Compare files (default: all but README.md) with the manifest. A folder without a manifest is not checked."""
    if manifest is not None:
        manifest.check(
            folder, [name for name in manifest.files if name not in EDITABLE_FILES] if names is None else names
        )


def _is_foreign(config: Plain) -> bool:
    kind = config.get("model_type")
    return "family" not in config and isinstance(kind, str) and kind in READERS


def _load_foreign(folder: Path, config: Plain) -> TrainedModel:
    tokenizer, source_tokenizer = load_tokenizers(folder, config)
    check_folder(folder, config, silent_ids={*tokenizer.special_ids, tokenizer.pad_id, tokenizer.unk_id} - {None})
    template = read_chat_template(folder)
    state = read_state_dict(folder)
    with name_in_errors(folder):
        model = READERS[str(config["model_type"])].model(rename_keys(config), state, n_ids=tokenizer.vocab_size)
    separate_source_tokenizer = None if source_tokenizer is tokenizer else source_tokenizer
    _check_sizes(folder, model.spec, _tokenizers(tokenizer, separate_source_tokenizer))
    sentence, projection = _text_vectors(read_sentence_settings, folder, model)
    return TrainedModel.wrap(
        model,
        tokenizer,
        source_tokenizer=separate_source_tokenizer,
        sentence=sentence,
        projection=projection,
        card=Card(name=name_of_folder(folder)),
        chat_template=template,
        folder=folder,
    )


def _apply_saved_ids(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """Return the tokenizer with the special ids of generation_config.json; a token's name can be ambiguous."""
    path = folder / "generation_config.json"
    settings = read_json_file(path) if path.is_file() else {}
    ids = {f"{role}_id": settings.get(f"{role}_token_id") for role in ("bos", "eos", "pad", "forced_bos")}
    other_end_ids = list[Any]()
    if isinstance(ids["eos_id"], list) and ids["eos_id"]:
        ids["eos_id"], *other_end_ids = cast("list[Any]", ids["eos_id"])
    if any(type(number) is not int for number in (*filter(None, ids.values()), *other_end_ids)):
        raise UserError(f"{path}: the ids of bos, eos and pad must be whole numbers; put back the file that was saved")
    try:
        return tokenizer.with_ids(**ids).with_other_end_ids(other_end_ids)
    except ValueError as error:
        raise UserError(f"{path}: {error}; put back the file that was saved") from None


def tokenizer_hash(tokenizer: Tokenizer, source_tokenizer: Tokenizer) -> str:
    """Return the `tokenizer_hash` of a card: one hash if both tokenizers are equal, else both with a space between."""
    return " ".join(dict.fromkeys((tokenizer.hash, source_tokenizer.hash)))


def _spec(config: Plain, path: Path) -> AnySpec:
    if "family" not in config:
        supported, kind = ", ".join(map(repr, sorted(READERS))), config.get("model_type")
        missing_part = UNSUPPORTED_TYPES.get(kind) if isinstance(kind, str) else None
        description = "no family and no model_type" if kind is None else f"a model of type {shorten(repr(kind))}"
        reason = "" if missing_part is None else f" with {missing_part}, which Tercet does not support"
        raise UserError(
            f"{path} has {description}{reason}; Tercet opens its own folders and those of model_type {supported}"
        )
    family = str(config["family"])
    if family not in SPECS:
        raise UserError(f"{path}: unknown family {family!r}{suggest(family, SPECS)}")
    keys = {key: value for key, value in config.items() if key != "tercet_version"}
    return parse(SPECS[family], keys, name=str(path))


def _check_sizes(folder: Path, spec: AnySpec, tokenizers: Mapping[str, Tokenizer]) -> None:
    for name, size in _sizes(spec, separate_source="source_tokenizer.json" in tokenizers).items():
        if name not in tokenizers:
            raise UserError(
                f"{folder}: missing {name}, the source tokenizer with {size} ids; put back that of the model"
            )
        if tokenizers[name].vocab_size != size:
            raise UserError(
                f"{folder}: {name} has {tokenizers[name].vocab_size} ids, but config.json requires {size}; "
                f"put back the {name} that was saved with the model"
            )


def _find_spec(model: AnyModel) -> AnySpec:
    if isinstance(spec := getattr(model, "spec", None), AnySpec):
        return spec
    raise TypeError(f"a {type(model).__name__} has no spec; pass the result of tercet.models.build, or use torch.save")


def _sizes(spec: AnySpec, *, separate_source: bool = False) -> dict[str, int]:
    """Return the number of ids of each tokenizer file. With `separate_source`, a shared vocabulary has two files."""
    sizes = {"tokenizer.json": spec.vocab_size}
    if isinstance(spec, EncoderDecoderSpec) and (separate_source or spec.source_vocab_size is not None):
        source_size = spec.source_vocab_size
        sizes["source_tokenizer.json"] = spec.vocab_size if source_size is None else source_size
    return sizes


def _tokenizers(tokenizer: Tokenizer, source_tokenizer: Tokenizer | None) -> dict[str, Tokenizer]:
    source = {} if source_tokenizer is None else {"source_tokenizer.json": source_tokenizer}
    return {"tokenizer.json": tokenizer, **source}

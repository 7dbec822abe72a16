"""Settings of a recipe that depend on its data, and their treatment if the caller passes other data.

Each key of `data` and of `task` is in one of three tables; a test checks this for all specs and all packaged recipes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tercet.config import Plain, find_differences
from tercet.custom_code import is_import_path
from tercet.data.shards.find_prepared import may_be_prepared
from tercet.messages import show

REQUIRED = "???"  # the value of a setting that the caller must set; the marker that OmegaConf uses
REPLACED_KEYS = {  # replaced by the caller's value, or by the default, which works for any data
    "data.target": "the translations of the source",
    "data.source_language": "a column of the recipe's data, and the language of its sentences",
    "data.target_language": "as source_language",
    "data.validation": "a held-out source; rules that split any data are kept",
    "data.tokenizer.alphabet": "the characters of the recipe's text",
    "data.source_tokenizer.alphabet": "as data.tokenizer.alphabet",
    "task.sample_prompt": "a prompt from the recipe's text",
}
KEPT_KEYS = {  # kept although chosen for the recipe's data; reported to the caller
    "data.tokenizer.vocab_size": "a larger corpus justifies a larger vocabulary",
    "data.tokenizer.min_count": "as vocab_size",
    "data.tokenizer.eos_id": "how the token ids of the recipe's data were encoded",
    "data.source_tokenizer.vocab_size": "as data.tokenizer.vocab_size",
    "data.source_tokenizer.min_count": "as data.tokenizer.vocab_size",
    "data.source_tokenizer.eos_id": "as data.tokenizer.eos_id",
    "data.mixture": "additional data that is mixed into each step",
    "task.validation_sentences": "0 if the recipe's sentences are too short for BLEU",
}
GENERAL_KEYS = {  # kept; valid for any data of the same kind
    "data.source": "the data itself",
    **dict.fromkeys(
        ("data.encoding", "data.text_field", "data.documents", "data.dtype", "data.sequence_case",
         "data.sequence_ambiguous", "data.sequence_errors", "data.label_field", "data.label_pattern",
         "data.group_field", "data.group_pattern",
         "data.label_fields", "data.label_separator", "data.messages_field", "data.prompt_field",
         "data.response_field", "data.pair_field", "data.query_field", "data.document_field", "data.negative_field"),
        "how files are read; a file without such a key or column is rejected",
    ),
    **dict.fromkeys(("data.over", "data.problem_type"), "the kind of labels; other kinds are rejected"),
    "data.negatives": "the objective: data without labels",
    **dict.fromkeys(("data.chat_template", "data.rows", "data.source_bos"), "how the model reads its data"),
    **dict.fromkeys(
        (f"data.{side}.{key}" for side in ("tokenizer", "source_tokenizer")
         for key in ("kind", "byte_fallback", "eos", "pad", "bos", "mask", "prefix_space", "lowercase", "k", "path")),
        "a tokenization of any text",
    ),
    "data.reverse_complement": "augmentation of DNA and RNA; other data is rejected",
    "data.shard_group": "memory",
    **dict.fromkeys(
        ("task.kind", "task.objective", "task.masking", "task.pooling", "task.temperature", "task.sizes"),
        "the objective",
    ),
    "task.best_by": "the metric of the best model",
    **dict.fromkeys(
        ("task.batch_size", "task.micro_batch_size", "task.batch_tokens", "task.micro_batch_tokens", "task.max_len"),
        "rows or tokens per step",
    ),
    **dict.fromkeys(
        ("task.validation_tokens", "task.sample_tokens", "task.sample_sentences", "task.sample_texts",
         "task.sample_conversations"),
        "time for validation and samples",
    ),
}  # fmt: skip


def replace_data(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """Return the settings of a recipe without those that do not fit the data in `changes`.

    If `changes` set another `data.source`, `REPLACED_KEYS` are removed, with two exceptions: validation rules that
    apply to any data are kept, and so are the languages if they are needed to read the other data. A recipe that
    validates on its training data then validates on the other data. With the same source, the settings are returned
    unchanged.

    Args:
        settings: Unparsed settings of the recipe.
        changes: Changes of the caller, as nested mappings.
    """
    recipe_data, new_data = _data_settings(settings), _data_settings(changes)
    if recipe_data.get("source") in (None, REQUIRED) or new_data.get("source") in (None, recipe_data["source"]):
        return dict(settings)
    languages = () if _needs_languages(recipe_data, new_data) else ("source_language", "target_language")
    removed_keys = ["target", *languages]
    data = {key: value for key, value in recipe_data.items() if key not in removed_keys}
    validation = data.get("validation")
    if isinstance(validation, Mapping) and validation.get("kind") == "held_out":
        del data["validation"]
        if all(validation.get(key) == recipe_data.get(key) for key in ("source", "target")):
            data["validation"] = {
                **validation,
                **{key: new_data[key] for key in ("source", "target") if key in new_data},
            }
    for key in ("tokenizer", "source_tokenizer"):
        if isinstance(tokenizer := data.get(key), Mapping):
            data[key] = {name: value for name, value in tokenizer.items() if name != "alphabet"}
    result = {**settings, "data": data}
    if isinstance(task := settings.get("task"), Mapping):
        result["task"] = {key: value for key, value in task.items() if key != "sample_prompt"}
    return result


def describe_other_data(settings: Plain, changes: Mapping[str, Any], *, tokenizer: bool = True) -> str | None:
    """Describe the effects of other data in `changes` on the settings of a recipe.

    The description lists the settings that are replaced, and those that are kept although they were chosen for the
    recipe's own data.

    Args:
        settings: Unparsed settings of the recipe.
        changes: Changes of the caller, as nested mappings.
        tokenizer: If False, omit kept tokenizer settings, because the recipe's tokenizer is not used.

    Returns:
        One line, or None if the data is not replaced or neither list has an entry.
    """
    recipe_source, new_source = _data_settings(settings).get("source"), _data_settings(changes).get("source")
    if recipe_source in (None, REQUIRED) or new_source in (None, recipe_source):
        return None
    new_settings = replace_data(settings, changes)
    parts = [
        line
        for key in REPLACED_KEYS
        if _find(changes, key) is None
        for line in find_differences(_find(settings, key), _find(new_settings, key), key)
    ]
    kind = _tokenizer_kind(changes)
    tokenizer = tokenizer and kind in (None, _tokenizer_kind(new_settings))  # settings of another kind are not kept
    kept_settings = [
        f"{key}={show(value)}"
        for key in KEPT_KEYS
        if (value := _find(new_settings, key)) is not None and _find(changes, key) is None
        if tokenizer or "tokenizer" not in key
    ]
    parts += [f"unchanged: {', '.join(kept_settings)}"] if kept_settings else []
    old, new = (source.get("kind") if isinstance(source, Mapping) else source for source in (recipe_source, new_source))
    return f"{new} replaces {old}: {'; '.join(parts)}" if parts else None


def _data_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    data = settings.get("data")
    return data if isinstance(data, Mapping) else {}


def _needs_languages(recipe_data: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Return whether the languages of the recipe are needed to read sentence pairs of other data.

    They are the direction of a named dataset, and may be the keys of a JSONL file. All other pairs are a source and a
    target by default: two parallel files, the columns of a table, datasets of other packages, and JSONL files with the
    keys "source" and "target".
    """
    from tercet.data.datasets.recognize import read_fields
    from tercet.data.sources.tables import TABLE_SUFFIXES, uncompressed_suffix

    source, languages = data["source"], {recipe_data.get("source_language"), recipe_data.get("target_language")}
    if languages == {None}:
        return False
    if data.get("target") is not None or isinstance(source, Mapping) or is_import_path(str(source)):
        return False
    path = Path(str(source))
    if uncompressed_suffix(path) in TABLE_SUFFIXES:
        return False
    fields = {*read_fields(path, data.get("encoding", "utf-8"))} if path.is_file() else set[str]()
    return not {"source", "target"} <= fields or languages <= fields


def _tokenizer_kind(settings: Mapping[str, Any]) -> Any:
    """Return the kind of tokenizer that settings select, or None if they select none."""
    tokenizer = _data_settings(settings).get("tokenizer")
    return tokenizer.get("kind") if isinstance(tokenizer, Mapping) else tokenizer


def _find(settings: Any, path: str) -> Any:
    for key in path.split("."):
        settings = settings.get(key) if isinstance(settings, Mapping) else None
    return settings


def describe_tail(data: object) -> str | None:
    """Return a message if the validation part of text is the end of a folder, such as its last files; else None.

    Args:
        data: The `data` settings of a recipe.
    """
    from tercet.data.datasets.text_datasets import DATASETS
    from tercet.data.specs import TextSpec
    from tercet.data.split_specs import Tail

    if not isinstance(data, TextSpec) or not isinstance(data.validation, Tail) or may_be_prepared(data.source):
        return None
    if not isinstance(data.source, str):  # a dataset of another package
        return None
    try:
        is_folder = Path(data.source).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        return None  # reading it as text raises the error
    if data.source in DATASETS or not is_folder:
        return None
    return (
        f"the validation part is the end of the folder {show(data.source)}, sorted by path; to draw it over documents, "
        "pass --set data.validation.kind=documents"
    )

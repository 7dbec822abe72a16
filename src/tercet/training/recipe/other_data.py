"""Settings of a recipe that belong to its data, and what becomes of them if other data takes its place.

Each key of `data` and of a task is in one of three lists; a test goes through all specs and all packaged recipes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tercet.config import Plain, find_differences
from tercet.messages import show

REQUIRED = "???"  # stands for a setting that the caller has to give; the mark that OmegaConf has for it
REPLACED_KEYS = {  # by the caller's own value, or by the default, which suits any data
    "data.target": "the translations of the source",
    "data.source_language": "a column of the recipe's data, and the language of its sentences",
    "data.target_language": "as source_language",
    "data.validation": "a held-out source; rules that divide any data stay",
    "data.tokenizer.alphabet": "the characters of the recipe's text",
    "data.source_tokenizer.alphabet": "as data.tokenizer.alphabet",
    "task.sample_prompt": "a beginning that the recipe's text has",
}
KEPT_KEYS = {  # in use, although chosen for the recipe's data: reported
    "data.tokenizer.vocab_size": "more text is worth a larger vocabulary",
    "data.tokenizer.min_count": "as vocab_size",
    "data.tokenizer.eos_id": "how the ids of the recipe's data were made",
    "data.source_tokenizer.vocab_size": "as data.tokenizer.vocab_size",
    "data.source_tokenizer.min_count": "as data.tokenizer.vocab_size",
    "data.source_tokenizer.eos_id": "as data.tokenizer.eos_id",
    "data.mixture": "other data, of which each step has a share",
    "task.validation_sentences": "0 if the recipe's sentences are too short for BLEU",
}
GENERAL_KEYS = {  # data of the same kind
    "data.source": "the data itself",
    **dict.fromkeys(
        ("data.encoding", "data.text_field", "data.documents", "data.dtype", "data.sequence_case", "data.label_field",
         "data.label_fields", "data.label_separator", "data.messages_field", "data.prompt_field",
         "data.response_field"),
        "how files are read; a file without such a key or column is rejected",
    ),
    **dict.fromkeys(("data.over", "data.problem_type"), "the kind of labels; others are rejected"),
    **dict.fromkeys(("data.chat_template", "data.rows", "data.source_bos"), "how the model reads its data"),
    **dict.fromkeys(
        (f"data.{side}.{key}" for side in ("tokenizer", "source_tokenizer")
         for key in ("kind", "byte_fallback", "eos", "pad", "bos", "mask", "prefix_space", "lowercase", "k", "path")),
        "a way to cut any text",
    ),
    "data.shard_group": "memory",
    **dict.fromkeys(("task.kind", "task.masking"), "the objective"),
    "task.best_by": "what makes a model better",
    **dict.fromkeys(
        ("task.batch_size", "task.micro_batch_size", "task.batch_tokens", "task.micro_batch_tokens"),
        "rows or tokens of a step",
    ),
    **dict.fromkeys(
        ("task.validation_tokens", "task.sample_tokens", "task.sample_sentences", "task.sample_texts",
         "task.sample_conversations"),
        "time for validation and samples",
    ),
}  # fmt: skip


def replace_data(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """Return a recipe's settings without those in `REPLACED_KEYS`, if `changes` name another source of data.

    A recipe that validates on what it trains on does so with the other data, too.
    """
    recipe_data, new_data = _data_settings(settings), _data_settings(changes)
    if recipe_data.get("source") in (None, REQUIRED) or new_data.get("source") in (None, recipe_data["source"]):
        return dict(settings)
    removed_keys = ["target", *(() if _has_columns(new_data) else ("source_language", "target_language"))]
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
    """Return what other data in `changes` replaces in a recipe's settings, and what stays although it was chosen for
    the recipe's data; None if that is nothing.

    Args:
        tokenizer: If False, the tokenizer of the recipe is not used.
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
    kept_settings = [
        f"{key}={show(value)}"
        for key in KEPT_KEYS
        if (value := _find(new_settings, key)) is not None and _find(changes, key) is None
        if tokenizer or "tokenizer" not in key
    ]
    parts += [f"kept as they are: {', '.join(kept_settings)}"] if kept_settings else []
    return f"{new_source} takes the place of {recipe_source}: {'; '.join(parts)}" if parts else None


def _data_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    data = settings.get("data")
    return data if isinstance(data, Mapping) else {}


def _has_columns(data: Mapping[str, Any]) -> bool:
    """Return whether the languages are needed to read pairs: as the keys of JSONL or the direction of a named dataset.

    Two files are in any languages, and the columns of a table are source and target by default.
    """
    from tercet.data.sources.tables import TABLE_SUFFIXES, uncompressed_suffix

    return data.get("target") is None and uncompressed_suffix(Path(str(data["source"]))) not in TABLE_SUFFIXES


def _find(settings: Any, path: str) -> Any:
    for key in path.split("."):
        settings = settings.get(key) if isinstance(settings, Mapping) else None
    return settings

"""Settings of Sentence-Transformers for the vector of a text; each key is used, irrelevant or rejected.

modules.json                        the steps: Transformer, Pooling, Normalize; Dense and others are rejected
1_Pooling/config.json               pooling: how the hidden states become one vector
sentence_bert_config.json           maximum number of tokens
config_sentence_transformers.json   prompts; a default prompt, which is put before every text, is rejected
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tercet.checkpoint.foreign.config_keys import is_any_of
from tercet.config import UserError
from tercet.limits import MAX_SETTINGS_BYTES
from tercet.messages import show
from tercet.nn.specs import Pooling
from tercet.reading.bounded_json import parse_json, read_json_file
from tercet.reading.files import read_text_file

MODULES = "modules.json"
LENGTH_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
MAX_LEN = 1 << 30  # tokens; this or a larger value means no limit, such as 1e30 in a tokenizer_config.json
HIDDEN_STATE_OUTPUT = {"method": "forward", "method_output_name": "last_hidden_state"}
OFF = (None, False, "", {}, [])
POOLINGS: dict[str, Pooling] = {"cls": "first", "cls_token": "first", "mean": "mean", "mean_tokens": "mean"}
# By kind of file: keys that Tercet reads, keys without effect on vectors, and other keys with their supported values.
USED = {
    MODULES: ("type", "path"),
    "pooling": ("pooling_mode", "pooling_mode_cls_token", "pooling_mode_mean_tokens"),
    "length": ("max_seq_length",),
    "prompts": ("default_prompt_name", "prompts"),
}
IRRELEVANT = {
    MODULES: ("idx", "name", "kwargs"),  # kwargs: arguments of encode() for a step
    "pooling": ("word_embedding_dimension", "embedding_dimension", "include_prompt"),  # there is never a prompt
    "length": ("unpad_inputs",),
    "prompts": ("__version__", "similarity_fn_name", "model_type"),
}
REQUIRED_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    MODULES: {},
    "pooling": {
        f"pooling_mode_{name}": OFF
        for name in ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    },
    "length": {
        "do_lower_case": OFF, "transformer_task": ("feature-extraction", None), "model_args": OFF,
        "tokenizer_args": OFF, "config_args": OFF, "module_output_name": ("token_embeddings", None),
        "modality_config": (None, {"text": HIDDEN_STATE_OUTPUT}), "processing_kwargs": OFF, "query_length": OFF,
        "document_length": OFF, "query_expansion": OFF,
    },
    "prompts": {"truncate_dim": OFF},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SentenceSettings:
    """Settings by which the hidden states of a text become one vector.

    Attributes:
        pooling: "mean" for the mean of the hidden states of all tokens, or "first" for that of the first token.
        max_len: Maximum number of tokens of a text; None for the model's maximum.
    """

    pooling: Pooling = "mean"
    max_len: int | None = None


def read_sentence_settings(folder: Path) -> SentenceSettings:
    """Read the settings of a folder of an encoder; return the defaults if it has no `modules.json`.

    Raises:
        UserError: If a file is damaged or a setting is not supported; the message contains the file.
    """
    path = folder / MODULES
    if not path.is_file():
        return SentenceSettings()
    pooling: Pooling | None = None
    for number, module in enumerate(_read_modules(path)):
        _check_keys(module, MODULES, path)
        kind = str(module.get("type")).rpartition(".")[2]
        expected = ("Transformer", "Pooling", "Normalize")[min(number, 2)]
        if kind != expected or (kind == "Transformer" and module.get("path")):
            raise UserError(
                f"{path}: step {number + 1} is {show(kind)} in {show(module.get('path'))}; "
                "supported steps: Transformer, Pooling, Normalize"
            )
        if kind == "Pooling":
            pooling = _read_pooling(folder / str(module.get("path")) / "config.json", folder)
    if pooling is None:
        raise UserError(f"{path} has no Pooling step, so a text has no vector")
    _check_prompts(folder / "config_sentence_transformers.json")
    return SentenceSettings(pooling=pooling, max_len=_read_length(folder))


def _read_modules(path: Path) -> list[Mapping[str, Any]]:
    try:
        modules = parse_json(read_text_file(path, MAX_SETTINGS_BYTES))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}; copy it again") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in cast("list[Any]", modules)):
        raise UserError(f"{path} is not a list of steps; copy it again")
    return cast("list[Mapping[str, Any]]", modules)


def _read_pooling(path: Path, folder: Path) -> Pooling:
    if folder.resolve() not in path.resolve().parents:
        raise UserError(f"{folder / MODULES}: the path of Pooling leads out of the folder; copy it again")
    config = read_json_file(path)
    _check_keys(config, "pooling", path)
    modes = {name.removeprefix("pooling_mode_") for name in USED["pooling"][1:] if config.get(name) is True}
    modes |= {config["pooling_mode"]} if isinstance(config.get("pooling_mode"), str) else set()
    poolings: list[Pooling] = [kind for name, kind in POOLINGS.items() if name in modes]
    if (
        len({*poolings}) != 1
        or not modes <= POOLINGS.keys()
        or not isinstance(config.get("pooling_mode", ""), str | None)
    ):
        requested = config.get("pooling_mode") or sorted(modes)
        raise UserError(f"{path}: the pooling is {show(requested)}; supported: mean and first token")
    return poolings[0]


def _read_length(folder: Path) -> int | None:
    for name in (*LENGTH_FILES, "tokenizer_config.json"):
        path = folder / name
        config = read_json_file(path) if path.is_file() else {}
        if name in LENGTH_FILES:
            _check_keys(config, "length", path)
        length = config.get("max_seq_length" if name in LENGTH_FILES else "model_max_length")
        if length is not None and (isinstance(length, bool) or not isinstance(length, int | float) or length < 3):
            raise UserError(f"{path}: the maximum length is {show(length)} tokens; it must be a number of at least 3")
        if length is not None:
            return int(length) if length < MAX_LEN else None
    return None


def _check_prompts(path: Path) -> None:
    """Reject a default prompt, unless it is empty. Other prompts are optional and have no effect."""
    config = read_json_file(path) if path.is_file() else {}
    _check_keys(config, "prompts", path)
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    if name is not None and (not isinstance(prompts, dict) or cast("dict[str, Any]", prompts).get(str(name)) != ""):
        raise UserError(
            f"{path}: default_prompt_name is {show(name)}, but Tercet does not support default prompts; "
            "set it to null and write the prompt into the texts"
        )


def _check_keys(config: Mapping[str, Any], file: str, path: Path) -> None:
    for key, value in config.items():
        if key in USED[file] or key in IRRELEVANT[file]:
            continue
        if not is_any_of(value, REQUIRED_VALUES[file].get(key, OFF)):
            problem = "which Tercet does not support" if key in REQUIRED_VALUES[file] else "an unknown key"
            raise UserError(f"{path}: {key} is {show(value)}, {problem}")

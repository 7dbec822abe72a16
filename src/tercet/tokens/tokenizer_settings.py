"""The keys of tokenizer_config.json, special_tokens_map.json and added_tokens.json.

If they contradict the tokenizer.json of their folder, `transformers` follows them. Tercet applies the flags of BERT's
and GPT-2's own classes in the same way. All other differences are errors that name the key or the token. A key that is
not listed here is ignored and reported, unless it is off (null, false, 0 or empty) or names a token.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from tercet.config import UserError
from tercet.limits import MAX_VOCABULARY_BYTES
from tercet.messages import print_note, show
from tercet.reading.bounded_json import read_json_file
from tercet.tokens.tokenizer import Tokenizer

CONFIG, SPECIAL_MAP, ADDED_TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
# By class, or by model_type if there is no class.
WORDPIECE = (
    "BertTokenizer",
    "BertTokenizerFast",
    "DistilBertTokenizer",
    "DistilBertTokenizerFast",
    "bert",
    "distilbert",
)
BYTES = ("GPT2Tokenizer", "GPT2TokenizerFast", "RobertaTokenizer", "RobertaTokenizerFast", "gpt2", "roberta")
WORDPIECE_FLAGS = {"do_lower_case": "lowercase", "strip_accents": "strip_accents",
                   "tokenize_chinese_chars": "handle_chinese_chars"}  # fmt: skip
DEFAULTS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
STRIPS = ("lstrip", "rstrip", "single_word")
USED = (
    *DEFAULTS, "add_prefix_space", "tokenizer_class", "chat_template", "bos_token", "eos_token", "pad_token",
    "unk_token", "mask_token", "cls_token", "sep_token", "added_tokens_decoder", "additional_special_tokens",
    "extra_special_tokens", "separate_vocabs", "model_max_length", "max_len", "add_bos_token",
)  # fmt: skip
IRRELEVANT = {
    "add_eos_token": "ignored with a tokenizer.json, whose post-processor adds it",
    **dict.fromkeys(
        ("padding_side", "truncation_side", "model_input_names", "pad_token_type_id", "pad_to_multiple_of",
         "max_length", "stride", "truncation_strategy", "truncation", "padding", "verbose", "return_tensors"),
        "padding and truncation of batches",
    ),
    **dict.fromkeys(
        ("clean_up_tokenization_spaces", "errors", "spaces_between_special_tokens",
         "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
        "display of decoded text",
    ),
    "split_special_tokens": "text that spells a special token is always text",
    **dict.fromkeys(
        ("name_or_path", "processor_class", "tokenizer_file", "special_tokens_map_file", "init_inputs", "backend",
         "is_local", "local_files_only", "files_loaded", "from_slow", "use_fast", "slow_tokenizer_class", "device_map",
         "vocab_file", "target_vocab_file", "merges_file", "source_spm", "target_spm", "vocab", "merges",
         "transformers_version"),
        "file and program names",
    ),
    **dict.fromkeys(("source_lang", "target_lang", "language"), "names of languages"),
    **dict.fromkeys(
        ("do_basic_tokenize", "never_split", "legacy", "sp_model_kwargs", "trim_offsets", "extra_ids",
         "use_default_system_prompt", "add_dummy_prefix_space", "unk_id", "byte_fallback"),
        "conversion of older files to a tokenizer.json",
    ),
    **dict.fromkeys(
        ("response_template", "response_schema", "chat_control_tokens"), "parsing of chat answers"
    ),
}  # fmt: skip
SAVE = "save it with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
OFF: tuple[Any, ...] = (None, False, 0, "", [], {})


def apply_settings(tokenizer: Tokenizer, folder: Path, model_type: str) -> Tokenizer:
    """Return the tokenizer with the changes that `transformers` makes because of the other files.

    Args:
        tokenizer: Tokenizer of the tokenizer.json.
        folder: Folder with the other files.
        model_type: Model type in config.json, used if no file names the tokenizer's class.

    Raises:
        UserError: If the files describe a tokenizer that Tercet does not support; the key or token is named.
    """
    if not any((folder / name).is_file() for name in (CONFIG, SPECIAL_MAP, ADDED_TOKENS)):
        return tokenizer
    path = folder / CONFIG
    settings = _read(path)
    known_keys = {*USED, *IRRELEVANT}
    if unknown := [key for key, value in settings.items() if key not in known_keys and not _is_off(key, value)]:
        print_note(f"tercet: {path}: unsupported keys are ignored: {', '.join(map(show, unknown))}")
    structure = json.loads(tokenizer.to_json())
    _check_added(structure, folder, settings)
    kind = str(settings.get("tokenizer_class") or model_type) if settings else ""
    normalizer, splitter = structure["normalizer"] or {}, structure["pre_tokenizer"] or {}
    previous = json.dumps([normalizer, splitter])
    if kind in WORDPIECE and normalizer.get("type") == "BertNormalizer":
        flags = {flag: settings.get(key, DEFAULTS[key]) for key, flag in WORDPIECE_FLAGS.items()}
        normalizer.update(flags, clean_text=True)
    elif kind in BYTES and splitter.get("type") == "ByteLevel":
        splitter["add_prefix_space"] = settings.get("add_prefix_space") is True
    elif isinstance(adds_space := settings.get("add_prefix_space"), bool) and adds_space != tokenizer.adds_prefix:
        problem = "adds a space before texts" if tokenizer.adds_prefix else "adds no space before texts"
        raise UserError(f"{path}: add_prefix_space is {str(adds_space).lower()}, but tokenizer.json {problem}; {SAVE}")
    is_same = previous == json.dumps([normalizer, splitter])
    return tokenizer if is_same else Tokenizer.from_json(json.dumps(structure))


def _is_off(key: str, value: Any) -> bool:
    """Return whether a key has no effect, such as image_token, whose token the model never writes."""
    return any(type(value) is type(off) and value == off for off in OFF) or key.endswith("_token")


def _check_added(structure: Mapping[str, Any], folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise UserError if another file has a token that tokenizer.json lacks or defines differently."""
    tokens_by_name = {token["content"]: token for token in structure["added_tokens"]}
    vocabulary = structure["model"].get("vocab", {})
    names = set(vocabulary) if isinstance(vocabulary, dict) else {piece[0] for piece in vocabulary}
    for path, number, token in _list_tokens(folder, settings):
        name, json_token = str(token.get("content")), tokens_by_name.get(str(token.get("content")))
        if json_token is None and (number is not None or name not in names):
            raise UserError(f"{path} has the token {show(name)}, which tokenizer.json does not have; {SAVE}")
        differs = (
            [] if json_token is None else [key for key in STRIPS if token.get(key, json_token[key]) != json_token[key]]
        )
        if json_token is not None and number is not None and number != json_token["id"]:
            differs = ["id"]
        if differs:
            raise UserError(f"{path} has the token {show(name)} with another {differs[0]} than tokenizer.json; {SAVE}")


def _list_tokens(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[Path, int | None, Mapping[str, Any]]]:
    """Yield each token that another file lists: the file, the id or None, and the token's text and flags."""
    decoder: Any = settings.get("added_tokens_decoder")
    for number, token in cast("dict[str, Any]", decoder).items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and number.isdecimal():
            yield folder / CONFIG, int(number), cast("dict[str, Any]", token)
    for name, number in _read(folder / ADDED_TOKENS).items():
        if type(number) is int:
            yield folder / ADDED_TOKENS, number, {"content": name}
    for file, values in ((CONFIG, settings), (SPECIAL_MAP, _read(folder / SPECIAL_MAP))):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            entries: Any = values.get(key)
            tokens = list(cast("dict[str, Any]", entries).values()) if isinstance(entries, dict) else entries
            for token in cast("list[Any]", tokens) if isinstance(tokens, list) else []:
                yield (
                    folder / file,
                    None,
                    cast("dict[str, Any]", token) if isinstance(token, dict) else {"content": token},
                )


def _read(path: Path) -> dict[str, Any]:
    return read_json_file(path, MAX_VOCABULARY_BYTES) if path.is_file() else {}

"""Tokenizers of folders that `transformers` wrote, in any of the supported file formats (`forms.py`).

A `tokenizer.json` does not contain which tokens begin and end a text. These are, in order of preference: the token that
the settings name, a token of the vocabulary with a usual name, the id in the settings. The bos of a translation model
is its `decoder_start_token_id`, which for Marian is the padding token. A generated text ends with any of the ids in the
settings (`eos_token_id` may be a list), or with the token that ends a document.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken

from tercet.config import UserError
from tercet.limits import MAX_VOCABULARY_BYTES
from tercet.reading.bounded_json import read_json_file
from tercet.tokens.forms import FORMS
from tercet.tokens.gpt2 import from_files
from tercet.tokens.opening import read_frame
from tercet.tokens.sentencepiece import build_unigram, read_pieces
from tercet.tokens.structure import library_errors
from tercet.tokens.tokenizer import Tokenizer
from tercet.tokens.tokenizer_settings import apply_settings

ROLES = ("bos", "eos", "pad")
DEFAULT_STARTS = {"bart": 2}  # decoder_start_token_id in transformers by model_type, if config.json has none
OTHER_SPLITTERS = ("qwen", "llama", "mistral", "gemma")  # may have GPT-2's two files but split text differently
ROBERTA = (*(AddedToken(name, special=True) for name in ("<s>", "<pad>", "</s>", "<unk>")),
           AddedToken("<mask>", special=True, lstrip=True))  # fmt: skip


def load_tokenizers(folder: Path, config: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Load the target and the source tokenizer of a folder, which are the same object unless it contains two.

    Args:
        folder: Model folder.
        config: Content of its config.json.

    Raises:
        UserError: If files are missing, damaged or do not match.
    """
    if all((folder / name).is_file() for name in FORMS[2]):
        tokenizer, source = _load_sentencepiece(folder)
    elif (folder / "tokenizer.json").is_file() or not all((folder / name).is_file() for name in FORMS[1]):
        file_tokenizer = Tokenizer.load(folder / "tokenizer.json")
        tokenizer = apply_settings(file_tokenizer, folder, str(config.get("model_type", "")))
        source_path = folder / "source_tokenizer.json"
        source = Tokenizer.load(source_path) if source_path.is_file() else tokenizer
    else:
        tokenizer = source = _load_gpt2(folder, config)
    generation, kind = _read_settings(folder / "generation_config.json"), str(config.get("model_type", ""))
    numbers = {"decoder_start_token_id": DEFAULT_STARTS.get(kind), **config, **generation}
    numbers["forced_bos_token_id"] = (generation or config).get("forced_bos_token_id")  # as in transformers
    target_tokenizer = _configure_ids(tokenizer, folder, numbers)
    if kind in ("bart", "mbart"):
        target_tokenizer = _read_frame(target_tokenizer, folder)
    if source is tokenizer:
        return target_tokenizer, target_tokenizer
    return target_tokenizer, _configure_ids(source, folder, {})  # ids in the settings are those of the target


def _configure_ids(tokenizer: Tokenizer, folder: Path, numbers: Mapping[str, Any]) -> Tokenizer:
    names = {**_read_settings(folder / "special_tokens_map.json"), **_read_settings(folder / "tokenizer_config.json")}
    ids: dict[str, int | None] = {}
    for role in ROLES:
        id_by_name, current_id = _id_by_name(tokenizer, names.get(f"{role}_token")), getattr(tokenizer, f"{role}_id")
        id_by_number = _id_by_number(tokenizer, numbers.get(f"{role}_token_id"), current_id)
        ids[f"{role}_id"] = id_by_number if id_by_name is None else id_by_name
    start_id = _id_by_number(tokenizer, numbers.get("decoder_start_token_id"), None)
    if start_id is not None:
        ids["bos_id"] = start_id
        ids["forced_bos_id"] = _id_by_number(tokenizer, numbers.get("forced_bos_token_id"), None)
    ends = _end_ids(tokenizer, numbers.get("eos_token_id"))
    if start_id is not None and len(ends) > 1:
        raise UserError(
            f"{folder}: eos_token_id has {len(ends)} tokens, but translators of Tercet have a single end token"
        )
    result = tokenizer.with_ids(**ids)
    return result if start_id is not None else result.with_other_end_ids(ends)


def _read_frame(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """Return the tokenizer of a BART or mBART with the ids before a source as its opening.

    Raises:
        UserError: If there are other ids than eos after a source, or the first token of a translation is not known.
    """
    opening, end = read_frame(json.loads(tokenizer.to_json()))
    if end not in ((), (tokenizer.eos_id,)):
        names = ", ".join(tokenizer.tokens(end))
        raise UserError(f"{folder}: the tokenizer ends a source with {names}; Tercet only supports its end token there")
    if tokenizer.bos_id == tokenizer.eos_id and tokenizer.forced_bos_id is None:
        raise UserError(
            f"{folder}: decoder_start_token_id is the end token, and the first token of a translation is not known; "
            "set forced_bos_token_id in generation_config.json, to the target language's token or else to bos_token_id"
        )
    return tokenizer.with_opening(opening) if end else tokenizer


def _load_gpt2(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Load GPT-2's two files.

    They do not define how text is split; GPT-2, OPT, RoBERTa and BART split it in the same way.
    """
    settings = _read_settings(folder / "tokenizer_config.json")
    kind = _token_text(settings.get("tokenizer_class"), str(config.get("model_type", ""))).lower()
    if kind.startswith(OTHER_SPLITTERS):
        raise UserError(
            f"{folder} has no tokenizer.json, which is required for {kind.removesuffix('tokenizer')}; "
            "save its tokenizer with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    special = ROBERTA if kind.startswith(("roberta", "bart")) else ()
    adds_space = settings.get("add_prefix_space") is True
    library = from_files(folder / "vocab.json", folder / "merges.txt", prefix_space=adds_space, special=special)
    tokenizer = Tokenizer(library)
    bos_id = _id_by_name(tokenizer, settings.get("bos_token", "<s>"))
    adds_bos = settings.get("add_bos_token") is True or kind.startswith("bart")  # OPT has the setting
    return tokenizer.with_opening([bos_id]) if adds_bos and bos_id is not None else tokenizer


def _load_sentencepiece(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    settings = _read_settings(folder / "tokenizer_config.json")
    is_separate = settings.get("separate_vocabs") is True
    special = frozenset(
        _token_text(settings.get(f"{role}_token"), default) for role, default in (("eos", "</s>"), ("pad", "<pad>"))
    )
    unknown = _token_text(settings.get("unk_token"), "<unk>")
    tokenizers: list[Tokenizer] = []
    for spm, vocabulary in (
        ("target.spm", "target_vocab.json" if is_separate else "vocab.json"),
        ("source.spm", "vocab.json"),
    ):
        path = folder / vocabulary
        ids = _read_settings(path)
        if not ids or not all(type(number) is int for number in ids.values()):
            raise UserError(f"{path} does not map pieces to ids; copy it again")
        pieces = read_pieces(folder / spm)
        try:
            with library_errors():
                tokenizers.append(Tokenizer(build_unigram(pieces, ids, unknown=unknown, special=special)))
        except ValueError as error:
            raise UserError(f"{path} and {spm} are not a valid tokenizer: {error}; copy the whole folder") from None
    return tokenizers[0], tokenizers[1]


def _id_by_name(tokenizer: Tokenizer, setting: Any) -> int | None:
    name = _token_text(setting, "")
    return tokenizer.id_of(name) if name else None


def _id_by_number(tokenizer: Tokenizer, setting: Any, current_id: int | None) -> int | None:
    """Return `current_id`, or else the valid id in the settings (the first of a list), or None."""
    first: Any = next(iter(cast("list[Any]", setting)), None) if isinstance(setting, list) else setting
    if current_id is None and type(first) is int and 0 <= first < tokenizer.vocab_size:
        return first
    return current_id


def _end_ids(tokenizer: Tokenizer, setting: Any) -> list[int]:
    """Return the valid ids in a setting that is a number or a list."""
    numbers: list[Any] = cast("list[Any]", setting) if isinstance(setting, list) else [setting]
    return [number for number in numbers if type(number) is int and 0 <= number < tokenizer.vocab_size]


def _token_text(setting: Any, default: str) -> str:
    """Return the text of a token from a setting that is a text or an object; `default` if there is none."""
    text = setting.get("content") if isinstance(setting, dict) else setting
    return text if isinstance(text, str) and text else default


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a settings file without null values; empty if the file does not exist."""
    data = read_json_file(path, MAX_VOCABULARY_BYTES) if path.is_file() else {}
    return {key: value for key, value in data.items() if value is not None}

"""The tokenizer of a folder that `transformers` wrote, in whichever of three forms it is kept there.

tokenizer.json                      all in one, as our own folders have it
vocab.json, merges.txt              GPT-2's BPE of bytes
vocab.json, source.spm, target.spm  Marian's: one list of ids, cut by one sentencepiece model on each side

Which token begins and ends a text, a `tokenizer.json` does not say; the files beside it do, in the order: what is told
by name, what the name itself tells, what is told by number. A translator begins with `decoder_start_token_id`, which is
its bos here: for Marian that is the token for padding.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tercet.config import UserError
from tercet.tokens.gpt2 import from_files
from tercet.tokens.sentencepiece import read_pieces, unigram
from tercet.tokens.tokenizer import Tokenizer

FORMS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.json", "source.spm", "target.spm"))
ROLES = ("bos", "eos", "pad")


def tokenizers_of(folder: Path, config: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer of a folder, and that of its source: the same, but for a translator with one of its own.

    Args:
        config: what its config.json holds.

    Raises:
        UserError: where files are missing, broken or do not belong together.
    """
    if all((folder / name).is_file() for name in FORMS[2]):
        tokenizer, source = _of_pieces(folder)
    elif (folder / "tokenizer.json").is_file() or not all((folder / name).is_file() for name in FORMS[1]):
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        own = folder / "source_tokenizer.json"
        source = Tokenizer.load(own) if own.is_file() else tokenizer
    else:
        spaced = _read(folder / "tokenizer_config.json").get("add_prefix_space") is True
        built = from_files(folder / "vocab.json", folder / "merges.txt", prefix_space=spaced)
        tokenizer = source = Tokenizer(built)
    told = _with_told_ids(tokenizer, folder, {**config, **_read(folder / "generation_config.json")})
    return told, told if source is tokenizer else _with_told_ids(source, folder, {})  # its numbers may be others


def _with_told_ids(tokenizer: Tokenizer, folder: Path, numbers: Mapping[str, Any]) -> Tokenizer:
    names = {**_read(folder / "special_tokens_map.json"), **_read(folder / "tokenizer_config.json")}
    ids: dict[str, int | None] = {}
    for role in ROLES:
        named, known = _named(tokenizer, names.get(f"{role}_token")), getattr(tokenizer, f"{role}_id")
        ids[f"{role}_id"] = named if named is not None else _numbered(tokenizer, numbers.get(f"{role}_token_id"), known)
    start = _numbered(tokenizer, numbers.get("decoder_start_token_id"), None)
    if start is not None:
        ids["bos_id"] = start
    return tokenizer.with_ids(**ids)


def _of_pieces(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    settings = _read(folder / "tokenizer_config.json")
    apart = settings.get("separate_vocabs") is True
    special = frozenset(
        _name(settings.get(f"{role}_token"), usual) for role, usual in (("eos", "</s>"), ("pad", "<pad>"))
    )
    unknown = _name(settings.get("unk_token"), "<unk>")
    found: list[Tokenizer] = []
    for spm, vocabulary in (
        ("target.spm", "target_vocab.json" if apart else "vocab.json"),
        ("source.spm", "vocab.json"),
    ):
        path = folder / vocabulary
        ids = _read(path)
        if not ids or not all(type(number) is int for number in ids.values()):
            raise UserError(f"{path} does not give each piece its id; copy it again")
        pieces = read_pieces(folder / spm)
        try:
            found.append(Tokenizer(unigram(pieces, ids, unknown=unknown, special=special)))
        except Exception as error:  # the library has no exception class of its own
            told = str(error).partition("\n")[0]
            raise UserError(f"{path} and {spm} do not make a tokenizer: {told}; copy the whole folder") from None
    return found[0], found[1]


def _named(tokenizer: Tokenizer, told: Any) -> int | None:
    name = _name(told, "")
    return tokenizer.id_of(name) if name else None


def _numbered(tokenizer: Tokenizer, told: Any, known: int | None) -> int | None:
    """The id that is known, or else the one told, of a list the first; one that no token has tells nothing."""
    first: Any = next(iter(cast("list[Any]", told)), None) if isinstance(told, list) else told
    if known is None and type(first) is int and 0 <= first < tokenizer.vocab_size:
        return first
    return known


def _name(told: Any, usual: str) -> str:
    """A token is told as its text, or as an object with its text."""
    text = told.get("content") if isinstance(told, dict) else told
    return text if isinstance(text, str) and text else usual


def _read(path: Path) -> dict[str, Any]:
    """A file of settings, without those that are null; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); put back the file that was saved") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected an object of keys at the top level")
    return {key: value for key, value in cast("dict[str, Any]", data).items() if value is not None}

"""Tokenizers in GGUF settings (tokenizer.ggml.*): import, and export if llama.cpp then gives all texts the same ids.

model "gpt2"    byte-level BPE, as the kinds bpe and gpt2: tokens, merges, and `pre`, the name of the splitting rule
model "llama"   sentencepiece's BPE: pieces with scores; the pair that forms the best piece is merged first
model "bert"    WordPiece, only exported: "\u2581" marks the pieces that begin a word instead of "##" the others

The kind characters is exported as model "gpt2" without merges if all characters are ASCII. With byte_fallback, it is
exported as model "llama", with pieces of which no two form a third. Otherwise it is rejected, since llama.cpp stops at
unknown characters. Other kinds than bpe, gpt2, characters and wordpiece are not exported, since these models cannot
represent how they split a text. In model "bert", words of more than 100 characters are not unknown.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tercet.config import UserError
from tercet.tokens.decoding import byte_characters, decoder_steps
from tercet.tokens.sentencepiece import SPACE
from tercet.tokens.structure import check_names, library_errors
from tercet.tokens.tokenizer import Tokenizer
from tercet.tokens.trainers import BYTE_TOKENS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # token types
KEY = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id", "unk": "unknown_token_id"}
FRAME_IDS = {"bos": "cls_token_id", "eos": "seperator_token_id", "mask": "mask_token_id"}  # of an encoder; so spelled

OTHER_ENDS = ("eot_token_id", "eom_token_id")  # end of a turn, end of a message; llama.cpp stops at both

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TIKTOKEN_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # equivalent
LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
DIGIT = r"\p{N}"
SPLITS = {
    "gpt-2": (GPT2_SPLIT,),
    "smollm": (DIGIT, GPT2_SPLIT),
    "llama-bpe": (LLAMA_SPLIT,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]"),
}  # each pattern splits the parts that the previous one left
ALIASES = {
    "mpt": "gpt-2", "olmo": "gpt-2", "jais": "gpt-2", "phi-2": "gpt-2", "starcoder": "smollm", "refact": "smollm",
    "codeshell": "smollm", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "falcon3": "llama-bpe",
}  # fmt: skip
# ASCII character for each visible character of byte-level BPE.
ASCII = {character: chr(byte) for byte, character in enumerate(byte_characters()[:128])}
# Splitting rules with which a part that is a token is not merged from smaller ones, and bos is added by default.
WHOLE_FIRST = ("llama-bpe",)


def from_settings(settings: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that the settings of a GGUF file describe.

    Raises:
        UserError: If the settings are damaged, or describe a tokenizer that Tercet does not support.
    """
    kind = settings.get(f"{KEY}model")
    if kind not in ("gpt2", "llama"):
        reason = "has no tokenizer" if kind is None else f"has a tokenizer of the kind {kind!r}"
        raise UserError(f"it {reason}; supported: gpt2 and llama")
    names = _get_list(settings, "tokens", str)
    kinds = _get_list(settings, "token_type", int) if f"{KEY}token_type" in settings else [NORMAL] * len(names)
    if not names or len(kinds) != len(names):
        raise UserError(f"{KEY}token_type has {len(kinds)} entries, but {KEY}tokens has {len(names)}; copy it again")
    if len(set(names)) != len(names):
        seen_names = set[str]()
        duplicate = next(name for name in names if name in seen_names or seen_names.add(name))
        raise UserError(f"the token {duplicate!r} has two ids, which Tercet does not support; use another file")
    ids = {role: _get_id(settings, name, len(names)) for role, name in IDS.items()}
    try:
        check_names(names)
        with library_errors():
            is_bytes = kind == "gpt2"
            bpe = _build_byte_bpe(settings, names) if is_bytes else _build_pieces(settings, names, kinds, ids["unk"])
            kind_by_name = dict(zip(names, kinds, strict=True))
            bpe.add_tokens([_added_token(name) for name in names if kind_by_name[name] == USER_DEFINED])
            bpe.add_special_tokens(
                [_added_token(name, special=True) for name in names if kind_by_name[name] == CONTROL]
            )
            tokenizer = Tokenizer(bpe)
    except ValueError as error:
        raise UserError(f"its tokens and merges are not a valid tokenizer ({error}); copy it again") from None
    tokenizer = tokenizer.with_ids(bos_id=ids["bos"], eos_id=ids["eos"], pad_id=ids["pad"])
    ends = [_get_id(settings, name, len(names)) for name in OTHER_ENDS]
    tokenizer = tokenizer.with_other_end_ids(number for number in ends if number is not None)
    default = kind == "llama" or _get_pre(settings) in WHOLE_FIRST
    adds_bos = settings.get(f"{KEY}add_bos_token", default)
    if not isinstance(adds_bos, bool):
        raise UserError(f"{KEY}add_bos_token is {adds_bos!r}; it must be true or false")
    return tokenizer.with_opening([tokenizer.bos_id] if adds_bos and tokenizer.bos_id is not None else [])


def to_settings(tokenizer: Tokenizer, *, framed: bool = False) -> dict[str, Any]:
    """Return the GGUF settings of a tokenizer; the inverse of `from_settings`.

    Args:
        tokenizer: The tokenizer.
        framed: If True, llama.cpp adds bos before and eos after each text, as Tercet does for an encoder.

    Raises:
        UserError: If llama.cpp does not support the tokenizer; the message contains the reason.
    """
    structure = json.loads(tokenizer.to_json())
    if tokenizer.eos_id is None:
        raise UserError(
            "the tokenizer has no end token, and llama.cpp would use another token; "
            "a model with tokenizer.eos: true can be converted"
        )
    if framed and tokenizer.bos_id is None:
        raise UserError("the tokenizer has no token for the beginning of a text, which an encoder requires")
    if tokenizer.opening not in ((), (tokenizer.bos_id,)):
        raise UserError(f"texts begin with the ids {tokenizer.opening}, but llama.cpp supports only bos or nothing")
    if len(tokenizer.other_end_ids) > len(OTHER_ENDS):
        raise UserError(f"texts end with any of the ids {tokenizer.end_ids}, but llama.cpp supports at most three")
    added_tokens: dict[int, dict[str, Any]] = {token["id"]: token for token in structure["added_tokens"]}
    _check_added(tokenizer, added_tokens)
    roles = [*IDS.items(), *(FRAME_IDS.items() if framed else ())]
    ids = {name: getattr(tokenizer, f"{role}_id") for role, name in roles}
    if framed and structure["model"]["type"] == "WordPiece":  # llama.cpp always adds its [CLS] and [SEP]
        model_settings = _wordpiece_settings(structure)
    elif tokenizer.kind == "characters":
        model_settings = _character_settings(structure)
    else:
        model_settings = _byte_settings(structure)
    names, kinds = model_settings["tokens"], model_settings["token_type"]
    for number, token in added_tokens.items():
        names[number] = token["content"]
        kinds[number] = CONTROL if token["special"] else USER_DEFINED
    if tokenizer.unk_id is not None and kinds[tokenizer.unk_id] == NORMAL:
        kinds[tokenizer.unk_id] = UNKNOWN
    all_settings = {
        **model_settings,
        **{name: number for name, number in ids.items() if number is not None},
        **dict(zip(OTHER_ENDS, tokenizer.end_ids[1:], strict=False)),
        "add_bos_token": framed or bool(tokenizer.opening),
        "add_eos_token": framed,
        "add_space_prefix": False,
    }
    return {f"{KEY}{name}": value for name, value in all_settings.items()}


def _build_byte_bpe(settings: Mapping[str, Any], names: Sequence[str]) -> tokenizers.Tokenizer:
    pre = _get_pre(settings)
    if pre not in SPLITS:
        supported = ", ".join([*SPLITS, *ALIASES])
        raise UserError(f"its tokenizer splits text as {pre!r}, which Tercet does not support; supported: {supported}")
    pairs = [tuple(merge.split(" ")) for merge in _get_list(settings, "merges", str)]
    if not pairs and pre == "gpt-2" and {name for name in names if len(name) == 1} <= ASCII.keys():
        return _build_characters([ASCII.get(name, name) for name in names], byte_fallback=False)
    vocabulary = {name: number for number, name in enumerate(names)}
    model = models.BPE(vocab=vocabulary, merges=cast("list[tuple[str, str]]", pairs), ignore_merges=pre in WHOLE_FIRST)
    tokenizer = tokenizers.Tokenizer(model)
    splits = SPLITS[pre]
    tokenizer.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if splits == (GPT2_SPLIT,)
        else pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(split), "isolated") for split in splits),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_settings(structure: dict[str, Any]) -> dict[str, Any]:
    model = structure["model"]
    if model["type"] != "BPE" or "ByteLevel" not in decoder_steps(structure):
        raise UserError(
            f"the tokenizer is not a byte-level BPE but {_kind_of(structure)}, which llama.cpp splits differently; "
            "a model with tokenizer.kind: bpe, gpt2 or characters can be converted"
        )
    if structure["normalizer"] or decoder_steps(structure) != ["ByteLevel"]:
        raise UserError(
            "the tokenizer changes a text before splitting it (adds a space or replaces characters), which llama.cpp "
            "does not support; a model with tokenizer.prefix_space: false can be converted"
        )
    splits = _find_splits(structure["pre_tokenizer"])
    pre = next((name for name, regexes in SPLITS.items() if regexes == splits), None)
    if pre is None:
        raise UserError(
            "llama.cpp does not support the splitting rule of the tokenizer; "
            "a model with tokenizer.kind: bpe or gpt2 can be converted"
        )
    ignores_merges = bool(model.get("ignore_merges"))
    if ignores_merges != (pre in WHOLE_FIRST) or any(
        model.get(key) for key in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout")
    ):
        raise UserError("llama.cpp does not support the tokenizer's merge options (ignore_merges, a prefix)")
    vocabulary: dict[str, int] = model["vocab"]
    names = _list_names(vocabulary, structure)
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": names,
        "token_type": [NORMAL if name in vocabulary else UNUSED for name in names],
        "merges": [" ".join(pair) for pair in model["merges"]],
    }


def _find_splits(pre: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Return the regular expressions of a byte-level pre-tokenizer, in order; None if it has other steps."""
    steps = [] if pre is None else pre.get("pretokenizers", [pre])
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    splits: list[str] = []
    for step in steps:
        match step:
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": used}:
                splits += [GPT2_SPLIT] if used else []
            case {"type": "Digits", "individual_digits": True}:
                splits.append(DIGIT)
            case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}:
                splits.append(GPT2_SPLIT if regex == TIKTOKEN_SPLIT else regex)
            case _:
                return None
    return tuple(splits)


def _build_pieces(
    settings: Mapping[str, Any], names: Sequence[str], kinds: Sequence[int], unknown: int | None
) -> tokenizers.Tokenizer:
    scores = _get_list(settings, "scores", float)
    if not all(map(math.isfinite, scores)):
        raise UserError(f"{KEY}scores contains a value that is not finite; copy it again")
    if len(scores) != len(names):
        raise UserError(f"{KEY}scores has {len(scores)} entries, but {KEY}tokens has {len(names)}; copy it again")
    adds_space = settings.get(f"{KEY}add_space_prefix", True)
    if not isinstance(adds_space, bool):
        raise UserError(f"{KEY}add_space_prefix is {adds_space!r}; it must be true or false")
    normal = {name: score for name, score, kind in zip(names, scores, kinds, strict=True) if kind == NORMAL}
    merges = _find_merges(normal)
    fallback = set(BYTE_TOKENS) <= {name for name, kind in zip(names, kinds, strict=True) if kind == BYTE}
    if not merges and not adds_space:  # the kind characters, in which a space is an ordinary character
        return _build_characters([" " if name == SPACE else name for name in names], byte_fallback=fallback)
    unk = None if unknown is None else names[unknown]
    model = models.BPE(vocab=_number_names(names), merges=merges, byte_fallback=fallback, unk_token=unk, fuse_unk=False)
    tokenizer = tokenizers.Tokenizer(model)
    prefix_steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if adds_space else []
    strip_steps: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if adds_space else []
    tokenizer.normalizer = normalizers.Sequence([*prefix_steps, normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip_steps]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _build_characters(names: Sequence[str], *, byte_fallback: bool) -> tokenizers.Tokenizer:
    """Return a tokenizer of the kind characters."""
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=_number_names(names), merges=[], byte_fallback=byte_fallback))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _find_merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that form a piece, best piece first.

    Raises:
        UserError: If two such pieces have the same score. The order of their merges then depends on the text, which a
            list of merges cannot represent.
    """
    pairs = {
        piece: [(piece[:n], piece[n:]) for n in range(1, len(piece)) if piece[:n] in scores and piece[n:] in scores]
        for piece in scores
    }
    merged_pieces = sorted((piece for piece, parts in pairs.items() if parts), key=lambda piece: -scores[piece])
    if len({scores[piece] for piece in merged_pieces}) != len(merged_pieces):
        raise UserError("two of its tokenizer's pieces have the same score, which a list of merges cannot represent")
    return [pair for piece in merged_pieces for pair in pairs[piece]]


def _character_settings(structure: dict[str, Any]) -> dict[str, Any]:
    vocabulary: dict[str, int] = structure["model"]["vocab"]
    names = _list_names(vocabulary, structure)
    byte_names = {character: byte for byte, character in ASCII.items()}
    special = {token["content"] for token in structure["added_tokens"]}
    if not structure["model"]["byte_fallback"]:
        if unsupported := sorted(name for name in vocabulary if name not in byte_names and name not in special):
            raise UserError(
                f"the tokenizer has {unsupported[0]!r} but not its bytes, and llama.cpp stops at unknown characters; "
                "a model with tokenizer.byte_fallback: true, or kind: bpe, can be converted"
            )
        return {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": [byte_names.get(name, name) for name in names],
            "token_type": [NORMAL if name in vocabulary else UNUSED for name in names],
            "merges": [],
        }
    if SPACE in vocabulary:
        raise UserError(f"the alphabet has {SPACE!r}, which GGUF uses for a space; a model without it can be converted")
    kinds = [BYTE if name in BYTE_TOKENS else NORMAL if name in vocabulary else UNUSED for name in names]
    return {
        "model": "llama",
        "pre": "default",
        "tokens": [SPACE if name == " " else name for name in names],
        "scores": [0.0] * len(names),
        "token_type": kinds,
    }


def _wordpiece_settings(structure: dict[str, Any]) -> dict[str, Any]:
    model, vocabulary = structure["model"], structure["model"]["vocab"]
    normalizer: dict[str, Any] = structure["normalizer"] or {}
    expected = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    if any(normalizer.get(key) != value for key, value in expected.items()) or (
        structure["pre_tokenizer"] != {"type": "BertPreTokenizer"} or model["continuing_subword_prefix"] != "##"
    ):
        raise UserError("the tokenizer does not split text as BERT does, which llama.cpp requires of a WordPiece")
    special = {token["content"] for token in structure["added_tokens"]}
    names = _list_names(vocabulary, structure)
    pieces = [
        name if name in special or name not in vocabulary else name[2:] if name.startswith("##") else SPACE + name
        for name in names
    ]
    if len(set(pieces)) != len(pieces) or any(len(name) > 2 and name.startswith("##" + SPACE) for name in names):
        raise UserError(f"the vocabulary has {SPACE!r} or two equal pieces, which GGUF does not support")
    lowercase, accents = normalizer["lowercase"], normalizer["strip_accents"]
    return {
        "model": "bert",
        "pre": "default",
        "tokens": pieces,
        "token_type": [NORMAL if name in vocabulary else UNUSED for name in names],
        "normalizer.lowercase": lowercase,
        "normalizer.strip_accents": lowercase if accents is None else accents,
    }


def _list_names(vocabulary: Mapping[str, int], structure: dict[str, Any]) -> list[str]:
    """Return the name of every id, in id order; an unused id has the name [PAD<id>]."""
    n = 1 + max(vocabulary.values(), default=-1)
    n = max(n, *(1 + token["id"] for token in structure["added_tokens"]), 0)
    names = [f"[PAD{number}]" for number in range(n)]
    for name, number in vocabulary.items():
        names[number] = name
    return names


def _check_added(tokenizer: Tokenizer, added_tokens: Mapping[int, Mapping[str, Any]]) -> None:
    for number, token in added_tokens.items():
        if not token["special"] and any(token[key] for key in ("lstrip", "rstrip", "single_word", "normalized")):
            raise UserError(
                f"the token {token['content']!r} absorbs adjacent text, or only matches whole words, "
                "which llama.cpp does not support; remove it from the tokenizer"
            )
        if not 0 <= number < tokenizer.vocab_size:
            raise UserError(f"the token {token['content']!r} has no id")


def _kind_of(structure: dict[str, Any]) -> str:
    kind = str(structure["model"]["type"])
    return {"WordLevel": "whole words", "BPE": "a BPE of characters"}.get(kind, kind)


def _get_pre(settings: Mapping[str, Any]) -> str:
    name = settings.get(f"{KEY}pre", "default")
    return ALIASES.get(name, name) if isinstance(name, str) else repr(name)


def _get_id(settings: Mapping[str, Any], name: str, n: int) -> int | None:
    number = settings.get(f"{KEY}{name}")
    if number is not None and (type(number) is not int or not 0 <= number < n):
        raise UserError(f"{KEY}{name} is {number!r}, but ids of tokens are 0 to {n - 1}; copy it again")
    return number


def _get_list(settings: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    values = settings.get(f"{KEY}{name}")
    if not isinstance(values, list) or not all(type(item) is kind for item in cast("list[Any]", values)):
        problem = "is missing" if values is None else f"is not a list of {kind.__name__}"
        raise UserError(f"{KEY}{name} {problem}; copy it again")
    return cast("list[Any]", values)


def _number_names(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _added_token(name: str, *, special: bool = False) -> AddedToken:
    return AddedToken(name, special=special, normalized=False)

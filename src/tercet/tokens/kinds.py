"""Recognize the kind of a `tokenizer.json`."""

from typing import Any

from tercet.tokens.decoding import decoder_steps, has_prefix_space
from tercet.tokens.sequences import SEPARATORS, is_plain_ids


def recognize_kind(structure: dict[str, Any], vocab_size: int) -> str:
    """Return the kind of a parsed `tokenizer.json`, as in `TokenizerSpec`; "file" if Tercet does not train this kind.

    Args:
        structure: Parsed `tokenizer.json`.
        vocab_size: Number of ids.
    """
    model, split = structure["model"], structure.get("pre_tokenizer") or {}
    splits = [part["type"] for part in split.get("pretokenizers", [split]) if part]
    steps = decoder_steps(structure)
    if kind := _sequence_kind(structure, splits, steps):
        return kind
    normalizer = (structure.get("normalizer") or {}).get("type")
    if (model["type"], normalizer, splits, steps) == (
        "WordPiece",
        "BertNormalizer",
        ["BertPreTokenizer"],
        ["WordPiece"],
    ):
        return "wordpiece"
    if normalizer:
        if not has_prefix_space(structure):
            return "file"
        steps.pop()
    if model["type"] == "BPE" and not model["merges"] and not splits and steps == ["ByteFallback", "Fuse"]:
        return "characters"
    if model["type"] == "WordLevel" and splits == ["Split"]:
        return "words"
    if model["type"] == "Unigram" and splits == ["Split"] and steps == ["Fuse"]:
        return "unigram"
    if model["type"] == "BPE" and splits[-1:] == ["ByteLevel"]:
        return "gpt2" if vocab_size == 50_257 and model["vocab"].get("<|endoftext|>") == 50_256 else "bpe"
    return "file"


def _sequence_kind(structure: dict[str, Any], splits: list[str], steps: list[str]) -> str | None:
    model, split = structure["model"], structure.get("pre_tokenizer") or {}
    match model["type"], splits, steps:
        case "WordLevel", ["WhitespaceSplit"], [] if is_plain_ids(model["vocab"]):
            return "ids"
        case "WordLevel", ["Split"], [] if split == {
            "type": "Split", "pattern": {"Regex": SEPARATORS}, "behavior": "Removed", "invert": False,
        }:  # fmt: skip
            return "fields"
        case "Unigram", ["FixedLength"], ["Fuse"]:
            return "kmers"
        case _:
            return None

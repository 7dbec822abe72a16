"""Usual names of special tokens in vocabularies, by role."""

from collections.abc import Iterable, Mapping

from tercet.tokens import trainers

PADS = ("<pad>", "[PAD]", "<|padding|>")
STARTS = ("<bos>", "<s>", "<|begin_of_text|>", "[CLS]")
ENDS = ("<eos>", "<|endoftext|>", "</s>", "<|end_of_text|>", "[SEP]")
UNKNOWNS = (trainers.UNKNOWN, "[UNK]")
MASKS = (trainers.MASK, "[MASK]")


def first_id(ids: Mapping[str, int], names: Iterable[str]) -> int | None:
    return next((ids[name] for name in names if name in ids), None)

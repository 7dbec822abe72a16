"""Text to ids: a byte-level BPE, by Tercet and by the libraries' own calls with the same vocabulary."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from benchmarks.speed.contender import Contender, Function
from benchmarks.speed.row import Lineup, Options, Row
from torch import Tensor

from tercet.tokens import BPE, Tokenizer


def read_text(options: Options) -> tuple[str, str]:
    """Return Shakespeare if TERCET_DATA contains it, otherwise random words; and the name of the text."""
    path = Path(os.environ.get("TERCET_DATA", ""), "shakespeare", "input.txt")
    if options.scale != "tiny" and path.is_file():
        return path.read_text(), "Shakespeare"
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    count = 300 if options.scale == "tiny" else 200_000
    words = ["".join(generator.choice(letters, size)) for size in generator.integers(1, 9, 3000)]
    lines = [" ".join(words[i] for i in generator.integers(0, len(words), 8)) for _ in range(count // 8)]
    return "\n".join(lines), "words by lot"


def flat(ids: Any) -> Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(row, dtype=np.int64) for row in ids]))


def lineup(options: Options) -> Lineup:
    text, name = read_text(options)
    parts = [part for part in text.split("\n\n") if part] if "\n\n" in text else text.splitlines()
    ours = Tokenizer.train(BPE(vocab_size=300 if options.scale == "tiny" else 4096), [text[:400_000]])
    library = tokenizers.Tokenizer.from_str(ours.to_json())
    expected = flat(ours.encode_batch(parts))
    count = len(expected)

    def contender(name: str, side: Any, encode: Any) -> Contender:
        def work(n: int) -> float:
            for _ in range(n):
                encode(parts)
            return n * count

        return Function(name, side, work, answer=lambda: flat(encode(parts)))

    def encode_singly(texts: list[str]) -> Any:
        return [ours.encode(text) for text in texts]

    def theirs(texts: list[str]) -> Any:
        return [encoding.ids for encoding in library.encode_batch(texts, add_special_tokens=False)]

    def fast(texts: list[str]) -> Any:
        return [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]

    lineup = Lineup()
    lineup.add(
        contender("tercet", "ours", ours.encode_batch),
        contender("tercet, text by text", "ours", encode_singly),
        contender("tokenizers", "readme", theirs),
        contender("tokenizers, fast", "peer", fast),
    )

    def tiktoken_contenders() -> list[Contender]:
        encoding, first = tiktoken_encoding(ours)

        def encode(texts: list[str]) -> Any:
            return [[number + first for number in row] for row in encoding.encode_ordinary_batch(texts)]

        return [contender("tiktoken", "peer", encode)]

    try:
        lineup.try_to("tiktoken", tiktoken_contenders)
    except ValueError as error:
        lineup.leave_out("tiktoken", str(error))
    lineup.notes.append(f"{len(text):,} characters of {name} in {len(parts):,} texts, {count:,} tokens")
    return lineup


def tiktoken_encoding(ours: Tokenizer) -> tuple[Any, int]:
    """Return the same vocabulary in tiktoken, whose ids start at 0 with the bytes, and the offset of Tercet's ids.

    Raises:
        ValueError: If the merges are not in the order of their ids.
    """
    import tiktoken

    model = json.loads(ours.to_json())["model"]
    byte_values = {character: byte for byte, character in enumerate(byte_characters())}
    pieces = sorted(
        (number, bytes(byte_values[c] for c in piece))
        for piece, number in model["vocab"].items()
        if all(c in byte_values for c in piece)
    )
    first = pieces[0][0]
    if [number for number, _ in pieces] != list(range(first, first + len(pieces))):
        raise ValueError("its ids would differ: special tokens are between them")
    ranks = {piece: number - first for number, piece in pieces}
    if len(ranks) != len(pieces):
        raise ValueError("two tokens are the same bytes")
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    return tiktoken.Encoding("ours", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}), first


def byte_characters() -> list[str]:
    """Return the character for each byte in a byte-level vocabulary: the byte's own if it is visible."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    replacements = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(replacements)) for byte in range(256)]


TOKENIZING = Row(name="tokenizing", title="Text to ids, byte-level BPE of 4096", lineup=lineup)

"""A tokenizer whose tokens are arbitrary byte strings, to split characters and stop strings anywhere."""

import codecs
from collections.abc import Sequence

import numpy as np


class ByteTokenizer:
    """Ids below 256 are single bytes, followed by `pieces` and then by special tokens."""

    kind = "bpe"
    unk_id = None

    def __init__(self, pieces: Sequence[bytes] = (), *, eos: bool = True, bos: bool = False) -> None:
        self.vocabulary = [bytes([byte]) for byte in range(256)] + list(pieces)
        n = len(self.vocabulary)
        self.pad_id, self.bos_id = (n, n + 1) if bos else (None, None)
        self.vocabulary += [b""] * (2 * bos)
        self.eos_id = len(self.vocabulary) if eos else None
        self.end_ids = [len(self.vocabulary)] if eos else []
        self.opening = ()
        self.target_opening = [] if self.bos_id is None else [self.bos_id]
        self.vocab_size = len(self.vocabulary) + eos
        self.special_ids = frozenset(range(n, self.vocab_size))

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self.encode(text), dtype=np.uint32) for text in texts]

    def frame(self, ids: Sequence[int], *, max_len: int) -> list[int]:
        return [*ids[: max_len - 1], self.eos_id]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.vocabulary[id] for id in ids if id != self.eos_id).decode(errors="replace")

    def stream(self, *, after: Sequence[int] = ()) -> "ByteStream":
        return ByteStream(self.vocabulary)


class ByteStream:
    def __init__(self, vocabulary: list[bytes]) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._vocabulary[id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

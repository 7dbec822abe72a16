"""A tokenizer whose tokens are any byte strings, so that characters and stop texts can be cut anywhere."""

import codecs
from collections.abc import Sequence


class ByteTokenizer:
    """Ids below 256 are single bytes, then come `pieces`, and the end-of-text token is last."""

    def __init__(self, pieces: Sequence[bytes] = (), *, eos: bool = True) -> None:
        self.vocabulary = [bytes([byte]) for byte in range(256)] + list(pieces)
        self.eos_id = len(self.vocabulary) if eos else None
        self.vocab_size = len(self.vocabulary) + eos

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.vocabulary[id] for id in ids if id != self.eos_id).decode(errors="replace")

    def stream(self) -> "ByteStream":
        return ByteStream(self.vocabulary)


class ByteStream:
    def __init__(self, vocabulary: list[bytes]) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._vocabulary[id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

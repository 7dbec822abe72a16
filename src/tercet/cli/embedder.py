"""Vectors of texts as the flags of `tercet embed` define them, for writing and for searching."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tercet.cli.chunks import SplitTexts, select_chunking
from tercet.cli.texts import Text, report_truncated

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tercet.checkpoint import Encoder
    from tercet.encoding import Chunking


class Passage(NamedTuple):
    """Chunk of a text, or a whole text.

    Attributes:
        text: Text of the passage, with the id of the whole text.
        document: Number of the text, from 0.
        start, end: Indices of its characters in the text.
        is_part: True if the text was split.
    """

    text: Text
    document: int
    start: int
    end: int
    is_part: bool

    @property
    def place(self) -> tuple[int, int, int]:
        """Document, start and end."""
        return self.document, self.start, self.end


@dataclass(kw_only=True)
class TextEmbedder:
    """Embeds texts, and counts those that are longer than the context.

    Attributes:
        encoder: The model, already on its device.
        chunking: Lengths of chunks, or None to truncate long texts.
        pooling: How token vectors are combined.
        size: Number of elements to which vectors are cut, or None.
        normalize: If True, vectors have length 1.
        batch_tokens: Maximum tokens per batch.
        count: Number of texts so far.
        truncated: Number of truncated texts.
        split: Texts that were split.
    """

    encoder: "Encoder"
    chunking: "Chunking | None"
    pooling: Any
    size: int | None
    normalize: bool
    batch_tokens: int
    count: int = 0
    truncated: int = 0
    split: SplitTexts = field(default_factory=SplitTexts)

    @classmethod
    def create(
        cls, args: argparse.Namespace, encoder: "Encoder", device: "torch.device", *, size: int | None
    ) -> "TextEmbedder":
        """Return an embedder for the flags of a command, and move the model to `device`.

        Raises:
            UserError: If the lengths of chunks do not fit the model.
        """
        chunking = select_chunking(args, encoder.text_len)
        encoder.model.to(device)
        return cls(
            encoder=encoder, chunking=chunking, pooling=args.pooling or encoder.sentence.pooling, size=size,
            normalize=not args.no_normalize, batch_tokens=args.batch_tokens,
        )  # fmt: skip

    def embed_texts(self, texts: Sequence[str]) -> "np.ndarray":
        """Return one vector per text (N, D); that of a split text is the mean of its chunks."""
        from tercet.encoding import embed, embed_documents

        model, tokenizer = self.encoder.model, self.encoder.tokenizer
        self.count += len(texts)
        if self.chunking is None:
            result = embed(model, tokenizer, texts, max_len=self.encoder.text_len, **self._settings())
            self.truncated += result.truncated
            return result.vectors
        documents = embed_documents(model, tokenizer, texts, chunking=self.chunking, **self._settings())
        for count in documents.counts:
            self.split.add(count)
        return documents.vectors

    def embed_passages(self, texts: Sequence[Text]) -> "tuple[np.ndarray, list[Passage]]":
        """Return one vector per chunk (C, D), and the chunks; a text that is not split is one passage."""
        from tercet.encoding import embed_chunks

        first = self.count
        if self.chunking is None:
            vectors = self.embed_texts([text.text for text in texts])
            whole = [Passage(text, number, 0, len(text.text), False) for number, text in enumerate(texts, first)]
            return vectors, whole
        result = embed_chunks(
            self.encoder.model, self.encoder.tokenizer, [text.text for text in texts], chunking=self.chunking,
            **self._settings(),
        )  # fmt: skip
        self.count += len(texts)
        counts = [0] * len(texts)
        for chunk in result.chunks:
            counts[chunk.document] += 1
        for count in counts:
            self.split.add(count)
        passages = list[Passage]()
        for chunk in result.chunks:
            text = texts[chunk.document]
            part = text._replace(text=text.text[chunk.start : chunk.end])
            is_part = counts[chunk.document] > 1
            passages.append(Passage(part, first + chunk.document, chunk.start, chunk.end, is_part))
        return result.vectors, passages

    def probe(self) -> "np.ndarray":
        """Return the normalized vector (D,) of the empty text, which identifies the model and the pooling."""
        from tercet.encoding import embed

        settings: dict[str, Any] = {**self._settings(), "normalize": True}
        [vector] = embed(self.encoder.model, self.encoder.tokenizer, [""], **settings).vectors
        return vector

    @property
    def chunks(self) -> int:
        """Number of chunks so far, with one for each text that was not split."""
        return self.count - self.split.texts + self.split.chunks

    def report(self, *, noun: str = "text") -> None:
        """Report on stderr how many texts were truncated or split, if any."""
        report_truncated(self.truncated, self.encoder.text_len, noun=noun)
        if self.chunking is not None:
            self.split.report(self.chunking.size, noun=noun)

    def _settings(self) -> dict[str, Any]:
        return {
            "pooling": self.pooling, "projection": self.encoder.projection, "normalize": self.normalize,
            "size": self.size, "batch_tokens": self.batch_tokens,
        }  # fmt: skip

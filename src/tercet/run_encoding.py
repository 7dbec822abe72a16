"""The methods of `tercet.Run` for encoders: fill masks, embed, search, classify and rerank texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, overload

import numpy as np

from tercet.checkpoint import TrainedModel
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.nn.specs import Pooling

if TYPE_CHECKING:
    from tercet.encoding import (
        ChunkEmbeddings,
        Chunking,
        Classification,
        MaskPredictions,
        MultiLabelClassification,
        Neighbors,
        RankedDocument,
        Regression,
        SearchIndex,
        Tagging,
    )
    from tercet.encoding.embed import VectorSettings
    from tercet.models import EncoderOnly


class LongTexts(TypedDict, total=False):
    """Settings of texts that exceed the context: overlapping chunks, or texts cut to the context if `truncate` is True.

    `chunk` is the maximum number of tokens of a chunk, including bos and eos (default: the context), and `overlap` the
    maximum number that it shares with the chunk before it (default: an eighth of a chunk).
    """

    chunk: int | None
    overlap: int | None
    truncate: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class RunEncoding:
    """A trained model with the methods of encoders, which other models reject with UserError."""

    trained_model: TrainedModel

    @overload
    def fill(self, texts: str, top: int | None = None, only: Sequence[str] | None = None) -> "MaskPredictions": ...

    @overload
    def fill(
        self, texts: list[str], top: int | None = None, only: Sequence[str] | None = None
    ) -> "list[MaskPredictions]": ...

    def fill(
        self, texts: str | list[str], top: int | None = None, only: Sequence[str] | None = None
    ) -> "MaskPredictions | list[MaskPredictions]":
        """Return the most likely tokens for each [MASK] of a text, or of each text in a list.

        Args:
            texts: A text with masks, or a list of such texts.
            top: Maximum number of candidates per mask (default: 5, or all words of `only`).
            only: Words to choose from instead of the whole vocabulary.

        Raises:
            UserError: If a text has no mask, a mask is beyond the context, or a word of `only` is unknown.
            ValueError: If `top` is below 1, or `only` is empty.
        """
        from tercet.encoding import fill

        all_texts = [texts] if isinstance(texts, str) else texts
        results = fill(
            self.trained_model.require("fill").model, self.trained_model.tokenizer, all_texts, top=top, only=only
        )
        return results[0] if isinstance(texts, str) else results

    def embed(
        self, texts: str | Sequence[str], *, pooling: Pooling | None = None, normalize: bool = True,
        size: int | None = None, batch_tokens: int = BATCH_TOKENS, **long: Unpack[LongTexts],
    ) -> np.ndarray:  # fmt: skip
        """Return the embedding of a text (D,), or of each text in a list (N, D), in float32.

        The embedding of a text that exceeds the context is the mean of those of its chunks, weighted by their tokens.

        Args:
            texts: A text, or several.
            pooling: "mean", "first" or "max" of the token vectors (default: as the folder defines, or "mean").
            normalize, size: If True, scale vectors to length 1, after cutting them to `size` elements (`task.sizes`).
            batch_tokens: Maximum tokens per batch, including padding.
            long: How texts are split that exceed the context: `chunk` or `overlap`, or `truncate=True` to cut them.

        Raises:
            UserError: If a text cannot be encoded, or `size`, `chunk` or `overlap` does not suit the model.
        """
        from tercet.encoding import Chunking, embed, embed_documents

        encoder, all_texts = self.trained_model.require("embed"), [texts] if isinstance(texts, str) else texts
        settings = self._vector_settings(pooling, normalize, size, batch_tokens)
        chunking = Chunking.select(encoder.text_len, **long)
        if chunking is None:
            vectors = embed(encoder.model, encoder.tokenizer, all_texts, max_len=encoder.text_len, **settings).vectors
        else:
            vectors = embed_documents(
                encoder.model, encoder.tokenizer, all_texts, chunking=chunking, **settings
            ).vectors
        return vectors[0] if isinstance(texts, str) else vectors

    def embed_chunks(
        self, texts: str | Sequence[str], *, chunk: int | None = None, overlap: int | None = None,
        pooling: Pooling | None = None, normalize: bool = True, size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> "ChunkEmbeddings":  # fmt: skip
        """Return the embedding of each chunk of the texts, with its place: number of the text, and character indices.

        A text that fits into the context is one chunk.

        Args:
            texts: A text, or several.
            chunk: Maximum tokens per chunk, including bos and eos (default: the context).
            overlap: Maximum tokens that a chunk shares with the one before it (default: an eighth of a chunk).
            pooling, normalize, size, batch_tokens: As in `embed`, which also raises the same errors.
        """
        from tercet.encoding import Chunking, embed_chunks

        encoder, all_texts = self.trained_model.require("embed"), [texts] if isinstance(texts, str) else texts
        settings = self._vector_settings(pooling, normalize, size, batch_tokens)
        chunking = Chunking.create(encoder.text_len, chunk, overlap)
        return embed_chunks(encoder.model, self.trained_model.tokenizer, all_texts, chunking=chunking, **settings)

    def search(
        self, queries: str | Sequence[str], texts: "Sequence[str] | np.ndarray | ChunkEmbeddings", *, top: int = 5,
        pooling: Pooling | None = None, batch_tokens: int = BATCH_TOKENS, **long: Unpack[LongTexts],
    ) -> "Neighbors":  # fmt: skip
        """Return the texts most similar to a query, by cosine similarity; of texts that exceed the context, the chunks.

        Args:
            queries: A query, or several.
            texts: Texts to search, or their embeddings (N, D) from `embed`, also of a smaller size, or those of their
                chunks from `embed_chunks`.
            top: Maximum number of results per query.
            pooling, batch_tokens: As in `embed`. If `texts` are embeddings, pass the pooling that they were made with.
            long: As in `embed`.

        Returns:
            Numbers of the texts, from 0, and their cosines, most similar first: (K,), or (Q, K) for a list of queries.
            If `texts` are not embeddings of whole texts, also the first character and the end of each chunk. Several
            chunks of a text may be among the results.

        Raises:
            UserError: If the embeddings do not have the width of this model, or a text cannot be encoded.
        """
        from tercet.encoding import Chunk, ChunkEmbeddings, Neighbors, nearest

        embed, chunks = partial(self.embed, pooling=pooling, batch_tokens=batch_tokens, **long), list[Chunk]()
        if isinstance(texts, np.ndarray):
            vectors = texts
        elif isinstance(texts, ChunkEmbeddings) or not long.get("truncate"):
            found = texts
            if not isinstance(found, ChunkEmbeddings):
                found = self.embed_chunks(
                    found, chunk=long.get("chunk"), overlap=long.get("overlap"), pooling=pooling,
                    batch_tokens=batch_tokens,
                )  # fmt: skip
            vectors, chunks = found.vectors, found.chunks
        else:
            vectors = embed(texts)
        size = next((n for n in self.trained_model.require("embed").sentence.sizes if n == vectors.shape[-1]), None)
        result = nearest(vectors, embed([queries] if isinstance(queries, str) else queries, size=size), top=top)
        numbers, starts, ends = result.numbers, None, None
        if chunks:
            places = np.array([(chunk.document, chunk.start, chunk.end) for chunk in chunks])  # (C, 3)
            numbers, starts, ends = np.moveaxis(places[numbers], -1, 0)  # (Q, K) each
        if isinstance(queries, str):
            starts, ends = (None, None) if starts is None or ends is None else (starts[0], ends[0])
            return Neighbors(numbers=numbers[0], scores=result.scores[0], starts=starts, ends=ends)
        return Neighbors(numbers=numbers, scores=result.scores, starts=starts, ends=ends)

    def index(
        self, documents: "Iterable[tuple[str | int | None, str]]", *, pooling: Pooling | None = None,
        size: int | None = None, batch_tokens: int = BATCH_TOKENS, **long: Unpack[LongTexts],
    ) -> "SearchIndex":  # fmt: skip
        """Return an index of documents and the vectors of their chunks, which `serve(index=...)` searches.

        Args:
            documents: Id and text of each document, such as those of `tercet.data.read_documents`.
            pooling, size, batch_tokens: As in `embed`.
            long: As in `embed`.

        Raises:
            UserError: If there are no documents, or as in `embed`.
        """
        from tercet.encoding import Chunking, build_index

        encoder = self.trained_model.require("embed")
        settings = self._vector_settings(pooling, True, size, batch_tokens)
        return build_index(
            encoder.model, encoder.tokenizer, documents, max_len=encoder.text_len,
            chunking=Chunking.select(encoder.text_len, **long), **settings,
        )  # fmt: skip

    def open_index(self, path: str | Path, *, pooling: Pooling | None = None) -> "SearchIndex":
        """Return an index of the vectors in a file that `tercet embed --output vectors.npz` has written.

        Args:
            path: The file. It must not be changed while the index is used.
            pooling: Pooling of the vectors (default: as in `embed`).

        Raises:
            UserError: If the file cannot be read, has no vectors, or those of another model.
        """
        from tercet.encoding import open_index, read_vectors

        file, encoder = read_vectors(Path(path)), self.trained_model.require("embed")
        size = next((size for size in encoder.sentence.sizes if size == file.vectors.shape[1]), None)
        probe = self.embed("", pooling=pooling, size=size)
        return open_index(file, probe, pooling=pooling or encoder.sentence.pooling, size=size)

    def _vector_settings(
        self, pooling: Pooling | None, normalize: bool, size: int | None, batch_tokens: int
    ) -> "VectorSettings":
        from tercet.encoding.embed import check_size, vector_width

        encoder = self.trained_model.require("embed")
        check_size(size, encoder.sentence.sizes, vector_width(encoder.model, encoder.projection))
        return {
            "pooling": pooling or encoder.sentence.pooling, "projection": encoder.projection, "normalize": normalize,
            "size": size, "batch_tokens": batch_tokens,
        }  # fmt: skip

    @overload
    def classify(self, texts: str, **long: Unpack[LongTexts]) -> "Classification": ...

    @overload
    def classify(self, texts: list[str], **long: Unpack[LongTexts]) -> "list[Classification]": ...

    def classify(self, texts: str | list[str], **long: Unpack[LongTexts]) -> "Classification | list[Classification]":
        """Return the label of a text, or of each in a list; see also `tag`, `classify_multi_label` and `regress`.

        The probabilities of a text that exceeds the context are the mean over its chunks, weighted by their tokens.

        Args:
            texts: A text, or a list of texts.
            long: As in `embed`.
        """
        from tercet.encoding import classify

        all_texts = [texts] if isinstance(texts, str) else texts
        model, chunking = self._text_classifier(long)
        results = classify(model, self.trained_model.tokenizer, all_texts, chunking=chunking)
        return results[0] if isinstance(texts, str) else results

    @overload
    def classify_multi_label(
        self, texts: str, *, threshold: float = 0.5, **long: Unpack[LongTexts]
    ) -> "MultiLabelClassification": ...

    @overload
    def classify_multi_label(
        self, texts: list[str], *, threshold: float = 0.5, **long: Unpack[LongTexts]
    ) -> "list[MultiLabelClassification]": ...

    def classify_multi_label(
        self, texts: str | list[str], *, threshold: float = 0.5, **long: Unpack[LongTexts]
    ) -> "MultiLabelClassification | list[MultiLabelClassification]":
        """Return the labels of a text, or of each in a list, whose probability is above `threshold`; see `classify`."""
        from tercet.encoding import classify_multi_label

        all_texts = [texts] if isinstance(texts, str) else texts
        model, chunking = self._text_classifier(long)
        results = classify_multi_label(
            model, self.trained_model.tokenizer, all_texts, threshold=threshold, chunking=chunking
        )
        return results[0] if isinstance(texts, str) else results

    @overload
    def regress(self, texts: str, **long: Unpack[LongTexts]) -> "Regression": ...

    @overload
    def regress(self, texts: list[str], **long: Unpack[LongTexts]) -> "list[Regression]": ...

    def regress(self, texts: str | list[str], **long: Unpack[LongTexts]) -> "Regression | list[Regression]":
        """Return the predicted number of a text, or of each in a list, in the unit of the training labels.

        That of a text that exceeds the context is the mean over its chunks, as in `classify`.
        """
        from tercet.encoding import regress

        all_texts = [texts] if isinstance(texts, str) else texts
        model, chunking = self._text_classifier(long)
        results = regress(model, self.trained_model.tokenizer, all_texts, chunking=chunking)
        return results[0] if isinstance(texts, str) else results

    def _text_classifier(self, long: LongTexts) -> "tuple[EncoderOnly, Chunking | None]":
        from tercet.encoding import Chunking

        model = self.trained_model.require("classify").require_labels("texts")
        return model, Chunking.select(model.max_len, **long)

    def tag(self, sentences: Sequence[Sequence[str]]) -> "list[Tagging]":
        """Return the label of each word and its probability, for sentences that are lists of words."""
        from tercet.encoding import tag

        return tag(
            self.trained_model.require("classify").require_labels("tokens"), self.trained_model.tokenizer, sentences
        )

    def rerank(self, query: str, documents: Sequence[str]) -> "list[RankedDocument]":
        """Return the documents with their relevance to the query, the most relevant first."""
        from tercet.encoding import rerank

        return rerank(self.trained_model.require("classify").model, self.trained_model.tokenizer, query, documents)

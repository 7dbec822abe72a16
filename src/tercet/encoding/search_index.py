"""Documents with the vectors of their chunks, which are searched by similarity.

    documents --chunks--> vectors (N, D)        query --vector--> the nearest rows --> places in the documents

The index is in memory, or a memory-mapped vector file. The search is exact; see `neighbors`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from tercet.config import UserError
from tercet.data.rows.pools import POOL, take_pool
from tercet.encoding.chunks import Chunk, Chunking
from tercet.encoding.embed import VectorSettings, embed, embed_chunks
from tercet.encoding.neighbors import Neighbors, nearest
from tercet.encoding.vector_file import VectorFile
from tercet.models import EncoderOnly
from tercet.nn.specs import Pooling
from tercet.tokens import Tokenizer

Document = tuple[str | int | None, str]  # id and text


@dataclass(frozen=True, kw_only=True)
class IndexedText:
    """A document of an index, or one of its chunks.

    Attributes:
        index: Number of the document, from 0.
        id: Id of the document, such as its path; None if it has none.
        start, end: Indices of the characters of the chunk in the document; None if they are not stored.
        text: The text of the chunk; None if it is not stored.
    """

    index: int
    id: str | int | None = None
    start: int | None = None
    end: int | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """Vectors of documents or their chunks, and their texts.

    Attributes:
        vectors: (N, D) vectors.
        get_text: Function that returns the text of a vector by its number.
        pooling: Pooling of the vectors, which queries must have too.
        size: Number of elements to which the vectors are cut; None for whole vectors.
        documents: Number of documents.
        truncated: Number of documents that were truncated.
    """

    vectors: np.ndarray
    get_text: Callable[[int], IndexedText]
    pooling: Pooling
    size: int | None
    documents: int
    truncated: int = 0

    def search(self, queries: np.ndarray, *, top: int) -> Neighbors:
        """Return the vectors that are nearest to each of `queries` (Q, D); errors as in `nearest`."""
        return nearest(self.vectors, queries, top=top)


def build_index(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    documents: Iterable[Document],
    *,
    chunking: Chunking | None,
    max_len: int,
    **settings: Unpack[VectorSettings],
) -> SearchIndex:
    """Return an index of documents, which are read as a stream.

    Args:
        model: Model that computes the vectors.
        tokenizer: Tokenizer of the model.
        documents: Id and text of each document.
        chunking: Lengths of the chunks of long documents; None to truncate them.
        max_len: Maximum number of tokens of a truncated document, including bos and eos.
        settings: Settings of the vectors.

    Raises:
        UserError: If there are no documents, or a text cannot be encoded.
    """
    vectors, texts, count, truncated = list[np.ndarray](), list[IndexedText](), 0, 0
    iterator: Iterator[Document] = iter(documents)
    while pool := take_pool(iterator, POOL, lambda document: document[1]):
        contents = [text for _, text in pool]
        if chunking is None:
            result = embed(model, tokenizer, contents, max_len=max_len, **settings)
            truncated += result.truncated
            chunks: Sequence[Chunk] = [
                Chunk(document=number, start=0, end=len(text), tokens=0) for number, text in enumerate(contents)
            ]
        else:
            result = embed_chunks(model, tokenizer, contents, chunking=chunking, **settings)
            chunks = result.chunks
        vectors.append(result.vectors)
        texts += [
            IndexedText(
                index=count + chunk.document, id=pool[chunk.document][0], start=chunk.start, end=chunk.end,
                text=contents[chunk.document][chunk.start : chunk.end],
            )
            for chunk in chunks
        ]  # fmt: skip
        count += len(pool)
    if not texts:
        raise UserError("there are no documents to search; choose a file or folder with texts")
    return SearchIndex(
        vectors=np.concatenate(vectors), get_text=texts.__getitem__, pooling=settings.get("pooling", "mean"),
        size=settings.get("size"), documents=count, truncated=truncated,
    )  # fmt: skip


def open_index(file: VectorFile, probe: np.ndarray, *, pooling: Pooling, size: int | None) -> SearchIndex:
    """Return an index of the vectors in a file, which remain in the file.

    Args:
        file: The file.
        probe: (D,) vector of the empty text, from the model that computes the vectors of queries.
        pooling: Pooling of `probe`.
        size: Number of elements to which `probe` was cut; None for the whole vector.

    Raises:
        UserError: If the file has no vectors, or one that is not finite, or they are from another model.
    """
    file.check_model(probe)
    count = len(file.vectors)
    if not count:
        raise UserError(f"{file.path} has no text to search; choose another file")
    nearest(file.vectors, probe[None], top=1)  # reads all vectors, and checks that they are finite

    def get_text(number: int) -> IndexedText:
        fields: dict[str, str | int] = {"index": number, **file.row(number)}
        return IndexedText(**fields)  # type: ignore[reportArgumentType]  # each has the type of its array

    documents = count if file.documents is None else len(np.unique(file.documents))
    return SearchIndex(vectors=file.vectors, get_text=get_text, pooling=pooling, size=size, documents=documents)

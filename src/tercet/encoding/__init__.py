"""Uses of an encoder: fill masks, embed texts and find the nearest ones, classify and score texts, rerank.

Results do not depend on the other texts of a batch.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.encoding.batches import EncodedTexts as EncodedTexts
    from tercet.encoding.batches import encode_texts as encode_texts
    from tercet.encoding.chunks import Chunk as Chunk
    from tercet.encoding.chunks import Chunking as Chunking
    from tercet.encoding.chunks import chunk_texts as chunk_texts
    from tercet.encoding.classify import Classification as Classification
    from tercet.encoding.classify import MultiLabelClassification as MultiLabelClassification
    from tercet.encoding.classify import Regression as Regression
    from tercet.encoding.classify import Tagging as Tagging
    from tercet.encoding.classify import classify as classify
    from tercet.encoding.classify import classify_multi_label as classify_multi_label
    from tercet.encoding.classify import regress as regress
    from tercet.encoding.classify import tag as tag
    from tercet.encoding.embed import ChunkEmbeddings as ChunkEmbeddings
    from tercet.encoding.embed import DocumentEmbeddings as DocumentEmbeddings
    from tercet.encoding.embed import Embeddings as Embeddings
    from tercet.encoding.embed import embed as embed
    from tercet.encoding.embed import embed_chunks as embed_chunks
    from tercet.encoding.embed import embed_documents as embed_documents
    from tercet.encoding.fill import Candidate as Candidate
    from tercet.encoding.fill import MaskPredictions as MaskPredictions
    from tercet.encoding.fill import fill as fill
    from tercet.encoding.neighbors import NearestNeighbors as NearestNeighbors
    from tercet.encoding.neighbors import Neighbors as Neighbors
    from tercet.encoding.neighbors import nearest as nearest
    from tercet.encoding.pseudo import PseudoScore as PseudoScore
    from tercet.encoding.pseudo import pseudo_logprobs as pseudo_logprobs
    from tercet.encoding.pseudo import pseudo_scores as pseudo_scores
    from tercet.encoding.rerank import RankedDocument as RankedDocument
    from tercet.encoding.rerank import rerank as rerank
    from tercet.encoding.search_index import IndexedText as IndexedText
    from tercet.encoding.search_index import SearchIndex as SearchIndex
    from tercet.encoding.search_index import build_index as build_index
    from tercet.encoding.search_index import open_index as open_index
    from tercet.encoding.vector_file import VectorFile as VectorFile
    from tercet.encoding.vector_file import read_vectors as read_vectors
    from tercet.encoding.vector_file import write_vectors as write_vectors
else:
    export_lazily(__name__)

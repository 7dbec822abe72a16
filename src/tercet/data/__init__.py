"""Data: sources of text, named datasets, token ids on disk, rows, and the order of the rows."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.data.check.check_data import DataCheck as DataCheck
    from tercet.data.check.check_data import check_data as check_data
    from tercet.data.check.findings import Finding as Finding
    from tercet.data.corpora.conversation_corpus import ConversationCorpus as ConversationCorpus
    from tercet.data.corpora.conversation_corpus import Conversations as Conversations
    from tercet.data.corpora.conversation_corpus import prepare_conversations as prepare_conversations
    from tercet.data.corpora.corpus import Corpus as Corpus
    from tercet.data.corpora.label_corpus import LabelCorpus as LabelCorpus
    from tercet.data.corpora.label_corpus import LabeledExamples as LabeledExamples
    from tercet.data.corpora.label_corpus import prepare_labels as prepare_labels
    from tercet.data.corpora.label_corpus import read_label_examples as read_label_examples
    from tercet.data.corpora.pair_corpus import Pairs as Pairs
    from tercet.data.corpora.pair_corpus import ParallelCorpus as ParallelCorpus
    from tercet.data.corpora.pair_corpus import prepare_pairs as prepare_pairs
    from tercet.data.corpora.pair_corpus import read_pairs as read_pairs
    from tercet.data.corpora.query_corpus import QueryCorpus as QueryCorpus
    from tercet.data.corpora.query_corpus import QueryPairs as QueryPairs
    from tercet.data.corpora.query_corpus import prepare_queries as prepare_queries
    from tercet.data.corpora.text_corpus import prepare as prepare
    from tercet.data.datasets.label_datasets import LABEL_DATASETS as LABEL_DATASETS
    from tercet.data.datasets.label_datasets import LabelDataset as LabelDataset
    from tercet.data.datasets.pair_datasets import PAIR_DATASETS as PAIR_DATASETS
    from tercet.data.datasets.pair_datasets import PairDataset as PairDataset
    from tercet.data.datasets.query_datasets import QUERY_DATASETS as QUERY_DATASETS
    from tercet.data.datasets.query_datasets import QueryDataset as QueryDataset
    from tercet.data.datasets.text_datasets import DATASETS as DATASETS
    from tercet.data.datasets.text_datasets import Dataset as Dataset
    from tercet.data.encode.word_pieces import encode_words as encode_words
    from tercet.data.examples.conversations import Conversation as Conversation
    from tercet.data.examples.conversations import ConversationFile as ConversationFile
    from tercet.data.examples.example_source import read_examples as read_examples
    from tercet.data.examples.labels import Example as Example
    from tercet.data.examples.labels import LabelFile as LabelFile
    from tercet.data.examples.pairs import PairFiles as PairFiles
    from tercet.data.examples.queries import QueryFile as QueryFile
    from tercet.data.examples.queries import QueryPair as QueryPair
    from tercet.data.examples.queries import QueryTexts as QueryTexts
    from tercet.data.extraction.read_documents import DocumentText as DocumentText
    from tercet.data.extraction.read_documents import read_documents as read_documents
    from tercet.data.label_spec import HeldOutLabels as HeldOutLabels
    from tercet.data.label_spec import LabelsSpec as LabelsSpec
    from tercet.data.rows.buckets import Buckets as Buckets
    from tercet.data.rows.buckets import PairRows as PairRows
    from tercet.data.rows.buckets import gather as gather
    from tercet.data.rows.conversation_rows import conversation_rows as conversation_rows
    from tercet.data.rows.label_rows import LabelRows as LabelRows
    from tercet.data.rows.label_rows import label_rows as label_rows
    from tercet.data.rows.order import Order as Order
    from tercet.data.rows.query_rows import QueryRows as QueryRows
    from tercet.data.rows.query_rows import query_rows as query_rows
    from tercet.data.rows.token_rows import PackedRows as PackedRows
    from tercet.data.rows.token_rows import PaddedRows as PaddedRows
    from tercet.data.rows.token_rows import TokenRows as TokenRows
    from tercet.data.rows.token_rows import Windows as Windows
    from tercet.data.shards.prepare_tokens import prepare_tokens as prepare_tokens
    from tercet.data.sources.custom_dataset import CustomDataset as CustomDataset
    from tercet.data.specs import ConversationsSpec as ConversationsSpec
    from tercet.data.specs import MixtureSource as MixtureSource
    from tercet.data.specs import Packed as Packed
    from tercet.data.specs import Padded as Padded
    from tercet.data.specs import PairsSpec as PairsSpec
    from tercet.data.specs import QueriesSpec as QueriesSpec
    from tercet.data.specs import Sliding as Sliding
    from tercet.data.specs import TextSpec as TextSpec
    from tercet.data.split_specs import DocumentClusters as DocumentClusters
    from tercet.data.split_specs import Documents as Documents
    from tercet.data.split_specs import ExampleClusters as ExampleClusters
    from tercet.data.split_specs import Fold as Fold
    from tercet.data.split_specs import HeldOut as HeldOut
    from tercet.data.split_specs import HeldOutPairs as HeldOutPairs
    from tercet.data.split_specs import RandomSplit as RandomSplit
    from tercet.data.split_specs import Tail as Tail
    from tercet.data.summary.data_summary import DataSummary as DataSummary
    from tercet.data.summary.data_summary import summarize_data as summarize_data
    from tercet.data.summary.split_summary import SplitSummary as SplitSummary
    from tercet.data.summary.split_summary import summarize_split as summarize_split
    from tercet.data.summary.token_fit import TokenFit as TokenFit
    from tercet.data.summary.token_fit import measure_tokens as measure_tokens
else:
    export_lazily(__name__)

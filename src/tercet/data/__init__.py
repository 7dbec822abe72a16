"""From text files to rows of ids: sources, named datasets, ids on disk, rows, and the order in which they come."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.data.buckets import Buckets as Buckets
    from tercet.data.buckets import PairRows as PairRows
    from tercet.data.buckets import gather as gather
    from tercet.data.conversation_corpus import ConversationCorpus as ConversationCorpus
    from tercet.data.conversation_corpus import Conversations as Conversations
    from tercet.data.conversation_corpus import conversation_rows as conversation_rows
    from tercet.data.conversation_corpus import prepare_conversations as prepare_conversations
    from tercet.data.conversations import Conversation as Conversation
    from tercet.data.conversations import ConversationFile as ConversationFile
    from tercet.data.corpus import Corpus as Corpus
    from tercet.data.datasets import DATASETS as DATASETS
    from tercet.data.datasets import Dataset as Dataset
    from tercet.data.label_datasets import LABEL_DATASETS as LABEL_DATASETS
    from tercet.data.label_datasets import LabelDataset as LabelDataset
    from tercet.data.labelled import Labelled as Labelled
    from tercet.data.labelled import LabelledCorpus as LabelledCorpus
    from tercet.data.labelled import LabelRows as LabelRows
    from tercet.data.labelled import examples_of as examples_of
    from tercet.data.labelled import labelled_rows as labelled_rows
    from tercet.data.labelled import prepare_labelled as prepare_labelled
    from tercet.data.labels import Example as Example
    from tercet.data.labels import LabelFile as LabelFile
    from tercet.data.labels import read_examples as read_examples
    from tercet.data.order import Order as Order
    from tercet.data.pair_datasets import PAIR_DATASETS as PAIR_DATASETS
    from tercet.data.pair_datasets import PairDataset as PairDataset
    from tercet.data.pairs import PairFiles as PairFiles
    from tercet.data.pairs import read_pairs as read_pairs
    from tercet.data.parallel import Pairs as Pairs
    from tercet.data.parallel import ParallelCorpus as ParallelCorpus
    from tercet.data.parallel import pairs_of as pairs_of
    from tercet.data.parallel import prepare_pairs as prepare_pairs
    from tercet.data.prepare import prepare as prepare
    from tercet.data.prepare_tokens import prepare_tokens as prepare_tokens
    from tercet.data.rows import PackedRows as PackedRows
    from tercet.data.rows import PaddedRows as PaddedRows
    from tercet.data.rows import TokenRows as TokenRows
    from tercet.data.rows import Windows as Windows
    from tercet.data.specs import ConversationsSpec as ConversationsSpec
    from tercet.data.specs import Documents as Documents
    from tercet.data.specs import Drawn as Drawn
    from tercet.data.specs import HeldOut as HeldOut
    from tercet.data.specs import HeldOutLabels as HeldOutLabels
    from tercet.data.specs import HeldOutPairs as HeldOutPairs
    from tercet.data.specs import LabelsSpec as LabelsSpec
    from tercet.data.specs import MixtureSource as MixtureSource
    from tercet.data.specs import Packed as Packed
    from tercet.data.specs import Padded as Padded
    from tercet.data.specs import PairsSpec as PairsSpec
    from tercet.data.specs import Sliding as Sliding
    from tercet.data.specs import Tail as Tail
    from tercet.data.specs import TextSpec as TextSpec
    from tercet.data.summary import DataSummary as DataSummary
    from tercet.data.summary import look as look
    from tercet.data.token_fit import TokenFit as TokenFit
    from tercet.data.token_fit import measure_tokens as measure_tokens
    from tercet.data.word_pieces import encode_words as encode_words
else:
    export_lazily(__name__)

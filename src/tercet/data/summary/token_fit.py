"""Lengths of texts in tokens, as training would encode them, and the number that exceeds the context."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tercet.data.corpora.conversation_corpus import prepare_conversations
from tercet.data.corpora.label_corpus import prepare_labels
from tercet.data.corpora.pair_corpus import prepare_pairs
from tercet.data.corpora.text_corpus import prepare
from tercet.data.label_spec import LabelsSpec
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.data.split_specs import Tail
from tercet.data.summary.statistics import Lengths
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TokenFit:
    """Lengths of texts in tokens, compared with a context length.

    Attributes:
        tokenizer: Kind of the tokenizer.
        vocab_size: Number of ids of the tokenizer.
        tokens: Statistics of the lengths, in tokens, of documents, pairs (the longer side), labeled texts or
            conversations, including special tokens.
        max_len: Context length, or None if there is none to compare with.
        longer: Number of texts that exceed the limit: `max_len` tokens, or `max_len` + 1 for conversations, whose last
            token is only predicted.
        beyond: Number of tokens of these texts beyond the limit.
        fate: Effect on longer texts in training: a document is continued in another row ("split"), a pair is "left
            out", a labeled text or a conversation is "cut".
        unanswered: Number of conversations that are left out because no learned answer begins within the context.
    """

    tokenizer: str
    vocab_size: int
    tokens: Lengths
    max_len: int | None
    longer: int
    beyond: int
    fate: Literal["split", "left out", "cut"]
    unanswered: int = 0


def measure_tokens(
    spec: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
    max_len: int | None = None,
) -> TokenFit:
    """Measure the lengths, in tokens, of all texts in both parts of the data.

    The texts are tokenized as in training, and the ids are cached.

    Args:
        spec: Settings of the data.
        tokenizer, chat_template: Tokenizer and chat template of a model, used instead of those of the spec.
        max_len: Context length to compare with, or None.

    Raises:
        UserError: If the data cannot be read, tokenized or divided.
    """
    limit, unanswered = max_len, 0
    match spec:
        case TextSpec():
            corpus = prepare(spec, tokenizer=tokenizer)
            parts = (corpus.train_documents, corpus.train), (corpus.validation_documents, corpus.validation)
            lengths, fate = (
                np.concatenate([np.diff(np.asarray(starts), append=len(ids)) for starts, ids in parts]),
                "split",
            )
            if isinstance(spec.validation, Tail) and corpus.train[-1] != corpus.tokenizer.eos_id:
                cut = len(corpus.train_documents)  # index of the document that is split between the parts
                lengths[cut - 1] += lengths[cut]
                lengths = np.delete(lengths, cut)
        case PairsSpec():
            corpus = prepare_pairs(spec, tokenizer=tokenizer)
            sides = (np.maximum(part.source_lengths, part.target_lengths) for part in (corpus.train, corpus.validation))
            lengths, fate = np.concatenate([*sides]), "left out"
        case LabelsSpec():
            corpus = prepare_labels(spec, tokenizer=tokenizer)
            lengths, fate = np.concatenate([corpus.train.lengths, corpus.validation.lengths]) + 2, "cut"  # bos and eos
        case ConversationsSpec():
            corpus = prepare_conversations(spec, tokenizer=tokenizer, template=chat_template)
            parts = corpus.train, corpus.validation
            lengths, fate = np.concatenate([part.lengths for part in parts]), "cut"
            if max_len is not None:
                limit = max_len + 1  # the last token is only predicted
                unanswered = len(lengths) - sum(len(part.learnable(max_len)) for part in parts)
    values, numbers = np.unique(lengths, return_counts=True)
    longer = lengths[lengths > limit] if limit is not None else lengths[:0]
    return TokenFit(
        tokenizer=corpus.tokenizer.kind,
        vocab_size=corpus.tokenizer.vocab_size,
        tokens=Lengths.of(Counter(dict(zip(values.tolist(), numbers.tolist(), strict=True)))),
        max_len=max_len,
        longer=len(longer),
        beyond=int((longer - limit).sum()) if limit is not None else 0,
        fate=fate,
        unanswered=unanswered,
    )

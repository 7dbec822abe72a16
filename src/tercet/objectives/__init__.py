"""Training objectives: how rows become a batch, and the loss of a batch."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.objectives.batch import move_batch as move_batch
    from tercet.objectives.batch import pad_rows as pad_rows
    from tercet.objectives.causal import CausalBatch as CausalBatch
    from tercet.objectives.causal import causal_logprobs as causal_logprobs
    from tercet.objectives.causal import causal_loss as causal_loss
    from tercet.objectives.causal import collate_causal as collate_causal
    from tercet.objectives.causal import collate_windows as collate_windows
    from tercet.objectives.classify import THRESHOLD as THRESHOLD
    from tercet.objectives.classify import LabeledBatch as LabeledBatch
    from tercet.objectives.classify import classify_loss as classify_loss
    from tercet.objectives.classify import collate_labels as collate_labels
    from tercet.objectives.classify import label_logits as label_logits
    from tercet.objectives.contrastive import QueryBatch as QueryBatch
    from tercet.objectives.contrastive import collate_queries as collate_queries
    from tercet.objectives.contrastive import contrastive_loss as contrastive_loss
    from tercet.objectives.logprobs import likeliest_tokens as likeliest_tokens
    from tercet.objectives.logprobs import split_logits as split_logits
    from tercet.objectives.logprobs import target_logprobs as target_logprobs
    from tercet.objectives.logprobs import token_logprobs as token_logprobs
    from tercet.objectives.loss import IGNORE_INDEX as IGNORE_INDEX
    from tercet.objectives.loss import Loss as Loss
    from tercet.objectives.loss import count_targets as count_targets
    from tercet.objectives.loss import zero_loss as zero_loss
    from tercet.objectives.masked import MaskedBatch as MaskedBatch
    from tercet.objectives.masked import collate_masked as collate_masked
    from tercet.objectives.masked import concatenate_masked as concatenate_masked
    from tercet.objectives.masked import masked_loss as masked_loss
    from tercet.objectives.masked import masked_states as masked_states
    from tercet.objectives.masked import unmaskable_ids as unmaskable_ids
    from tercet.objectives.seq2seq import PairBatch as PairBatch
    from tercet.objectives.seq2seq import collate_pairs as collate_pairs
    from tercet.objectives.seq2seq import seq2seq_logprobs as seq2seq_logprobs
    from tercet.objectives.seq2seq import seq2seq_loss as seq2seq_loss
    from tercet.objectives.specs import CustomObjective as CustomObjective
    from tercet.objectives.specs import Masking as Masking
else:
    export_lazily(__name__)

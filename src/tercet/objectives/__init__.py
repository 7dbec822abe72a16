"""What is learnt: how rows become a batch, and what a batch costs."""

from tercet.objectives.causal import CausalBatch as CausalBatch
from tercet.objectives.causal import causal_loss as causal_loss
from tercet.objectives.causal import rows_to_learn as rows_to_learn
from tercet.objectives.causal import windows_to_score as windows_to_score
from tercet.objectives.classify import LabelledBatch as LabelledBatch
from tercet.objectives.classify import classify_loss as classify_loss
from tercet.objectives.classify import rows_to_classify as rows_to_classify
from tercet.objectives.loss import IGNORED as IGNORED
from tercet.objectives.loss import Loss as Loss
from tercet.objectives.loss import no_loss as no_loss
from tercet.objectives.masked import MaskedBatch as MaskedBatch
from tercet.objectives.masked import join_masked as join_masked
from tercet.objectives.masked import masked_loss as masked_loss
from tercet.objectives.masked import masked_rows as masked_rows
from tercet.objectives.masked import special_tokens as special_tokens
from tercet.objectives.masking import Masking as Masking
from tercet.objectives.seq2seq import PairBatch as PairBatch
from tercet.objectives.seq2seq import pairs_to_learn as pairs_to_learn
from tercet.objectives.seq2seq import seq2seq_loss as seq2seq_loss

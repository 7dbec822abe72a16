"""Work at which PyTorch is slow, in C++ that is compiled where it runs; each part has a plain way beside it."""

from tercet.kernel.activations import bend as bend
from tercet.kernel.activations import takes_bending as takes_bending
from tercet.kernel.adam import adam_ as adam_
from tercet.kernel.adam import norm as norm
from tercet.kernel.adam import takes_gradients as takes_gradients
from tercet.kernel.best_tokens import best_tokens as best_tokens
from tercet.kernel.best_tokens import takes_scores as takes_scores
from tercet.kernel.compiled import library as library
from tercet.kernel.cross_entropy import cross_entropy_ as cross_entropy_
from tercet.kernel.cross_entropy import takes_logits as takes_logits
from tercet.kernel.few_queries import few_queries as few_queries
from tercet.kernel.few_queries import takes_queries as takes_queries
from tercet.kernel.linear import apply_linear as apply_linear
from tercet.kernel.linear import linear_back as linear_back
from tercet.kernel.linear import linear_there as linear_there
from tercet.kernel.linear import takes_linear as takes_linear
from tercet.kernel.rows import multiply_rows as multiply_rows
from tercet.kernel.rows import takes_rows as takes_rows
from tercet.kernel.softmax import seen_softmax as seen_softmax
from tercet.kernel.softmax import takes_softmax as takes_softmax
from tercet.kernel.whole_attention import attend_whole as attend_whole
from tercet.kernel.whole_attention import takes_whole as takes_whole

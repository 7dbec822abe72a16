"""Work at which PyTorch is slow, in C++, compiled before or where it runs; each part has a plain way beside it."""

from tercet.kernel.adam import adam_ as adam_
from tercet.kernel.adam import gradient_norm as gradient_norm
from tercet.kernel.adam import supports_gradients as supports_gradients
from tercet.kernel.build import KernelChoice as KernelChoice
from tercet.kernel.build import build_id as build_id
from tercet.kernel.build import choose_kernels as choose_kernels
from tercet.kernel.build import library as library
from tercet.kernel.build import warm_up as warm_up
from tercet.kernel.checked import has_memory as has_memory
from tercet.kernel.checked import is_transforming as is_transforming
from tercet.kernel.cross_entropy import cross_entropy_ as cross_entropy_
from tercet.kernel.cross_entropy import supports_logits as supports_logits
from tercet.kernel.dispatch import activation as activation
from tercet.kernel.dispatch import attention as attention
from tercet.kernel.dispatch import linear as linear
from tercet.kernel.operators import refuse_second_derivative as refuse_second_derivative
from tercet.kernel.top_tokens import supports_scores as supports_scores
from tercet.kernel.top_tokens import top_tokens as top_tokens
from tercet.kernel.training_linear import linear_backward as linear_backward
from tercet.kernel.training_linear import linear_forward as linear_forward
from tercet.kernel.training_linear import supports_training_linear as supports_training_linear

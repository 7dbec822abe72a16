"""CPU kernels in C++ for operations that are slow in PyTorch, with PyTorch as fallback.

The kernels are prebuilt in the wheel or compiled on this machine. Other packages import only the names below.
"""

from tercet.kernel.activations import activation_numbers as activation_numbers
from tercet.kernel.adam import adam_ as adam_
from tercet.kernel.adam import gradient_norm as gradient_norm
from tercet.kernel.adam import supports_gradients as supports_gradients
from tercet.kernel.api import KernelDescription as KernelDescription
from tercet.kernel.api import activation as activation
from tercet.kernel.api import attention as attention
from tercet.kernel.api import cross_entropy_ as cross_entropy_
from tercet.kernel.api import describe_kernels as describe_kernels
from tercet.kernel.api import linear as linear
from tercet.kernel.api import top_tokens as top_tokens
from tercet.kernel.build import build_id as build_id
from tercet.kernel.build import warm_up as warm_up
from tercet.kernel.denormals import flush_denormals as flush_denormals
from tercet.kernel.denormals import is_flushing_denormals as is_flushing_denormals
from tercet.kernel.fused_step import LANES as LANES
from tercet.kernel.fused_step import STREAM as STREAM
from tercet.kernel.fused_step import Bias as Bias
from tercet.kernel.fused_step import Program as Program
from tercet.kernel.fused_step import Step as Step
from tercet.kernel.fused_step import describe_memory as describe_memory
from tercet.kernel.fused_step import supports_program as supports_program
from tercet.kernel.fused_step import supports_tables as supports_tables
from tercet.kernel.fused_step import supports_weights as supports_weights
from tercet.kernel.levels import BF16 as BF16
from tercet.kernel.levels import cpu_instructions as cpu_instructions
from tercet.kernel.levels import cpu_model as cpu_model
from tercet.kernel.operators import reject_second_derivative as reject_second_derivative
from tercet.kernel.threads import is_thread_independent as is_thread_independent
from tercet.kernel.threads import kernel_threads as kernel_threads
from tercet.kernel.threads import thread_independent as thread_independent
from tercet.kernel.training_linear import linear_backward as linear_backward
from tercet.kernel.training_linear import linear_forward as linear_forward
from tercet.kernel.training_linear import supports_training_linear as supports_training_linear
from tercet.kernel.tuning import kernel_table_id as kernel_table_id

"""Tensor parallelism: each rank has some of the attention heads and a part of the feed-forward width of each block.

    sublayer       split of its matrices                      output for the input h, with the matrices of rank r
    attention      query, key, value by columns, out by rows  sum over ranks of out_r(attend(q_r h, k_r h, v_r h))
    feed-forward   up, gate by columns, down by rows          sum over ranks of down_r(act(up_r h))

Shoeybi et al., "Megatron-LM" (2019), section 3, with PyTorch's DTensor. All ranks process the same rows. The input of a
sublayer is replicated. An all-reduce sums the outputs of the ranks and, in the backward pass, the gradients of the
input. Norms, embeddings and output heads are replicated, and their gradients are the same on all ranks.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tercet.models import AnyModel, blocks_of
from tercet.nn.attention import Attention
from tercet.nn.feedforward import FeedForward

ATTENTION = {"query": ColwiseParallel, "key": ColwiseParallel, "value": ColwiseParallel, "out": RowwiseParallel}
FEEDFORWARD = {"up": ColwiseParallel, "gate": ColwiseParallel, "down": RowwiseParallel}


def parallelize(model: AnyModel, mesh: DeviceMesh) -> None:
    """Replace the matrices of each block, in place, by the parts of this rank.

    Args:
        model: Model with the same weights on all ranks.
        mesh: Device mesh with one dimension, over the ranks that split the model.
    """
    for block in blocks_of(model):
        for part in block.modules():
            if isinstance(part, Attention):
                _parallelize_attention(part, mesh)
            elif isinstance(part, FeedForward):
                _parallelize(part, FEEDFORWARD, mesh)


def _parallelize_attention(attention: Attention, mesh: DeviceMesh) -> None:
    _parallelize(attention, ATTENTION, mesh)
    attention.n_heads //= mesh.size()
    attention.n_kv_heads //= mesh.size()

    def sum_over_ranks(gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total, group=mesh.get_group())
        return total

    for norm in (attention.query_norm, attention.key_norm):  # applied only to the heads of this rank
        for weight in norm.parameters():
            weight.register_hook(sum_over_ranks)


def _parallelize(part: nn.Module, styles: dict[str, Any], mesh: DeviceMesh) -> None:
    plan = {name: style() for name, style in styles.items() if getattr(part, name) is not None}
    parallelize_module(part, mesh, plan, src_data_rank=None)

    def prepare(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Convert the inputs to DTensors, so that their gradients are summed once for all layers that use them."""
        if (bias := options.get("bias")) is not None:  # attention bias of all heads; each rank needs that of its heads
            sharded_bias = DTensor.from_local(bias, mesh, [Replicate()]).redistribute(placements=[Shard(1)])
            options["bias"] = sharded_bias.to_local()
        return tuple(None if x is None else _to_dtensor(x, mesh) for x in inputs), options

    part.register_forward_pre_hook(prepare, with_kwargs=True)


def _to_dtensor(x: Tensor, mesh: DeviceMesh) -> DTensor:
    """Return a replicated DTensor in the precision of autocast, which reduces the bytes of its gradient."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return DTensor.from_local(x, mesh, [Replicate()])

"""A model whose every block is cut across ranks: each has some of the heads and some of the network's inner width.

    attention      query, key, value by columns, out by rows       h -> sum over ranks of out_r(attend(q_r, k_r, v_r))
    feed-forward   up, gate by columns, down by rows               h -> sum over ranks of down_r(act(up_r(h)))

Shoeybi et al., "Megatron-LM" (2019), section 3, by PyTorch's DTensor. All ranks have the same rows. A sublayer reads
what is whole on each of them, and its outputs are added up by an all-reduce; so is, in the backward pass, the gradient
of what it reads. Norms, embeddings and heads are whole everywhere: their gradients are the same on all ranks.
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
    """Leave of each block's matrices this rank's part. All ranks have the same weights before."""
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

    for norm in (attention.query_norm, attention.key_norm):  # they see this rank's heads alone
        for weight in norm.parameters():
            weight.register_hook(sum_over_ranks)


def _parallelize(part: nn.Module, styles: dict[str, Any], mesh: DeviceMesh) -> None:
    plan = {name: style() for name, style in styles.items() if getattr(part, name) is not None}
    parallelize_module(part, mesh, plan, src_data_rank=None)

    def prepare(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """What is read becomes one DTensor, so that its gradient is added up once, however many layers read it."""
        if (bias := options.get("bias")) is not None:  # of all heads
            sharded_bias = DTensor.from_local(bias, mesh, [Replicate()]).redistribute(placements=[Shard(1)])
            options["bias"] = sharded_bias.to_local()
        return tuple(None if x is None else _to_dtensor(x, mesh) for x in inputs), options

    part.register_forward_pre_hook(prepare, with_kwargs=True)


def _to_dtensor(x: Tensor, mesh: DeviceMesh) -> DTensor:
    """In what it is multiplied in: so many bytes its gradient has too."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return DTensor.from_local(x, mesh, [Replicate()])

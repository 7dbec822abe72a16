"""Program of each rank in `test_tensor_parallel.py`.

It computes losses and gradients of models that are split over ranks, and of the same models on one rank.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from tercet.models import (
    AnyModel,
    DecoderOnlySpec,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
    build,
    stack_specs,
    stacks_of,
)
from tercet.nn.specs import ALiBi, RelativeBias, Rotary
from tercet.training.distributed.tensor_parallel import parallelize
from tercet.training.optim.adamw import is_sharded, local_parts

STACK = StackSpec(d_model=32, n_layers=1, n_heads=4)
TWO_LAYERS = replace(STACK, n_layers=2)
LLAMA = replace(STACK, position=Rotary(), norm="rms", norm_bias=False, gated=True, bias=False)
GPT = DecoderOnlySpec(vocab_size=50, max_len=24, stack=TWO_LAYERS)
BERT = EncoderOnlySpec(vocab_size=50, max_len=24, stack=replace(STACK, placement="post"), masked_head=MaskedHead())
PAIRS = EncoderDecoderSpec(vocab_size=50, max_len=24, encoder=STACK, decoder=STACK)
MODELS: dict[str, Any] = {
    "gpt": GPT,
    "llama, grouped queries": replace(GPT, stack=replace(LLAMA, n_kv_heads=2)),
    "norms of queries and keys": replace(GPT, stack=replace(LLAMA, qk_norm=True)),
    "alibi": replace(GPT, stack=replace(STACK, position=ALiBi())),
    "relative bias": replace(GPT, stack=replace(STACK, position=RelativeBias())),
    "relative bias of each layer": replace(GPT, stack=replace(TWO_LAYERS, position=RelativeBias(per_layer=True))),
    "parallel sublayers": replace(GPT, stack=replace(LLAMA, parallel=True)),
    "wide heads": replace(GPT, stack=replace(STACK, d_head=24, d_ff=40)),
    "bert": BERT,
    "translator": PAIRS,
    "translator, relative bias": replace(PAIRS, encoder=replace(STACK, position=RelativeBias())),
}

CHECKPOINTED = ("gpt", "bert", "translator")  # also tested with activation checkpointing


def gradients(model: AnyModel, spec: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Return the gradients by name, and the loss."""
    real = torch.arange(tokens.shape[1]) < torch.tensor([20, 13])[:, None]  # one row is padded
    if isinstance(spec, EncoderDecoderSpec):
        scores = model(tokens, tokens.flip(1), source_token_mask=real)
    else:
        scores = model(tokens, token_mask=real if spec is BERT else None)
    loss = scores.logsumexp(-1).square().mean()
    loss.backward()
    gradients_by_name: dict[str, Any] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {
        "loss": loss.detach(),
        **{name: x.full_tensor() if is_sharded(x) else x for name, x in gradients_by_name.items()},
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tokens = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(0))
    results: dict[str, Any] = {}
    for name, spec in MODELS.items():
        if any(stack.kv_heads % mesh.size() for stack in stack_specs(spec)):
            continue
        for computed_again in (False, True) if name in CHECKPOINTED else (False,):
            whole_model, model_part = build(spec, seed=1), build(spec, seed=1)
            for stack in stacks_of(model_part):
                stack.activation_checkpointing = computed_again
            parallelize(model_part, mesh)
            numbers = sum(x.numel() for x in local_parts(model_part.parameters()))
            title = f"{name}, computed again" if computed_again else name
            results[title] = (gradients(model_part, spec, tokens), gradients(whole_model, spec, tokens), numbers)
    torch.save(results, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()

"""nanoGPT's `model.py`, from a given checkout, with Tercet's weights.

It has biases if Tercet's model has them; nanoGPT's `train.py` uses none. The run of its README on a CPU is
`--device=cpu --compile=False`: fp32, PyTorch's attention kernel, an optimizer of many kernels. With `flash` switched
off, its explicit attention formula runs.
"""

import importlib.util
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tercet.models import DecoderOnly

NAMES = {
    "self_attention.out": "attn.c_proj", "self_residual.before": "ln_1", "feedforward_residual.before": "ln_2",
    "feedforward.up": "mlp.c_fc", "feedforward.down": "mlp.c_proj",
}  # fmt: skip


def nanogpt(checkout: Path, ours: DecoderOnly, attention: str) -> nn.Module:
    spec, stack = ours.spec, ours.spec.stack
    theirs = _module(checkout)
    with torch.random.fork_rng(devices=[]), redirect_stdout(StringIO()):  # it prints its size
        model: Any = theirs.GPT(
            theirs.GPTConfig(
                block_size=spec.max_len, vocab_size=spec.vocab_size, n_layer=stack.n_layers, n_head=stack.n_heads,
                n_embd=stack.d_model, dropout=stack.dropout.embedding, bias=stack.bias,
            )
        )  # fmt: skip
    state = ours.state_dict()
    their_state = model.state_dict()
    with torch.no_grad():
        their_state["transformer.wte.weight"].copy_(state["embedding.weight"])
        their_state["transformer.wpe.weight"].copy_(state["stack.position.table.weight"])
        for kind in ("weight", "bias") if stack.bias else ("weight",):
            their_state[f"transformer.ln_f.{kind}"].copy_(state[f"stack.final_norm.{kind}"])
            for number in range(stack.n_layers):
                our_block, their_block = f"stack.blocks.{number}", f"transformer.h.{number}"
                three = [state[f"{our_block}.self_attention.{part}.{kind}"] for part in ("query", "key", "value")]
                their_state[f"{their_block}.attn.c_attn.{kind}"].copy_(torch.cat(three))
                for our_name, their_name in NAMES.items():
                    their_state[f"{their_block}.{their_name}.{kind}"].copy_(state[f"{our_block}.{our_name}.{kind}"])
    for block in model.transformer.h:
        if attention == "eager":
            mask = torch.tril(torch.ones(spec.max_len, spec.max_len)).view(1, 1, spec.max_len, spec.max_len)
            block.attn.flash = False
            block.attn.register_buffer("bias", mask, persistent=False)
    return model


def _module(checkout: Path) -> ModuleType:
    path = checkout / "model.py"
    if not path.is_file():
        raise ValueError(f"{path} not found; pass --nanogpt with a checkout of nanoGPT")
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks up its own module
    spec.loader.exec_module(module)
    return module

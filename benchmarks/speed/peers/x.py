"""x-transformers at Tercet's shape, with random weights: its attention has no biases, so it cannot hold the same."""

import torch
from torch import nn

from tercet.models import DecoderOnlySpec


def x_transformer(spec: DecoderOnlySpec, *, flash: bool) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    stack = spec.stack
    with torch.random.fork_rng(devices=[]):
        return TransformerWrapper(
            num_tokens=spec.vocab_size,
            max_seq_len=spec.max_len,
            tie_embedding=True,
            attn_layers=Decoder(
                dim=stack.d_model,
                depth=stack.n_layers,
                heads=stack.n_heads,
                attn_dim_head=stack.d_model // stack.n_heads,
                attn_flash=flash,
            ),
        )

"""PyTorch's own Transformer as a language model and as a translator, with Tercet's weights.

`torch.nn.TransformerEncoder` under a causal mask is a GPT; `torch.nn.Transformer` between embeddings is the paper's.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.models import DecoderOnly, EncoderDecoder, StackSpec
from tercet.nn.specs import Sinusoidal

ATTENTION = {"query": 0, "key": 1, "value": 2}


class PyTorchGPT(nn.Module):
    def __init__(self, ours: DecoderOnly) -> None:
        super().__init__()
        spec, stack = ours.spec, ours.spec.stack
        layer = _layer(nn.TransformerEncoderLayer, stack)
        norm = nn.LayerNorm(stack.d_model, eps=stack.norm_eps, bias=stack.norm_bias)
        self.stack = nn.TransformerEncoder(layer, stack.n_layers, norm, enable_nested_tensor=False)
        self.embedding = nn.Embedding(spec.vocab_size, stack.d_model)
        self.positions = nn.Embedding(spec.max_len, stack.d_model)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(spec.max_len), persistent=False)
        state = ours.state_dict()
        with torch.no_grad():
            self.embedding.weight.copy_(state["embedding.weight"])
            self.positions.weight.copy_(state["stack.position.table.weight"])
            _fill(self.stack, state, "stack")

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        mask = self.mask[: tokens.shape[1], : tokens.shape[1]]  # pyright: ignore[reportIndexIssue]
        return F.linear(self.stack(x, mask=mask, is_causal=True), self.embedding.weight)


class PyTorchTranslator(nn.Module):
    """The paper's model: post-norm, fixed positions, one embedding for both sides and the logits, scaled by sqrt(d)."""

    def __init__(self, ours: EncoderDecoder, *, pad: int) -> None:
        super().__init__()
        spec, stack = ours.spec, ours.spec.encoder
        self.pad, self.scale = pad, math.sqrt(stack.d_model)
        reader = nn.TransformerEncoder(
            _layer(nn.TransformerEncoderLayer, stack), stack.n_layers, enable_nested_tensor=False
        )
        writer = nn.TransformerDecoder(_layer(nn.TransformerDecoderLayer, stack), spec.decoder.n_layers)
        self.stacks = nn.Transformer(
            stack.d_model, stack.n_heads, batch_first=True, custom_encoder=reader, custom_decoder=writer
        )
        self.embedding = nn.Embedding(spec.vocab_size, stack.d_model)
        self.dropout = nn.Dropout(stack.dropout.embedding)
        assert isinstance(stack.position, Sinusoidal)
        place = torch.arange(spec.max_len)[:, None]
        angle = place / stack.position.base ** (torch.arange(0, stack.d_model, 2) / stack.d_model)
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # shape (T, D)
        self.register_buffer("positions", table, persistent=False)
        state = ours.state_dict()
        with torch.no_grad():
            self.embedding.weight.copy_(state["embedding.weight"])
            _fill(reader, state, "encoder")
            _fill(writer, state, "decoder")

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.scale + self.positions[: tokens.shape[1]])  # pyright: ignore

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        empty = source == self.pad
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device).isinf()
        hidden = self.stacks(
            self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True,
            src_key_padding_mask=empty, memory_key_padding_mask=empty,
        )  # fmt: skip
        return F.linear(hidden, self.embedding.weight)


def _layer(kind: type[nn.Module], stack: StackSpec) -> nn.Module:
    activation = {"gelu": "gelu", "relu": "relu"}[stack.activation]
    with torch.random.fork_rng(devices=[]):
        return kind(
            stack.d_model, stack.n_heads, stack.inner_width, dropout=stack.dropout.residual,
            activation=activation, layer_norm_eps=stack.norm_eps, batch_first=True, norm_first=stack.placement == "pre",
            bias=stack.bias,
        )  # fmt: skip


def _fill(stack: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Copy every tensor of Tercet's model; queries, keys and values are one matrix there."""
    for number, layer in enumerate(stack.layers):  # pyright: ignore
        crosses = hasattr(layer, "multihead_attn")
        parts = {"self_attention": layer.self_attn, "feedforward.up": layer.linear1, "feedforward.down": layer.linear2}
        place = "before" if layer.norm_first else "after"
        parts[f"self_residual.{place}"] = layer.norm1
        parts[f"feedforward_residual.{place}"] = layer.norm3 if crosses else layer.norm2
        if crosses:
            parts |= {"cross_attention": layer.multihead_attn, f"cross_residual.{place}": layer.norm2}
        for part, module in parts.items():
            for kind in ("weight", "bias") if layer.linear1.bias is not None else ("weight",):
                start = f"{name}.blocks.{number}.{part}"
                if not isinstance(module, nn.MultiheadAttention):
                    getattr(module, kind).copy_(state[f"{start}.{kind}"])
                    continue
                getattr(module, f"in_proj_{kind}").copy_(torch.cat([state[f"{start}.{a}.{kind}"] for a in ATTENTION]))
                getattr(module.out_proj, kind).copy_(state[f"{start}.out.{kind}"])
    if stack.norm is not None:
        for kind, tensor in stack.norm.named_parameters():
            tensor.copy_(state[f"{name}.final_norm.{kind}"])  # pyright: ignore

"""Modules for export, with tensors as inputs and outputs; the inputs are named as the outputs of tokenizers.

    language model   input_ids, position_ids (B, T), attention_mask (B, P + T), past_key_values.I.key and .value
                     -> logits (B, T, V), present.I.key and .value
    encoder          input_ids, attention_mask[, token_type_ids] (B, T) -> hidden (B, T, D), and the outputs of its
                     heads; a regression has the unit of the training targets
    translator       input_ids, attention_mask (B, M) -> last_hidden_state (B, M, D)
                     input_ids (B, T), encoder_hidden_states (B, M, D), encoder_attention_mask (B, M),
                     past_key_values.I.decoder.key and .value, past_key_values.I.encoder.key and .value
                     -> logits (B, T, V), present.I...

The past of layer I is the `present` of the previous call: keys and values (B, G, P, K) of P tokens, and in
cross-attention those of the memory. It is empty in the first call, so the same graph computes prefill and steps.
`attention_mask` is 0 at padding; a language model may have padding anywhere, and `position_ids` is then the number of
real tokens before each new one. The targets of a translator have no mask. Padding on their right has no effect on the
logits before it, but must not become part of the past.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.checkpoint.foreign.onnx_cache import PastCache, table_names
from tercet.models import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly, StackSpec
from tercet.models.target_scale import remove_target_scale
from tercet.nn import Attention, attend_by_hand
from tercet.nn.cache import KVCache
from tercet.nn.positions import Rotation, rotate

Dims = dict[int, str]
BATCH = "batch_size"  # transformers.js creates an empty past from this name
ROWS, SOURCE = {0: BATCH, 1: "length"}, {0: BATCH, 1: "source_length"}
PAST_PREFIX = "past_key_values"
# Sizes of the examples. The exporter treats a size of 1 as fixed, and equal sizes as the same variable.
N_ROWS, N_PAST, N_SOURCE, N_PAST_SOURCE = 8, 4, 11, 5


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A module with example inputs.

    Attributes:
        name: Name of the file to write.
        module: Module whose forward pass is exported.
        inputs: Example inputs by name, for tracing.
        dims: For each input, the names of its variable dimensions, by the number of the dimension.
        outputs: Names of the outputs.
    """

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    dims: dict[str, Dims]
    outputs: tuple[str, ...]

    @property
    def n_named(self) -> int:
        """Number of inputs that are not tables of the past."""
        return sum(not name.startswith(PAST_PREFIX) for name in self.inputs)


def graphs_of(model: AnyModel) -> list[Graph]:
    """Return the graphs of a model: encoder and decoder of a translator, otherwise one. The model is not changed."""
    model = remove_target_scale(model) if isinstance(model, EncoderOnly) else model
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for part in model.modules():
        if isinstance(part, Attention):
            part.forward = MethodType(_attend, part)
    ids = torch.zeros(N_ROWS, min(3, model.max_len), dtype=torch.long)
    if isinstance(model, EncoderOnly):
        inputs = {"input_ids": (ids, ROWS), "attention_mask": (torch.ones_like(ids), ROWS)}
        if model.spec.n_segments > 1:
            inputs["token_type_ids"] = (torch.zeros_like(ids), ROWS)
        encoder = EncoderGraph(model)
        return [_graph("model.onnx", encoder, inputs, *encoder.outputs)]
    return [_language_model(model, ids)] if isinstance(model, DecoderOnly) else _translator(model, ids)


def _language_model(model: DecoderOnly, ids: Tensor) -> Graph:
    inputs = {
        "input_ids": (ids, ROWS),
        "attention_mask": (torch.ones(N_ROWS, N_PAST + ids.shape[1], dtype=torch.long), {0: BATCH, 1: "total_length"}),
        "position_ids": (torch.zeros_like(ids), ROWS),  # a tensor that is passed twice would become one input
        **_past(model.spec.stack),
    }
    present = table_names("present", model.spec.stack.n_layers)
    return _graph("model.onnx", LanguageModelGraph(model), inputs, "logits", *present)


def _translator(model: EncoderDecoder, ids: Tensor) -> list[Graph]:
    spec = model.spec
    inputs = {
        "input_ids": (ids, ROWS),
        "encoder_hidden_states": (torch.zeros(N_ROWS, N_SOURCE, spec.encoder.d_model), SOURCE),
        "encoder_attention_mask": (torch.ones(N_ROWS, N_SOURCE, dtype=torch.long), SOURCE),
        **_past(spec.decoder, cross=True),
    }
    present = table_names("present", spec.decoder.n_layers, cross=True)
    return [
        _graph(
            "encoder_model.onnx",
            SourceEncoderGraph(model),
            {"input_ids": (ids, SOURCE), "attention_mask": (torch.ones_like(ids), SOURCE)},
            "last_hidden_state",
        ),
        _graph("decoder_model_merged.onnx", DecoderGraph(model), inputs, "logits", *present),
    ]


def _past(stack: StackSpec, *, cross: bool = False) -> dict[str, tuple[Tensor, Dims]]:
    def table(name: str) -> tuple[Tensor, Dims]:
        length, dim = (N_PAST_SOURCE, "past_source_length") if ".encoder." in name else (N_PAST, "past_length")
        return torch.zeros(N_ROWS, stack.kv_heads, length, stack.head_width), {0: BATCH, 2: dim}

    return {name: table(name) for name in table_names(PAST_PREFIX, stack.n_layers, cross=cross)}


def _graph(name: str, module: nn.Module, named_inputs: dict[str, tuple[Tensor, Dims]], *outputs: str) -> Graph:
    inputs = {key: tensor for key, (tensor, _) in named_inputs.items()}
    dims = {key: dict(dims) for key, (_, dims) in named_inputs.items()}
    return Graph(name=name, module=module.eval(), inputs=inputs, dims=dims, outputs=outputs)


class LanguageModelGraph(nn.Module):
    def __init__(self, model: DecoderOnly) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B S"],
        position_ids: Int[Tensor, "B T"],
        *past: Float[Tensor, "B G P K"],
    ) -> tuple[Tensor, ...]:
        real = attention_mask != 0  # (B, S), with S = P + T
        cache = PastCache(
            past,
            positions=position_ids,
            key_positions=real.long().cumsum(1) - real.long(),
            mask=(_causal(past[0], input_ids) & real[:, None])[:, None],
            capacity=self.model.max_len,
        )
        logits = self.model.logits(self.model.hidden(input_ids, cache=cache))
        return logits, *cache.tables()


class EncoderGraph(nn.Module):
    """An encoder and all its heads. `outputs` contains the names of the returned tensors, in order."""

    def __init__(self, model: EncoderOnly) -> None:
        super().__init__()
        self.model, spec = model, model.spec
        heads = {
            "logits": spec.masked_head is not None,
            "pooled": spec.pooler,
            "next_sentence": spec.next_sentence,
            "classes": spec.classifier is not None,
        }
        self.outputs = ("hidden", *(name for name, has_head in heads.items() if has_head))

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"],
        token_type_ids: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Tensor, ...]:
        real = attention_mask != 0  # (B, T)
        hidden = self.model.hidden(input_ids, token_mask=real, segments=token_type_ids)  # (B, T, D)
        first = real.long().argmax(1)[:, None, None].expand(-1, 1, hidden.shape[-1])
        first = hidden.gather(1, first)  # (B, 1, D), for heads that read only the first real token
        model, head = self.model, self.model.spec.classifier
        uses_first_token = head is not None and head.over == "texts" and head.pooling != "mean"
        heads: dict[str, Callable[[], Tensor]] = {
            "hidden": lambda: hidden,
            "logits": lambda: model.logits(hidden),
            "pooled": lambda: model.pooled(first),
            "next_sentence": lambda: model.next_sentence_logits(first),
            "classes": lambda: model.classify(first) if uses_first_token else model.classify(hidden, real),
        }
        return tuple(heads[name]() for name in self.outputs)


class SourceEncoderGraph(nn.Module):
    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Int[Tensor, "B M"], attention_mask: Int[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
        return self.model.encode(input_ids, token_mask=attention_mask != 0)


class DecoderGraph(nn.Module):
    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        encoder_hidden_states: Float[Tensor, "B M D"],
        encoder_attention_mask: Int[Tensor, "B M"],
        *past: Tensor,
    ) -> tuple[Tensor, ...]:
        mask = _causal(past[0], input_ids)  # (T, S), with S = P + T
        columns = torch.arange(mask.shape[1], device=input_ids.device)[None]  # (1, S)
        cache = PastCache(
            past,
            positions=columns[:, past[0].shape[2] :],
            key_positions=columns,
            mask=mask[None, None],
            capacity=self.model.max_len,
            cross=True,
        )
        rest = encoder_hidden_states[:, past[2].shape[2] :]  # the part of the memory that is not in the past
        real = encoder_attention_mask != 0
        logits = self.model.logits(self.model.hidden(input_ids, rest, memory_token_mask=real, cache=cache))
        return logits, *cache.tables()


def _causal(past: Float[Tensor, "B G P K"], ids: Int[Tensor, "B T"]) -> Bool[Tensor, "T S"]:
    """Return a mask in which new token t attends to the P previous tokens and to new tokens 0..t."""
    n_past, n_tokens = past.shape[2], ids.shape[1]
    columns = torch.arange(n_past + n_tokens, device=ids.device)
    return columns <= columns[n_past:, None]


def _attend(
    self: Attention,
    x: Float[Tensor, "B T D"],
    source: Float[Tensor, "B S D"] | None = None,
    *,
    rotation: Rotation | None = None,
    cache: KVCache | None = None,
    **options: Any,
) -> Float[Tensor, "B T D"]:
    """Compute `Attention.forward` in a form that can be exported.

    `len(q)`, which would be traced as a constant batch size, is avoided. `attend_by_hand` is used, so that in every
    runtime the result is zero for a query that may not attend to any key.
    """
    q = self.query_norm(self.query(x).unflatten(-1, (self.n_heads, self.d_head))).transpose(1, 2)  # (B, H, T, K)
    q = q if rotation is None else rotate(q, rotation)
    project = partial(self.keys_values, x if source is None else source, rotation)
    k, v = project() if cache is None else cache.keys_values(project)  # (B, G, S, K)
    return self.out(attend_by_hand(q, k, v, softcap=self.softcap, **options).transpose(1, 2).flatten(-2))  # (B, T, D)

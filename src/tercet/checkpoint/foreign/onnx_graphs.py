"""Modules for export, with tensors as inputs and outputs; the inputs are named as the outputs of tokenizers.

    language model   input_ids (B, T) -> logits (B, T, V)
    encoder          input_ids, attention_mask[, token_type_ids] (B, T) -> hidden (B, T, D), and the outputs of its
                     heads; a regression has the unit of the training targets
    translator       input_ids, attention_mask (B, S) -> memory (B, S, D)
                     decoder_input_ids (B, T), memory, attention_mask (B, S) -> logits (B, T, V)

Language models and decoders are causal, so padding of their input on the right has no effect and needs no mask. The
`attention_mask` of a decoder is that of the source.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.models import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from tercet.models.target_scale import remove_target_scale
from tercet.nn import Attention, attend_by_hand
from tercet.nn.positions import Rotation, rotate

Dims = dict[int, str]
ROWS, SOURCE = {0: "batch", 1: "length"}, {0: "batch", 1: "source_length"}


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


def graphs_of(model: AnyModel) -> list[Graph]:
    """Return the graphs of a model: encoder and decoder of a translator, otherwise one. The model is not changed."""
    model = remove_target_scale(model) if isinstance(model, EncoderOnly) else model
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for part in model.modules():
        if isinstance(part, Attention):
            part.forward = MethodType(_attend, part)
    ids = torch.zeros(2, min(3, model.max_len), dtype=torch.long)  # the exporter treats a size of 1 as fixed
    token_mask = torch.ones_like(ids)
    if isinstance(model, DecoderOnly):
        return [_graph("model.onnx", LanguageModelGraph(model), {"input_ids": (ids, ROWS)}, "logits")]
    if isinstance(model, EncoderOnly):
        inputs = {"input_ids": (ids, ROWS), "attention_mask": (token_mask, ROWS)}
        if model.spec.n_segments > 1:
            inputs["token_type_ids"] = (torch.zeros_like(ids), ROWS)
        encoder = EncoderGraph(model)
        return [_graph("model.onnx", encoder, inputs, *encoder.outputs)]
    mask = (token_mask, SOURCE)
    memory = torch.zeros(*ids.shape, model.spec.encoder.d_model)
    inputs = {"decoder_input_ids": (ids, ROWS), "memory": (memory, SOURCE), "attention_mask": mask}
    return [
        _graph(
            "encoder.onnx", SourceEncoderGraph(model), {"input_ids": (ids, SOURCE), "attention_mask": mask}, "memory"
        ),
        _graph("decoder.onnx", DecoderGraph(model), inputs, "logits"),
    ]


def _graph(name: str, module: nn.Module, named_inputs: dict[str, tuple[Tensor, Dims]], *outputs: str) -> Graph:
    inputs = {key: tensor for key, (tensor, _) in named_inputs.items()}
    dims = {key: dict(dims) for key, (_, dims) in named_inputs.items()}
    return Graph(name=name, module=module.eval(), inputs=inputs, dims=dims, outputs=outputs)


class LanguageModelGraph(nn.Module):
    def __init__(self, model: DecoderOnly) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        return self.model(input_ids)


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

    def forward(self, input_ids: Int[Tensor, "B S"], attention_mask: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        return self.model.encode(input_ids, token_mask=attention_mask != 0)


class DecoderGraph(nn.Module):
    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, decoder_input_ids: Int[Tensor, "B T"], memory: Float[Tensor, "B S D"], attention_mask: Int[Tensor, "B S"]
    ) -> Float[Tensor, "B T V"]:
        real = attention_mask != 0
        return self.model.logits(self.model.hidden(decoder_input_ids, memory, memory_token_mask=real))


def _attend(
    self: Attention,
    x: Float[Tensor, "B T D"],
    source: Float[Tensor, "B S D"] | None = None,
    *,
    rotation: Rotation | None = None,
    cache: None = None,
    **options: Any,
) -> Float[Tensor, "B T D"]:
    """Compute `Attention.forward` in a form that can be exported.

    `len(q)`, which would be traced as a constant batch size, is avoided. `attend_by_hand` is used, so that in every
    runtime the result is zero for a query that may not attend to any key.
    """
    q = self.query_norm(self.query(x).unflatten(-1, (self.n_heads, self.d_head))).transpose(1, 2)  # (B, H, T, K)
    q = q if rotation is None else rotate(q, rotation)
    k, v = self.keys_values(x if source is None else source, rotation)  # (B, G, S, K)
    return self.out(attend_by_hand(q, k, v, **options).transpose(1, 2).flatten(-2))  # (B, T, D)

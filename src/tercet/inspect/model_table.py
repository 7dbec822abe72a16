"""Shapes, parameters, arithmetic and memory of each layer of a model.

    forward   2 · in · out for each matrix and 4 · T · H · K for each attention, FLOPs per token
    training  6 N + 12 L · H · K · T: three times the forward pass; H · K is d_model in most models, L counts attentions

Chowdhery et al., "PaLM" (2022), appendix B. N counts the weights that are used in matrix products, including the
unembedding, tied or not, but no lookup tables. As there, attention is counted as if every token attended to all T; a
causal kernel needs about half of that. Norms, biases and activations are not counted: they are about 0.1%.

Translators are counted for a source and a target of T tokens each, per pair of tokens: one of the source, one of the
target. The encoder, and the keys and values of cross-attention, process the first; everything else the second. So the
formulas hold unchanged, with one attention per encoder layer and two per decoder layer.

Encoder-only models are counted as if every position were scored. The masked-LM loss only scores masked positions, so
the head's share is smaller by the masking rate. Layers that process one row per text (pooler, next sentence, text
classifier) are not counted.

The model is built from fake tensors, which have shapes but no storage, so large models need no memory.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tercet.models import AnyModel, AnySpec, EncoderDecoder, EncoderOnly, build
from tercet.nn import Attention, Block
from tercet.notebook import Table, View, format_bytes, format_count


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer, or the same layer of all blocks.

    Attributes:
        name: Name as in the weights file, with `blocks.*` for a layer of every block.
        kind: Class of the module.
        count: Number of such layers.
        shape: Output shape of each layer for one sequence: (T, width), or (width,) if the layer has one row per text.
        parameters: Number of parameters of all these layers, without a matrix that an earlier layer has too.
        flops: Forward FLOPs of all these layers per token, or per pair of tokens.
        tied_to: Name of an earlier layer with the same matrix.
    """

    name: str
    kind: str
    count: int
    shape: tuple[int, ...]
    parameters: int
    flops: int
    tied_to: str | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryCost:
    """Memory in bytes.

    Training needs weights, gradients and AdamW's two moments in float32; activations are not counted. `cache_per_token`
    is the KV cache per token and row. `cache_per_source_token` is the KV cache per source token, which all rows of that
    source share; it is 0 without a source. Encoders have no cache.
    """

    weights_float32: int
    weights_bfloat16: int
    gradients: int
    optimizer: int
    training: int
    cache_per_token_float32: int
    cache_per_token_bfloat16: int
    cache_per_source_token_float32: int
    cache_per_source_token_bfloat16: int


@dataclass(frozen=True, kw_only=True)
class ModelTable:
    """Layers and costs of a model.

    Attributes:
        rows: Layers in the order of the model.
        length: T, the number of tokens per sequence for which FLOPs are counted; for translators, of source and of
            target.
        unit: Unit for which FLOPs are counted: a token, or a pair of a source and a target token.
        parameters: Number of all parameters; tied ones count once.
        multiplied: N in the formula at the top of this module.
        flops_forward, flops_training: FLOPs per unit.
        memory: Memory of the whole model.
    """

    rows: tuple[LayerRow, ...]
    length: int
    unit: Literal["token", "token pair"]
    parameters: int
    multiplied: int
    flops_forward: int
    flops_training: int
    memory: MemoryCost

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    def view(self) -> View:
        """Return the layers, then the cost of the whole model."""
        return View((self._layers(), "", self._costs()))

    def _layers(self) -> Table:
        rows = list[tuple[str, ...]]()
        for row in self.rows:
            shape = " x ".join(map(str, row.shape))
            kind = row.kind if row.count == 1 else f"{row.count} x {row.kind}"
            count = f"{row.parameters:,}" if row.parameters else ""
            parameters = " + ".join(part for part in (f"= {row.tied_to}" if row.tied_to else "", count) if part)
            rows.append((row.name, kind, shape, parameters, format_count(row.flops) if row.flops else ""))
        rows.append(("total", "", "", f"{self.parameters:,}", format_count(self.flops_forward)))
        header = "layer", "module", "output", "parameters", f"FLOPs/{self.unit}"
        return Table(header=header, rows=rows, left=(0, 1, 2), folded={0: 1})

    def _costs(self) -> Table:
        memory, pairs = self.memory, self.unit == "token pair"
        cache = _format_both(memory.cache_per_token_float32, memory.cache_per_token_bfloat16)
        source = _format_both(memory.cache_per_source_token_float32, memory.cache_per_source_token_bfloat16)
        rows = [
            (f"training, FLOPs/{self.unit}", f"{format_count(self.flops_training)}  (6 N + 12 L d T)"),
            ("weights", _format_both(memory.weights_float32, memory.weights_bfloat16)),
            ("gradients, AdamW", f"{format_bytes(memory.gradients)}, {format_bytes(memory.optimizer)}"),
            ("training", f"{format_bytes(memory.training)}, and the activations"),
        ]
        if memory.cache_per_token_float32:
            rows.append(("cache per target token" if pairs else "cache per token", cache))
        if pairs:
            rows.append(("cache per source token", source))
        attentions = sum(row.count for row in self.rows if row.name.endswith("_attention"))
        length = f"T = {self.length:,}{' on each side' if pairs else ''}"
        multiplied = f"N = {self.multiplied:,} multiplied, L = {attentions} attentions"
        assumption = (
            "attention as if not causal" if memory.cache_per_token_float32 else "every place scored, masked or not"
        )
        return Table(header=("cost", ""), rows=rows, left=(0, 1), caption=f"{multiplied}, {length}; {assumption}")


def model_table(model: AnySpec | AnyModel, *, length: int | None = None) -> ModelTable:
    """Return the table of a model, or of a spec; no weights are allocated.

    Args:
        model: Model or spec.
        length: Number of tokens in a sequence, or in source and target each (default: the whole context).

    Raises:
        ValueError: If the spec has no vocab_size, or sizes that do not fit together.
    """
    spec = model.spec if isinstance(model, nn.Module) else model
    length = spec.max_len if length is None else length
    with FakeTensorMode():
        fake = build(spec).eval()
        tokens = torch.zeros(1, length, dtype=torch.long)
        sides = (tokens, tokens) if isinstance(fake, EncoderDecoder) else (tokens,)
        shapes = _output_shapes(fake, sides)
        rows = _list_layers(fake, shapes, length)
        parameters = sum(parameter.numel() for parameter in fake.parameters())
        multiplied = sum(
            part.weight.numel()
            for name, part in fake.named_modules()
            if isinstance(part, nn.Linear) and _reads_every_token(shapes.get(name, ()))
        )
    attentions = [part for part in fake.modules() if isinstance(part, Attention)]
    writer = fake.decoder if isinstance(fake, EncoderDecoder) else fake.stack  # the stack with a KV cache
    blocks = [] if isinstance(fake, EncoderOnly) else [part for part in writer.modules() if isinstance(part, Block)]
    self_kv = sum(_kv_size(block.self_attention) for block in blocks)
    cross_kv = sum(_kv_size(block.cross_attention) for block in blocks if block.cross_attention is not None)
    return ModelTable(
        rows=rows,
        length=length,
        unit="token pair" if isinstance(fake, EncoderDecoder) else "token",
        parameters=parameters,
        multiplied=multiplied,
        flops_forward=sum(row.flops for row in rows),
        flops_training=6 * multiplied + 12 * length * sum(part.n_heads * part.d_head for part in attentions),
        memory=MemoryCost(
            weights_float32=4 * parameters,
            weights_bfloat16=2 * parameters,
            gradients=4 * parameters,
            optimizer=8 * parameters,
            training=16 * parameters,
            cache_per_token_float32=4 * self_kv,
            cache_per_token_bfloat16=2 * self_kv,
            cache_per_source_token_float32=4 * cross_kv,
            cache_per_source_token_bfloat16=2 * cross_kv,
        ),
    )


def _kv_size(attention: Attention) -> int:
    """Return the size of the KV cache per token, in numbers: a key and a value in each key/value head."""
    return 2 * attention.n_kv_heads * attention.d_head


def _output_shapes(model: nn.Module, sides: tuple[Tensor, ...]) -> dict[str, tuple[int, ...]]:
    """Return the output shape of each layer for one sequence, by name."""
    shapes: dict[str, tuple[int, ...]] = {}

    def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim:  # modules of other packages may return anything
                shapes[name] = tuple(output.shape[1:]) if output.shape[0] == 1 else tuple(output.shape)

        return hook

    for name, part in model.named_modules():
        part.register_forward_hook(make_hook(name))
    if isinstance(model, EncoderOnly):
        _run_all_heads(model, *sides)
    else:
        model(*sides)
    return shapes


def _run_all_heads(model: EncoderOnly, tokens: Tensor) -> None:
    spec, hidden = model.spec, model.hidden(tokens)
    if spec.masked_head is not None:
        model.logits(hidden)
    if spec.next_sentence:
        model.next_sentence_logits(hidden)
    elif spec.pooler:
        model.pooled(hidden)
    if spec.classifier is not None:
        model.classify(hidden)


def _reads_every_token(shape: tuple[int, ...]) -> bool:
    """Return whether a layer with this output shape processes all tokens, instead of one row per sequence."""
    return len(shape) > 1


def _list_layers(model: nn.Module, shapes: dict[str, tuple[int, ...]], length: int) -> tuple[LayerRow, ...]:
    rows: dict[tuple[str, str, tuple[int, ...]], LayerRow] = {}
    owner: dict[int, str] = {}
    for name, part in model.named_modules():
        weights = list(part.parameters(recurse=False))
        if not weights and not isinstance(part, Attention):
            continue
        fresh = [parameter for parameter in weights if owner.setdefault(id(parameter), name) == name]
        tied = [owner[id(parameter)] for parameter in weights if owner[id(parameter)] != name]
        row = LayerRow(
            name=re.sub(r"\.\d+\.", ".*.", name),
            kind=type(part).__name__,
            count=1,
            shape=shapes.get(name, ()),
            parameters=sum(parameter.numel() for parameter in fresh),
            flops=_count_flops(part, length) if _reads_every_token(shapes.get(name, ())) else 0,
            tied_to=tied[0] if tied else None,
        )
        key = row.name, row.kind, row.shape
        rows[key] = _sum_rows(rows[key], row) if key in rows else row
    return tuple(rows.values())


def _count_flops(part: nn.Module, length: int) -> int:
    """Return the forward FLOPs per token of a sequence of `length`, or per pair of tokens."""
    if isinstance(part, nn.Linear):
        return 2 * part.in_features * part.out_features
    if isinstance(part, Attention):
        return 4 * length * part.n_heads * part.d_head  # scores and weighted sums of values
    return 0


def _sum_rows(row: LayerRow, second: LayerRow) -> LayerRow:
    return replace(
        row,
        count=row.count + second.count,
        parameters=row.parameters + second.parameters,
        flops=row.flops + second.flops,
    )


def _format_both(float32: int, bfloat16: int) -> str:
    return f"{format_bytes(float32)} float32, {format_bytes(bfloat16)} bfloat16"

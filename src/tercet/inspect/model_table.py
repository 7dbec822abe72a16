"""What each layer of a model is, and what it costs: shape, parameters, arithmetic, memory.

    forward   2 · in · out for each matrix and 4 · T · H · K for each attention, FLOPs per token
    training  6 N + 12 L · H · K · T: three times the forward pass; H · K is d_model in most models, L counts attentions

Chowdhery et al., "PaLM" (2022), appendix B. N counts the numbers of the matrices that are multiplied: an unembedding,
tied or not, and no table that is only looked up. As there, attention is counted as if every token saw all T; a causal
kernel needs about half of that. Norms, biases and activations are not counted: they are about one part in a thousand.

A translator is counted for a source and a target of T tokens each, and per pair of them: one token read, one written.
The encoder, and the keys and values of cross-attention, meet the first; all else meets the second. So the formulas
hold as they stand, each encoder layer having one attention and each decoder layer two.

An encoder-only model is counted as if every token's place were scored. A masked-LM loss scores the masked ones alone:
of the head's share, at the rate at which it masks. What meets one row of a text (pooler, next sentence, a classifier
of texts) is not counted.

The model is built of fake tensors, which have shapes and no storage, so that a big one costs nothing to look at.
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
    """One layer, or the same layer of all blocks together.

    Attributes:
        name: as in the weights file; `blocks.*` where it is in every block of a stack.
        kind: the module's class.
        count: how many there are.
        shape: of each one's output for one sequence: (T, width).
        parameters: of all of them; 0 for a matrix counted above.
        tied_to: the layer that has the same matrix.
        flops: of all of them, forward, for one token, or one pair of them.
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
    """Bytes. Training holds weights, gradients and AdamW's two moments in float32; activations come on top, and are not
    counted. `cache_per_token` is what decoding keeps of each token of each row, `cache_per_source_token` of each token
    of a source, once for all the rows that share it; 0 where there is no source. An encoder keeps nothing."""

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
    """Attributes:
    length: T, the tokens of the sequence that the FLOPs are for; of source and target alike, where there are both.
    unit: what the FLOPs are for: a token, or a source's and a target's together.
    parameters: all, tied ones once.
    multiplied: N of the formula above.
    flops_forward, flops_training: per unit.
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
        attentions = sum(row.count for row in self.rows if row.kind == "Attention")
        length = f"T = {self.length:,}{' on each side' if pairs else ''}"
        multiplied = f"N = {self.multiplied:,} multiplied, L = {attentions} attentions"
        assumption = (
            "attention as if not causal" if memory.cache_per_token_float32 else "every place scored, masked or not"
        )
        return Table(header=("cost", ""), rows=rows, left=(0, 1), caption=f"{multiplied}, {length}; {assumption}")


def model_table(model: AnySpec | AnyModel, *, length: int | None = None) -> ModelTable:
    """The table of a model, or of the one that a spec describes; nothing of its size is allocated.

    Args:
        length: tokens of a sequence, and of each side where there are two; the whole context by default.

    Raises:
        ValueError: for a spec without vocab_size, or with sizes that do not fit together.
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
    writer = fake.decoder if isinstance(fake, EncoderDecoder) else fake.stack  # the stack whose state is kept
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
    """Numbers kept of one token: its key and its value in each head."""
    return 2 * attention.n_kv_heads * attention.d_head


def _output_shapes(model: nn.Module, sides: tuple[Tensor, ...]) -> dict[str, tuple[int, ...]]:
    """The shape that each layer gives for one sequence, by its name."""
    shapes: dict[str, tuple[int, ...]] = {}

    def make_hook(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
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
    """Whether a layer of this output meets all tokens, and not one row of a sequence."""
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
    """Of one forward pass, for one token among `length`, or one pair of them: each layer meets one of the two."""
    if isinstance(part, nn.Linear):
        return 2 * part.in_features * part.out_features
    if isinstance(part, Attention):
        return 4 * length * part.n_heads * part.d_head  # scores, and the weighted mean of the values
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

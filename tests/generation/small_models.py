"""Real models with a few thousand weights, and streams by the CUDA graph code, which runs without graphs on a CPU."""

from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch

from tercet.generation import Column, Sampling
from tercet.generation.decode_graphs import Workspace
from tercet.generation.decoding import Batch, GraphDecoding
from tercet.generation.protocol import parts_of
from tercet.generation.stream import columns
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal
from tercet.nn.specs import Position

VOCAB, CONTEXT = 17, 13
POSITIONS = (Learned(), Sinusoidal(), Rotary(), ALiBi(), RelativeBias(n_buckets=8, max_distance=11), NoPosition())


def language_model(position: Position = POSITIONS[2], *, n_layers: int = 2) -> DecoderOnly:
    stack = StackSpec(d_model=24, n_layers=n_layers, n_heads=4, d_ff=31, n_kv_heads=2, position=position)
    return _shaken(DecoderOnly(DecoderOnlySpec(vocab_size=VOCAB, max_len=CONTEXT, stack=stack)))


def translator(position: Position = POSITIONS[1]) -> EncoderDecoder:
    stack = StackSpec(d_model=24, n_layers=2, n_heads=4, d_ff=31, position=position)
    return _shaken(EncoderDecoder(EncoderDecoderSpec(vocab_size=VOCAB, max_len=CONTEXT, encoder=stack, decoder=stack)))


def _shaken(model: Any) -> Any:
    """Add noise to the weights: new weights are small or zero, and would hide errors."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def graph_decoding(model: Any, batch: Batch, *, capacity: int = CONTEXT) -> GraphDecoding:
    longest = 0 if batch.sources is None else max(map(len, batch.sources))
    with torch.inference_mode():
        space = Workspace(model, rows=len(batch.rows), capacity=capacity, sources=longest + 1 if longest else 0)
        return GraphDecoding(model, batch, space)


def stream_by_graphs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    sources: Sequence[Sequence[int]] | None = None,
    stop_ids: Set[int] = frozenset(),
    forbidden: Set[int] = frozenset(),
    seeds: Sequence[int] | None = None,
    finished_rows: Set[int] = frozenset(),
) -> Iterator[Column]:
    """Run `stream` as it runs on a GPU."""
    batch = Batch(
        rows=[list(prompt) for prompt in prompts],
        sources=sources,
        source_pad=0,
        sampling=sampling,
        forbidden=forbidden,
        seeds=[sampling.seed] * len(prompts) if seeds is None else seeds,
    )
    decoding = graph_decoding(model, batch)
    return columns(decoding, batch, parts_of(model), model.max_len, stop_ids, finished_rows)

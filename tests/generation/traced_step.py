"""Check that decode steps trace: python traced_step.py decoder:rotary beam:sinusoidal draft:learned lookup:rotary

test_graph_decoding.py runs this in a separate process, because the checks of shape annotations cannot be traced.
"""

import sys

import torch
from small_models import CONTEXT, POSITIONS, VOCAB, language_model, translator
from torch._dynamo.testing import CompileCounterWithBackend

from tercet.generation import Sampling
from tercet.generation.beam_graphs import BeamState, beam_step
from tercet.generation.decode_state import DecodeState, decode_step
from tercet.generation.row_sampling import Filters, RowSettings
from tercet.generation.speculative_graphs import RoundState, speculative_round

ROWS = [Sampling(temperature=0), Sampling(temperature=1.3, top_k=9, top_p=0.9, min_p=0.02, repetition_penalty=1.2)]


def start_state(model: torch.nn.Module, sources: int) -> DecodeState:
    state = DecodeState(model.new_cache(2, capacity=8), vocab_size=VOCAB, max_len=CONTEXT, likeliest=3)
    if sources:
        state.cache.allocate_sources(sources)
        state.cache.memory_token_mask.fill_(True)
    state.settings.table.copy_(RowSettings.encode(ROWS, VOCAB))
    state.uniform.uniform_(generator=torch.Generator().manual_seed(1))
    return state


def started_beams(model: torch.nn.Module) -> BeamState:
    cache = model.new_cache(6, capacity=8)
    cache.rows_per_source = 3
    cache.allocate_sources(5)
    cache.memory_token_mask.fill_(True)
    return BeamState(cache, size=3, forbidden=torch.tensor([0]), eos_id=2)


def started_round(models: list[torch.nn.Module], drafts: bool) -> RoundState:
    caches = [model.new_cache(2, capacity=8) for model in models]
    for cache in caches:
        cache.advance(1)
    state = RoundState(caches[0], caches[1] if drafts else None, draft_tokens=2, vocab_size=VOCAB)
    state.limit.fill_(1)
    state.n_unread.fill_(1)
    state.uniform.uniform_(generator=torch.Generator().manual_seed(1))
    return state


torch.set_num_threads(1)
for family, kind in (argument.split(":") for argument in sys.argv[1:]):
    position = next(spec for spec in POSITIONS if spec.kind == kind)
    writes = family in ("decoder", "draft", "lookup")
    model, sources = (language_model(position), 0) if writes else (translator(position), 5)
    torch.compiler.reset()
    with torch.inference_mode():
        if family == "beam":
            function, options = beam_step, ()
            compiled, eager = started_beams(model), started_beams(model)
        elif family in ("draft", "lookup"):
            function, options, drafts = speculative_round, (ROWS[1],), family == "draft"
            model = torch.nn.ModuleList([model, language_model(position, n_layers=1)][: 1 + drafts])
            compiled, eager = started_round(list(model), drafts), started_round(list(model), drafts)
        else:
            function, options = decode_step, (Filters.of(ROWS, VOCAB, likeliest=2),)
            compiled, eager = start_state(model, sources), start_state(model, sources)
        counter = CompileCounterWithBackend("aot_eager")
        step = torch.compile(function, fullgraph=True, dynamic=False, backend=counter)
        for _ in range(2 if family in ("draft", "lookup") else 4):
            step(model, compiled, *options)
            function(model, eager, *options)
            torch.testing.assert_close(compiled.results, eager.results)
        if family not in ("draft", "lookup"):
            assert set(compiled.cache.lengths.tolist()) == {4}
        assert counter.frame_count == 1, f"{counter.frame_count} graphs"

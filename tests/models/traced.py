"""Check that models trace as one graph: python traced.py decoder:rotary translator:alibi

test_tracing.py runs this in a separate process, because the checks of shape annotations cannot be traced.
"""

import sys
from dataclasses import replace

import torch
from small import MAX_LEN, POSITIONS, STACK, V, encoder, model, padded, translator
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from tercet.models import Classifier, MaskedHead
from tercet.nn.specs import Position

LAYER = {"n_layers": 1, "n_kv_heads": 2}  # more layers would trace in the same way, but take longer


def trace_decoder(position: Position) -> None:
    decoder, tokens = model(position=position, **LAYER).train(), torch.randint(V, (3, 11))
    training = CompileCounter()
    compiled = torch.compile(decoder, fullgraph=True, backend=training)
    for _ in range(3):
        compiled(torch.randint(V, (3, 11))).sum().backward()
    assert training.frame_count == 1, f"{training.frame_count} graphs in training"

    decoder.eval()
    with torch.no_grad():
        stepping = CompileCounter()
        step = torch.compile(decoder.step, fullgraph=True, backend=stepping)
        _, cache = decoder.start(tokens[:, :5], torch.tensor([5, 3, 1]), capacity=MAX_LEN)
        for t in range(4):
            logits = step(tokens[:, t], cache)
        assert stepping.frame_count == 1, f"{stepping.frame_count} graphs for steps"
        cache.reorder(torch.tensor([2, 0]))  # fewer rows: one more graph, then none
        for t in range(3):
            step(tokens[:2, t], cache)
        assert stepping.frame_count == 2, f"{stepping.frame_count} graphs after reorder"

        _, eager = decoder.start(tokens[:, :5], torch.tensor([5, 3, 1]), capacity=MAX_LEN)
        for t in range(4):
            expected = decoder.step(tokens[:, t], eager)
        torch.testing.assert_close(logits, expected)

        reading = CompileCounter()
        start = torch.compile(decoder.start, fullgraph=True, backend=reading)
        for lengths in ([5, 3, 1], [1, 4, 2]):
            start(tokens[:, :5], torch.tensor(lengths), capacity=MAX_LEN)
        assert reading.frame_count == 1, f"{reading.frame_count} graphs for prompts"


def trace_encoder(position: Position) -> None:
    """Only the masked rows are scored."""
    heads = {
        "n_segments": 2,
        "embedding_norm": True,
        "masked_head": MaskedHead(transform=True, bias=True),
        "pooler": True,
        "classifier": Classifier(labels=("a", "b"), pooling="pooler", dropout=0.0),
    }
    network = encoder(spec=heads, position=position).train()

    def step(tokens: Tensor, places: Tensor, token_mask: Tensor, documents: Tensor) -> tuple[Tensor, Tensor]:
        hidden = network.hidden(tokens, token_mask=token_mask, documents=documents)
        return network.logits(hidden.flatten(0, 1)[places]), network.classify(hidden, token_mask)

    counter = CompileCounter()
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for _ in range(5):
        tokens, places = torch.randint(V, (3, 11)), torch.randint(33, (7,))
        token_mask = torch.arange(11) < torch.randint(1, 12, (3, 1))
        documents = torch.randint(2, (3, 11)).cumsum(1)
        batch = tokens, places, token_mask, documents
        for logits, expected in zip(compiled(*batch), step(*batch), strict=True):
            torch.testing.assert_close(logits, expected)
            logits.sum().backward(retain_graph=True)
    assert counter.frame_count == 1, f"{counter.frame_count} graphs"


def sources() -> dict[str, Tensor]:
    source, token_mask = padded([torch.randint(V, (length,)) for length in (7, 2, 5)], "right", 7)
    return {"source": source, "source_token_mask": token_mask}


def trace_translator(position: Position) -> None:
    """Rows become beams, change places and are dropped."""
    layer = replace(STACK, position=position, **LAYER)
    network = translator(spec={"encoder": layer, "decoder": layer}).train()
    training = CompileCounter()
    compiled = torch.compile(network, fullgraph=True, backend=training)
    for _ in range(3):
        compiled(target=torch.randint(V, (3, 11)), **sources()).sum().backward()
    assert training.frame_count == 1, f"{training.frame_count} graphs in training"

    network.eval()
    with torch.no_grad():
        source_inputs, tokens, lengths = sources(), torch.randint(V, (3, 11)), torch.tensor([5, 3, 1])
        stepping = CompileCounter()
        step = torch.compile(network.step, fullgraph=True, backend=stepping)
        _, cache = network.start(tokens[:, :5], lengths, **source_inputs, capacity=MAX_LEN)
        _, eager = network.start(tokens[:, :5], lengths, **source_inputs, capacity=MAX_LEN)

        def compare(times: int, rows: int) -> None:
            for _ in range(times):
                new = torch.randint(V, (rows,))
                torch.testing.assert_close(step(new, cache), network.step(new, eager))

        compare(3, rows=3)
        assert stepping.frame_count == 1, f"{stepping.frame_count} graphs for steps"
        for stack_cache in (cache, eager):
            stack_cache.expand_beams(2)
        compare(2, rows=6)
        assert stepping.frame_count == 2, f"{stepping.frame_count} graphs after expand_beams"
        for stack_cache in (cache, eager):
            stack_cache.reorder(torch.tensor([1, 1, 2, 3, 5, 4]))
        compare(1, rows=6)
        assert stepping.frame_count == 2, f"{stepping.frame_count} graphs after reorder within groups"
        for stack_cache in (cache, eager):
            stack_cache.reorder(torch.tensor([4, 5, 1, 0]))  # fewer rows: one more graph at most, then none
        compare(2, rows=4)
        assert stepping.frame_count <= 3, f"{stepping.frame_count} graphs after dropping a group"

        reading = CompileCounter()
        start = torch.compile(network.start, fullgraph=True, backend=reading)
        for lengths in ([5, 3, 1], [1, 4, 2]):
            start(tokens[:, :5], torch.tensor(lengths), **sources(), capacity=MAX_LEN)
        assert reading.frame_count == 1, f"{reading.frame_count} graphs for sources and prefixes"


torch.set_num_threads(1)
for family, kind in (argument.split(":") for argument in sys.argv[1:]):
    torch.compiler.reset()
    position = next(spec for spec in POSITIONS if spec.kind == kind)
    {"decoder": trace_decoder, "encoder": trace_encoder, "translator": trace_translator}[family](position)

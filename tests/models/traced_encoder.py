"""Run by test_tracing.py in a process of its own: the checks of shape annotations cannot be traced."""

import sys

import torch
from small import POSITIONS, V, encoder
from torch._dynamo.testing import CompileCounter

from tercet.models import Classifier, MaskedHead

torch.set_num_threads(1)
position = next(spec for spec in POSITIONS if spec.kind == sys.argv[1])
heads = {
    "n_segments": 2,
    "embedding_norm": True,
    "masked_head": MaskedHead(transform=True, bias=True),
    "pooler": True,
    "classifier": Classifier(labels=("a", "b"), pooling="pooler", dropout=0.0),
}
model = encoder(spec=heads, position=position).train()


def step(tokens, places, token_mask, documents):
    hidden = model.hidden(tokens, token_mask=token_mask, documents=documents)
    return model.logits(hidden.flatten(0, 1)[places]), model.classify(hidden, token_mask)


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

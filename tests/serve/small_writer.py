"""A small language model with far from uniform predictions, and a tokenizer whose tokens split characters."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from tercet.generation import Completion, Sampling, encode_prompt, generate
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.serve.engine import GenerationRequest, TokenEvent
from tercet.tokens import BPE, Tokenizer

MAX_LEN = 13
TEXTS = ["the cat sat on the mat and the dog sat on the log; näh, nee, né, 🙂 🙃. "] * 3
TOKENIZER = Tokenizer.train(BPE(vocab_size=283), TEXTS)


def writer(*, max_len: int = MAX_LEN, spec: dict[str, Any] | None = None, **stack: Any) -> DecoderOnly:
    sizes = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 31, **stack}
    model_spec = DecoderOnlySpec(
        vocab_size=TOKENIZER.vocab_size, max_len=max_len, stack=StackSpec(**sizes), **(spec or {})
    )
    model = DecoderOnly(model_spec, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh weights are small or zero, which would hide errors
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model.eval()


def generation_request(prompt: str, sampling: Sampling, *, top: int = 0) -> GenerationRequest:
    return GenerationRequest(ids=tuple(encode_prompt(TOKENIZER, prompt)), sampling=sampling, top_logprobs=top)


@cache
def unbatched_completion(model: DecoderOnly, prompt: str, sampling: Sampling) -> Completion:
    return generate(model, TOKENIZER, [prompt], sampling)[0]


def assert_completes(events: Sequence[TokenEvent | Exception], expected: Completion) -> None:
    """Check that the events form the completion that the prompt gets without other requests."""
    for event in events:
        assert isinstance(event, TokenEvent), event
    assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish == expected.finish
    assert "".join(event.text for event in events) == expected.text
    tokens = [event.token for event in events if event.token is not None]
    assert tuple(token.id for token in tokens) == expected.ids
    torch.testing.assert_close(
        torch.tensor([token.logprob for token in tokens]), torch.tensor(expected.logprobs), atol=1e-4, rtol=1e-4
    )

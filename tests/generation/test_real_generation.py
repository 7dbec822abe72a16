"""Real models and real tokenizers follow the generation protocol."""

from typing import Any

import pytest
import torch

from tercet.generation import Sampling, distribution, draw, generate, stream, stream_text, window_start
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn.specs import Learned, Position, Rotary
from tercet.tokens import BPE, Characters, Tokenizer

TEXT = "one fish, two fish, né fish 🙂 blue fish\n" * 20
CONTEXT = 13


def tiny(vocab_size: int, **stack: Any) -> DecoderOnly:
    spec = StackSpec(d_model=24, n_heads=3, n_layers=2, **stack)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=vocab_size, max_len=CONTEXT, stack=spec), seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # spread the logits, so that rounding changes no sample
    return model


@pytest.mark.slow
@pytest.mark.parametrize("position", [Learned(), Rotary()], ids=repr)
def test_cached_batches_match_recomputing_each_row(position: Position) -> None:
    model = tiny(17, position=position, dropout=Dropout(residual=0.5)).train()
    sampling = Sampling(max_new_tokens=20)
    prompts, seeds = [[1], [2, 3, 4, 5], list(range(16))], [5, 6, 7]
    batched = list(zip(*stream(model, prompts, sampling, seeds=seeds), strict=True))
    assert model.training
    model.eval()
    for prompt, seed, tokens in zip(prompts, seeds, batched, strict=True):
        row, generator = list(prompt), torch.Generator().manual_seed(seed)
        for token in tokens:
            with torch.inference_mode():
                logits = model(torch.tensor([row[window_start(len(row), CONTEXT) :]]))[:, -1]
            row.append(draw(distribution(logits, sampling), [generator]).item())
            assert token is not None
            assert token.id == row[-1]
            assert token.logprob == pytest.approx(logits.log_softmax(-1)[0, token.id].item(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [Characters(), BPE(vocab_size=300)], ids=repr)
def test_generate_returns_the_same_text_in_any_batch(spec: Any) -> None:
    tokenizer = Tokenizer.train(spec, [TEXT])
    model = tiny(tokenizer.vocab_size)
    sampling = Sampling(max_new_tokens=24, stop=(*"efhinou", "🙂"), seed=2)
    prompts = ["", "one", "two fish, né fish"]
    batched = generate(model, tokenizer, prompts, sampling, samples=2)
    assert len({completion.finish for completion in batched}) > 1  # rows finish at different times
    for number, completion in enumerate(batched):
        separate = generate(model, tokenizer, [completion.prompt], sampling, samples=2)[number % 2]
        assert (completion.ids, completion.text, completion.finish) == (separate.ids, separate.text, separate.finish)
        assert completion.logprobs == pytest.approx(separate.logprobs, abs=1e-4)
        assert tokenizer.decode(completion.ids).startswith(completion.text)
        if completion.finish != "stop":
            assert tokenizer.decode(completion.ids) == completion.text
    for prompt, completion in zip(prompts, batched[::2], strict=True):
        assert "".join(stream_text(model, tokenizer, prompt, sampling)) == completion.text

"""Decoding on one GPU, of GPT-2's small shape: greedy for 1 and for 32 prompts, and a server's 64 streams at once.

bytes of a token = (bytes a weight (12 L d^2 + d V) + bytes a number 2 L d (mean context) B) / B
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.row import Asked, Lineup, Row
from benchmarks.speed.rows.greedy import FULL, TINY, WIDTHS
from benchmarks.speed.words import trained, words
from torch import Tensor

import tercet
from tercet.generation import Sampling
from tercet.generation.stream import stream
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.serve.engine import Limits

STREAMS = 64


class Decoding(Contender):
    """Args:
    prompts: ids of each row, all of one length.
    new: tokens to generate for each.
    """

    def __init__(
        self, name: str, side: Side, settings: Settings, *, build: Callable[[], DecoderOnly], prompts: list[list[int]],
        new: int, bytes: float,
    ) -> None:  # fmt: skip
        super().__init__(name, side, settings, bytes=bytes)
        self._build, self._prompts, self._new = build, prompts, new

    def ours(self) -> DecoderOnly:
        model = self._build().eval().to(self.device)
        return model.bfloat16() if self.settings.precision == "bf16" else model

    def inputs(self) -> Tensor:
        return torch.tensor(self._prompts, device=self.device)

    def close(self) -> None:
        del self.model


class Ours(Decoding):
    """`stream`; compiled by what TERCET_DECODE says."""

    def setup(self) -> None:
        self.model = self.ours()
        self._environment = {"TERCET_DECODE": "compiled"} if self.settings.compiled else {}

    def run(self, n: int) -> float:
        sampling = Sampling(max_new_tokens=self._new, temperature=0.0)
        with patch.dict(os.environ, self._environment):
            return sum(
                sum(token is not None for token in column)
                for _ in range(n)
                for column in stream(self.model, self._prompts, sampling)
            )

    @torch.no_grad()
    def answer(self) -> Tensor | None:
        return self.model(self.inputs()).cpu() if self.settings.precision == "fp32" else None


class OurEngine(Decoding):
    """All prompts are submitted to one `Engine` at once, and read to their ends."""

    def __init__(self, *args: Any, folder: Path, **more: Any) -> None:
        super().__init__(*args, **more)
        self._folder = folder

    def setup(self) -> None:
        self.model = self.ours()
        made = trained(self._build().eval(), self._folder)
        run = tercet.Run(trained=made.wrap(self.model, made.tokenizer, folder=self._folder))
        count = len(self._prompts)
        self._engine = tercet.Engine(run, limits=Limits(slots=count, waiting=count))
        names = words(self.model.spec.vocab_size)
        self._texts = [" ".join(names[number] for number in row) for row in self._prompts]

    def run(self, n: int) -> float:
        count = 0
        for _ in range(n):
            streams = [
                self._engine.submit(text, max_new_tokens=self._new, temperature=0.8, seed=seed)
                for seed, text in enumerate(self._texts)
            ]
            count += sum(event.token is not None for stream in streams for event in stream.events())
        return count

    def close(self) -> None:
        self._engine.close()
        super().close()


class Hugging(Decoding):
    """`generate` of `transformers`, which compiles the step on a GPU if its cache is static."""

    def setup(self) -> None:
        self.model: Any = hugging(self._build(), self.settings.attention).eval().to(self.device)
        if self.settings.precision == "bf16":
            self.model = self.model.bfloat16()
        self._cache = {"cache_implementation": "static"} if self.settings.compiled else {}

    @torch.no_grad()
    def run(self, n: int) -> float:
        count, prompts = 0, self.inputs()
        for _ in range(n):
            ids = self.model.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=False, min_new_tokens=self._new,
                max_new_tokens=self._new, **self._cache,
            )  # fmt: skip
            count += ids[:, prompts.shape[1] :].numel()
        return count

    @torch.no_grad()
    def answer(self) -> Tensor | None:
        return self.model(self.inputs()).logits.cpu() if self.settings.precision == "fp32" else None


def lineup(batch: int, served: bool, asked: Asked) -> Lineup:
    tiny = asked.scale == "tiny"
    sizes = TINY if tiny else FULL
    layers, width, vocabulary, prompt, new = (sizes[k] for k in ("layers", "width", "vocabulary", "prompt", "new"))
    stack = StackSpec(d_model=width, n_layers=layers, n_heads=sizes["heads"])
    spec = DecoderOnlySpec(vocab_size=vocabulary, max_len=16 if tiny else 1024, stack=stack)
    generator = torch.Generator().manual_seed(0)
    rows = min(batch, 3) if tiny else batch
    prompts = torch.randint(3, vocabulary, (rows, prompt), generator=generator).tolist()

    def model() -> DecoderOnly:
        return DecoderOnly(spec, seed=1)

    def contender(kind: Any, name: str, side: Side, settings: Settings, **more: Any) -> Contender:
        bytes_each = WIDTHS[settings.precision]
        read = bytes_each * (12 * layers * width**2 + width * vocabulary) / rows
        context = bytes_each * 2 * layers * width * (prompt + new / 2)
        return kind(name, side, settings, build=model, prompts=prompts, new=new, bytes=read + context, **more)

    fp32, half = Settings(attention="sdpa"), Settings(attention="sdpa", precision="bf16")
    static = Settings(attention="sdpa", precision="bf16", compiled=True, more="static cache")

    def with_transformers() -> list[Contender]:
        import transformers  # noqa: F401

        return [
            contender(Hugging, "transformers", "readme", fp32),
            contender(Hugging, "transformers, static cache", "peer", static),
            contender(Hugging, "transformers, bf16", "peer", half),
        ]

    found, own = Lineup(), {"attention": "own"}
    if served:
        folder = asked.folder / f"serving-{asked.scale}"
        found.add(contender(OurEngine, "tercet, bf16", "ours", Settings(precision="bf16", **own), folder=folder))
        found.notes.append("a peer gets all prompts as one batch: it has no server whose streams could be counted")
    else:
        found.add(contender(Ours, "tercet", "ours", Settings(**own)))
        found.add(contender(Ours, "tercet, bf16", "ours", Settings(precision="bf16", **own)))
    found.try_to("transformers", with_transformers)
    if not served and not tiny:
        compiled = Settings(precision="bf16", compiled=True, **own)
        found.add(contender(Ours, "tercet, bf16, compiled", "ours", compiled))
    return found


DECODING = [
    *(
        Row(
            name=f"greedy-{batch}",
            title=f"Greedy decoding on a GPU, 124M shape, prompt 32, 128 new tokens, batch {batch}",
            lineup=partial(lineup, batch, False),
        )
        for batch in (1, 32)
    ),
    Row(
        name="serving",
        title=f"Serving on a GPU: {STREAMS} streams at once, 124M shape, prompt 32, 128 new tokens",
        lineup=partial(lineup, STREAMS, True),
    ),
]

"""Decoding on one GPU with GPT-2's small shape: greedy for 1 and for 32 prompts, and 64 concurrent server streams.

bytes of a token = (bytes a weight (12 L d^2 + d V) + bytes a number 2 L d (mean context) B) / B
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.rows.greedy import FULL, TINY, WIDTHS, Decoding, Hugging, Ours
from benchmarks.speed.words import trained_model, words

import tercet
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.serve.engine import Limits

STREAMS = 64


class OurEngine(Decoding):
    """Tercet's `Engine`: all prompts are submitted at once, and read to their ends."""

    def __init__(self, *args: Any, folder: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._folder = folder

    def setup(self) -> None:
        self.model = self.ours()
        saved = trained_model(self._build().eval(), self._folder)
        run = tercet.Run(trained_model=saved.wrap(self.model, saved.tokenizer, folder=self._folder))
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


def lineup(batch: int, serves: bool, options: Options) -> Lineup:
    tiny = options.scale == "tiny"
    sizes = TINY if tiny else FULL
    layers, width, vocabulary, prompt, new = (sizes[k] for k in ("layers", "width", "vocabulary", "prompt", "new"))
    stack = StackSpec(d_model=width, n_layers=layers, n_heads=sizes["heads"])
    spec = DecoderOnlySpec(vocab_size=vocabulary, max_len=16 if tiny else 1024, stack=stack)
    generator = torch.Generator().manual_seed(0)
    rows = min(batch, 3) if tiny else batch
    prompts = torch.randint(3, vocabulary, (rows, prompt), generator=generator).tolist()

    def model() -> DecoderOnly:
        return DecoderOnly(spec, seed=1)

    def contender(kind: Any, name: str, side: Side, settings: Settings, **kwargs: Any) -> Contender:
        bytes_per_number = WIDTHS[settings.precision]
        read = bytes_per_number * (12 * layers * width**2 + width * vocabulary) / rows
        context = bytes_per_number * 2 * layers * width * (prompt + new / 2)
        return kind(name, side, settings, build=model, prompts=prompts, new=new, bytes=read + context, **kwargs)

    fp32, half = Settings(attention="sdpa"), Settings(attention="sdpa", precision="bf16")
    static = Settings(attention="sdpa", precision="bf16", compiled=True, note="static cache")

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        return [
            contender(Hugging, "transformers", "readme", fp32),
            contender(Hugging, "transformers, static cache", "peer", static),
            contender(Hugging, "transformers, bf16", "peer", half),
        ]

    lineup, our_settings = Lineup(), {"attention": "own"}
    if serves:
        folder = options.folder / f"serving-{options.scale}"
        lineup.add(
            contender(OurEngine, "tercet, bf16", "ours", Settings(precision="bf16", **our_settings), folder=folder)
        )
        lineup.notes.append("a peer gets all prompts as one batch: it has no server whose streams could be counted")
    else:
        lineup.add(contender(Ours, "tercet", "ours", Settings(**our_settings)))
        lineup.add(contender(Ours, "tercet, bf16", "ours", Settings(precision="bf16", **our_settings)))
    lineup.try_to("transformers", transformers_contenders)
    if not serves and not tiny:
        compiled = Settings(precision="bf16", compiled=True, **our_settings)
        lineup.add(contender(Ours, "tercet, bf16, compiled", "ours", compiled))
    return lineup


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

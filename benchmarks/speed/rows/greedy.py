"""Greedy decoding of a GPT of GPT-2's small size: a prompt of 32 tokens, 128 new ones, one prompt or eight at once.

    bytes of a token = (bytes a weight · (12 L d² + d V) + 4 · 2 L d · (mean context) · B) / B

Each step reads every matrix once, and the keys and values of the context; embeddings and norms are negligible.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.peers.ctranslate2 import CTranslate2Process
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.words import trained_model, words
from torch import Tensor

from tercet.checkpoint.foreign.ctranslate2_folder import ctranslate2_writer
from tercet.cli.device import place_model
from tercet.generation import Sampling
from tercet.generation.stream import stream
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec

WIDTHS = {"fp32": 4, "bf16": 2, "int8": 1}  # bytes of a weight
FULL = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50304, "prompt": 32, "new": 128}
QUICK = {**FULL, "layers": 4, "vocabulary": 8192, "new": 64}
TINY = {"layers": 2, "width": 24, "heads": 2, "vocabulary": 19, "prompt": 5, "new": 7}
SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}


class Decoding(Contender):
    """A contender that continues given prompts.

    Args:
        build: Function that creates the model.
        prompts: Ids of each row, all of one length.
        new: Tokens to generate for each.
    """

    def __init__(
        self,
        name: str,
        side: Side,
        settings: Settings,
        *,
        build: Callable[[], DecoderOnly],
        prompts: list[list[int]],
        new: int,
        bytes: float,
    ) -> None:
        super().__init__(name, side, settings, bytes=bytes)
        self._build, self._prompts, self._new = build, prompts, new

    def ours(self) -> DecoderOnly:
        """Return Tercet's model, placed as the command line does."""
        model, precision = self._build().eval(), self.settings.precision
        place_model(model, self.device, "none" if precision == "fp32" else precision)
        return model

    def inputs(self) -> Tensor:
        return torch.tensor(self._prompts, device=self.device)

    def close(self) -> None:
        del self.model


class Ours(Decoding):
    """Tercet's `stream`, compiled on a GPU if the settings require it, by TERCET_DECODE."""

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


class Hugging(Decoding):
    """`generate` of `transformers`, which always generates all requested tokens.

    It compiles the step on a GPU if its cache is static.
    """

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


class CTranslate2(Contender):
    def __init__(
        self,
        *args: Any,
        build: Callable[[], DecoderOnly],
        prompts: list[list[int]],
        new: int,
        folder: Path,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._build, self._ids, self._new, self._folder = build, prompts, new, folder

    def setup(self) -> None:
        model_folder = self._folder / "ctranslate2"
        model = self._build()
        names = words(model.spec.vocab_size)
        self._prompts = [[names[number] for number in row] for row in self._ids]
        if not (model_folder / "model.bin").is_file():
            model_folder.mkdir(parents=True, exist_ok=True)
            ctranslate2_writer(trained_model(model.eval(), self._folder / "ours"))(model_folder)
        self.model = CTranslate2Process("Generator", model_folder, self.settings.precision)

    def run(self, n: int) -> float:
        return sum(self.model.call(_generate, self._prompts, self._new) for _ in range(n))

    def answer(self) -> Tensor | None:
        if self.settings.precision != "fp32":
            return None
        return torch.from_numpy(self.model.call(_logits, self._prompts))

    def peak_memory(self) -> int:
        return self.model.peak_memory()

    def close(self) -> None:
        self.model.close()


def _generate(model: Any, prompts: list[list[str]], new: int) -> int:
    results = model.generate_batch(
        prompts, beam_size=1, sampling_topk=1, min_length=new, max_length=new, include_prompt_in_result=False,
        max_batch_size=len(prompts),
    )  # fmt: skip
    return sum(len(result.sequences_ids[0]) for result in results)


def _logits(model: Any, prompts: list[list[str]]) -> np.ndarray:
    return np.array(model.forward_batch(prompts))


def lineup(batch: int, options: Options) -> Lineup:
    sizes = SIZES[options.scale]
    layers, width, vocabulary, prompt, new = (sizes[k] for k in ("layers", "width", "vocabulary", "prompt", "new"))
    stack = StackSpec(d_model=width, n_layers=layers, n_heads=sizes["heads"])
    spec = DecoderOnlySpec(
        vocab_size=vocabulary, max_len=max(1024 if options.scale == "full" else 256, 16), stack=stack
    )
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, vocabulary, (batch, prompt), generator=generator).tolist()

    def model() -> DecoderOnly:
        return DecoderOnly(spec, seed=1)

    def read(settings: Settings) -> float:
        matrices = WIDTHS[settings.precision] * (12 * layers * width**2 + width * vocabulary)
        return matrices / batch + 4 * 2 * layers * width * (prompt + new / 2)

    def contender(kind: Any, name: str, side: Side, settings: Settings, **kwargs: Any) -> Contender:
        return kind(
            name, side, settings, build=model, prompts=prompts, new=new, bytes=read(settings), **kwargs
        )  # fmt: skip

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        ways = [Settings(attention="eager"), Settings(attention="sdpa", matmul="medium")]
        if options.bf16:
            ways.append(Settings(attention="sdpa", precision="bf16"))
        return [
            contender(Hugging, "transformers", "readme", Settings(attention="sdpa")),
            *(contender(Hugging, contender_name(way), "peer", way) for way in ways if options.scale != "quick"),
        ]

    def ctranslate2_contenders() -> list[Contender]:
        import ctranslate2  # noqa: F401

        folder = options.folder / f"greedy-{options.scale}"
        return [
            contender(CTranslate2, f"CTranslate2, {precision}", "peer", Settings(precision=precision), folder=folder)
            for precision in ("fp32", "int8")
        ]

    lineup = Lineup()
    lineup.add(contender(Ours, "tercet", "ours", Settings(attention="own", keeps_memory=True)))
    for narrow in ("bf16", "int8"):
        lineup.add(
            contender(Ours, f"tercet, {narrow}", "ours", Settings(attention="own", keeps_memory=True, precision=narrow))
        )
    lineup.try_to("transformers", transformers_contenders)
    lineup.try_to("CTranslate2", ctranslate2_contenders)
    if options.scale != "full":
        lineup.notes.append(
            f"smaller here: {layers} layers of {width}, V {vocabulary}, prompt {prompt}, {new} new tokens"
        )
    if not options.bf16:
        lineup.leave_out("bf16", "this CPU has no avx512_bf16 or AMX, so products in bf16 are emulated")
    return lineup


def contender_name(way: Settings) -> str:
    return ", ".join(["transformers", way.attention, *(["oneDNN"] if way.matmul != "highest" else []),
                      *([way.precision] if way.precision != "fp32" else [])])  # fmt: skip


GREEDY = [
    Row(
        name=f"greedy-{batch}",
        title=f"Greedy decoding, 124M shape, prompt 32, 128 new tokens, batch {batch}",
        lineup=partial(lineup, batch),
        gigabytes=5.0,
    )
    for batch in (1, 8)
]

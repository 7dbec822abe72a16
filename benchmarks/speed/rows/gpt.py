"""Training a GPT at three sizes: the whole step, over random tokens.

    FLOPs of a token = 6 (L (4 d² + 2 d d_ff) + d V) + 12 L T d

Two for a multiplication and an addition, times three for forward and backward; attention's square is counted in full,
as is usual, also for contenders that skip half of it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.ours import ours_training
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.peers.nanogpt import nanogpt
from benchmarks.speed.peers.pytorch import PyTorchGPT
from benchmarks.speed.peers.x import x_transformer
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.training import Loss, Training, contender_name, peer_settings
from torch import Tensor, nn

from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.objectives import CausalBatch, causal_loss

N_CHECKED = 2  # rows whose logits are compared with Tercet's


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int
    heads: int
    width: int
    length: int
    rows: int
    vocabulary: int
    dropout: float = 0.0

    def spec(self) -> DecoderOnlySpec:
        stack = StackSpec(
            n_layers=self.layers, n_heads=self.heads, d_model=self.width,
            bias=False, norm_bias=False,  # as in nanoGPT's train.py
            dropout=Dropout(embedding=self.dropout, attention=self.dropout, residual=self.dropout),
        )  # fmt: skip
        return DecoderOnlySpec(vocab_size=self.vocabulary, max_len=self.length, stack=stack)

    def flops(self) -> float:
        matrices = self.layers * 12 * self.width**2 + self.width * self.vocabulary
        return 6.0 * matrices + 12.0 * self.layers * self.length * self.width

    def describe(self) -> str:
        dropout = f", dropout {self.dropout:g}" if self.dropout else ""
        sizes = f"{self.layers} layers of {self.width}, no biases, T {self.length}, B {self.rows}, V {self.vocabulary}"
        return f"{sizes}{dropout}"

    def batches(self, count: int) -> list[CausalBatch]:
        """Return batches of random tokens, the same ones each time."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, self.vocabulary, (count, self.rows, self.length + 1), generator=generator)
        return [CausalBatch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in tokens]


TINY = Shape(layers=2, heads=2, width=24, length=7, rows=2, vocabulary=19)
SHAPES = {
    "gpt-char": Shape(layers=4, heads=4, width=128, length=64, rows=12, vocabulary=65),
    "gpt-baby": Shape(layers=6, heads=6, width=384, length=256, rows=16, vocabulary=65),
    "gpt-124m": Shape(layers=12, heads=12, width=768, length=512, rows=2, vocabulary=50304),
}


def lineup(name: str, options: Options) -> Lineup:
    shape = TINY if options.scale == "tiny" else SHAPES[name]
    batches = shape.batches(2)
    spec, n_tokens = shape.spec(), len(batches) * batches[0].inputs.numel()

    def model() -> DecoderOnly:
        return DecoderOnly(spec, seed=1)

    logits = partial(read_logits, batches[0])

    def contender(
        name: str, side: Side, settings: Settings, build: Any, loss: Loss, *, same_weights: bool = True
    ) -> Training:
        return Training(
            name, side, settings, build=build, loss=loss, batches=batches, tokens=n_tokens,
            answer=logits if same_weights else None, flops=shape.flops(),
        )  # fmt: skip

    compiles = options.scale != "tiny"
    quick = options.scale == "quick"
    ways = peer_settings(bf16=options.bf16, quick=quick, compiles=compiles)
    lineup = Lineup()
    lineup.add(
        *ours_training(
            model, lambda of, batch: causal_loss(of, batch).mean, batches,
            n_tokens, logits, shape.flops(), compiled=compiles, checkpointed=name == "gpt-124m",
        )
    )  # fmt: skip

    plain = Settings(attention="sdpa", fused=False)
    if options.nanogpt is None:
        lineup.leave_out("nanoGPT", "give --nanogpt the folder of a checkout")
    else:
        checkout = options.nanogpt
        lineup.add(
            contender("nanoGPT", "readme", plain, lambda: nanogpt(checkout, model(), "sdpa"), nanogpt_loss),
            *(
                contender(
                    contender_name("nanoGPT", way), "peer", way, partial(nanogpt_as, checkout, model, way), nanogpt_loss
                )
                for way in ways
            ),
        )

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        side: Side = "readme" if options.nanogpt is None else "peer"
        return [
            contender("transformers", side, plain, lambda: hugging(model(), "sdpa"), output_loss),
            *(
                contender(
                    contender_name("transformers", way), "peer", way, partial(hugging_as, model, way), output_loss
                )
                for way in ways
            ),
        ]

    def x_transformers_contenders() -> list[Contender]:
        import x_transformers  # noqa: F401

        return [
            contender(
                contender_name("x-transformers", way),
                "peer",
                way,
                lambda: x_transformer(spec, flash=False),
                logits_loss,
                same_weights=False,
            )
            for way in ways[-1:]
        ]

    lineup.try_to("transformers", transformers_contenders)
    if quick:
        lineup.leave_out("x-transformers, torch.nn", "this is a quick run")
    else:
        lineup.try_to("x-transformers", x_transformers_contenders)
    torch_settings = [Settings(attention="sdpa", fused=True), Settings(attention="sdpa", fused=True, matmul="medium")]
    lineup.add(
        *(
            contender(contender_name("torch.nn", way), "peer", way, lambda: PyTorchGPT(model()), logits_loss)
            for way in ([] if quick else torch_settings)
        )
    )
    if not options.bf16:
        lineup.leave_out("bf16", "this CPU has no avx512_bf16 or AMX, so products in bf16 are emulated")
    return lineup


def hugging_as(model: Any, way: Settings) -> nn.Module:
    return hugging(model(), way.attention)


def nanogpt_as(checkout: Any, model: Any, way: Settings) -> nn.Module:
    return nanogpt(checkout, model(), way.attention)


def read_logits(batch: CausalBatch, model: Any) -> Tensor:
    """Return the logits of the first rows of a batch, for any library's model."""
    inputs, targets = batch.inputs[:N_CHECKED], batch.targets[:N_CHECKED]
    if model.__class__.__module__ == "nanogpt_model":  # without targets it computes logits for the last position only
        return model(inputs, targets)[0]
    output = model(inputs)
    return output if isinstance(output, Tensor) else output.logits


def logits_loss(model: Any, batch: CausalBatch) -> Tensor:
    return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())


def output_loss(model: Any, batch: CausalBatch) -> Tensor:
    logits = model(input_ids=batch.inputs, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())


def nanogpt_loss(model: Any, batch: CausalBatch) -> Tensor:
    return model(batch.inputs, batch.targets)[1]


GPT = [
    Row(
        name=name,
        title=f"GPT training, whole step: {shape.describe()}",
        lineup=partial(lineup, name),
        gigabytes=14.0 if name == "gpt-124m" else 8.0,
        separate_processes=name != "gpt-124m",  # many large models in separate processes need too much memory
    )
    for name, shape in SHAPES.items()
]

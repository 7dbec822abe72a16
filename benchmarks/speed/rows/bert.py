"""Training BERT on masked words: the whole step; 15 % of the tokens are predicted.

    FLOPs of a token = 6 (L (4 d² + 2 d d_ff) + s (d V + d²)) + 12 L T d,    s the share that is predicted

This is what the task needs. A contender that computes logits for every position does more, without credit for it.
"""

from functools import partial
from math import ceil
from typing import Any

import numpy as np
import torch
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.ours import ours_training
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.training import Training, contender_name, peer_settings
from torch import Tensor, nn

from tercet.models import Dropout, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.objectives import IGNORE_INDEX, MaskedBatch, Masking, masked_loss
from tercet.objectives.masking import mask_rows

SPECIAL, MASK, RATE = 5, 4, 0.15
LabeledBatch = tuple[MaskedBatch, Tensor]  # and the labels (B, T) over all positions, as other libraries require


def build_spec(*, layers: int, width: int, heads: int, length: int, vocabulary: int) -> EncoderOnlySpec:
    stack = StackSpec(
        d_model=width, n_layers=layers, n_heads=heads, norm_eps=1e-12, placement="post", dropout=Dropout()
    )  # fmt: skip
    return EncoderOnlySpec(
        vocab_size=vocabulary, max_len=length, n_segments=2, embedding_norm=True,
        masked_head=MaskedHead(transform=True, bias=True), stack=stack,
    )  # fmt: skip


def random_batches(count: int, rows: int, length: int, vocabulary: int) -> list[LabeledBatch]:
    generator = np.random.default_rng(0)
    batches: list[LabeledBatch] = []
    for _ in range(count):
        tokens = generator.integers(SPECIAL, vocabulary, (rows, length))
        masked = mask_rows(
            tokens, np.ones(tokens.shape, bool), masking=Masking(rate=RATE), generator=generator,
            mask_id=MASK, random_ids=np.arange(SPECIAL, vocabulary),
        )  # fmt: skip
        batch = MaskedBatch(*(torch.from_numpy(array) for array in (masked.inputs, masked.positions, masked.targets)))
        used = batch.targets != IGNORE_INDEX
        labels = torch.full_like(batch.inputs, IGNORE_INDEX)
        labels.view(-1)[batch.positions[used]] = batch.targets[used]
        batches.append((batch, labels))
    return batches


def lineup(options: Options) -> Lineup:
    tiny, quick = options.scale == "tiny", options.scale == "quick"
    layers, width, heads, length, rows, vocabulary = (2, 24, 2, 7, 3, 23) if tiny else (4, 256, 4, 128, 32, 8192)
    spec = build_spec(layers=layers, width=width, heads=heads, length=length, vocabulary=vocabulary)
    batches = random_batches(1, rows, length, vocabulary)
    tokens = rows * length
    predicted_share = ceil(RATE * length) / length
    matrices = layers * 12 * width**2 + predicted_share * (width * vocabulary + width**2)
    flops = 6.0 * matrices + 12.0 * layers * length * width

    def model() -> EncoderOnly:
        return EncoderOnly(spec, seed=1)

    def logits(of: Any) -> Tensor:
        output = of(batches[0][0].inputs)
        return output if isinstance(output, Tensor) else output.logits

    def theirs(name: str, side: Side, way: Settings) -> Training:
        return Training(
            name, side, way, build=partial(hugging_as, model, way), loss=labeled_loss, batches=batches, tokens=tokens,
            answer=logits, flops=flops,
        )  # fmt: skip

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        ways = peer_settings(bf16=options.bf16, quick=quick, compiles=not tiny)
        return [
            theirs("transformers", "readme", Settings(attention="sdpa", fused=False)),
            *(theirs(contender_name("transformers", way), "peer", way) for way in ways),
        ]

    lineup = Lineup()
    lineup.add(
        *ours_training(
            model, lambda of, batch: masked_loss(of, batch[0]).mean, batches, tokens, logits, flops, compiled=not tiny
        )
    )
    lineup.try_to("transformers", transformers_contenders)
    if not options.bf16:
        lineup.leave_out("bf16", "this CPU has no avx512_bf16 or AMX, so products in bf16 are emulated")
    return lineup


def hugging_as(model: Any, way: Settings) -> nn.Module:
    return hugging(model(), way.attention)


def labeled_loss(model: Any, batch: LabeledBatch) -> Tensor:
    return model(input_ids=batch[0].inputs, labels=batch[1]).loss


BERT = Row(
    name="bert",
    title="BERT training, whole step: 4 layers of 256, T 128, B 32, V 8192, 15 % masked",
    lineup=lineup,
    gigabytes=6.0,
)

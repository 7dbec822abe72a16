"""Training a translator on Multi30k: the buckets of `tercet train`, equal for all, without counting padding.

The shape is that of 2017 with 4 + 4 layers of 256. Padding is work that all contenders do without credit for it.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.ours import ours_training
from benchmarks.speed.peers import joeynmt
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.peers.pytorch import PyTorchTranslator
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.training import Loss, Training, contender_name, peer_settings
from torch import Tensor, nn

from tercet.config import UserError
from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.objectives import IGNORE_INDEX, PairBatch, seq2seq_loss

PAD = 0  # the id of Tercet's tokenizers
SMOOTHING = 0.1
BUCKETS = 4  # in a unit of work
SIZES = {"d_model": 256, "n_layers": 4, "n_heads": 4, "d_ff": 1024}
TINY_SIZES = {"d_model": 24, "n_layers": 2, "n_heads": 2, "d_ff": 31}


def data(
    tiny: bool, folder: Path, *, sizes: dict[str, int] = SIZES, batch_tokens: int = 4096
) -> tuple[EncoderDecoderSpec, list[PairBatch]]:
    """Return the model and its first buckets.

    Args:
        sizes: Sizes of each side.
        batch_tokens: Tokens of a bucket per side.

    Raises:
        UserError: If Multi30k is not available.
    """
    from tercet.training.recipe.recipe import TranslationRecipe, parse_recipe
    from tercet.training.tasks.translation import TranslationTask

    source: dict[str, Any] = {"source": "multi30k", "source_language": "de", "target_language": "en"}
    if tiny:
        path = folder / "pairs.tsv"
        words = ["eins", "zwei", "drei", "vier", "sieben"]
        lines = [f"{' '.join(words[: 1 + i % 5])}\t{' '.join(reversed(words[: 1 + i % 4]))}" for i in range(40)]
        path.write_text("\n".join(lines) + "\n")
        source = {"source": str(path)}
    stack = {**(TINY_SIZES if tiny else sizes), "dropout": {"embedding": 0.0, "residual": 0.0}}
    recipe = parse_recipe(
        {
            "data": {
                **source,
                "tokenizer": {"kind": "bpe", "vocab_size": 300 if tiny else 8000, "prefix_space": True},
            },
            "model": {"preset": "transformer-tiny", "max_len": 32 if tiny else 128, "encoder": stack, "decoder": stack},
            "task": {"kind": "translation", "batch_tokens": 64 if tiny else batch_tokens},
            "training": {"max_steps": 1},
        },
        name="benchmark",
    )
    assert isinstance(recipe, TranslationRecipe)
    task = TranslationTask(recipe)
    spec = task.recipe.model
    count = min(BUCKETS, len(task.buckets))
    return spec, [batch for step in range(count) for batch in task.batches(step, 0, 1)]


def real(batch: PairBatch) -> tuple[list[int], list[int]]:
    """Return the number of tokens without padding of each source and of each target."""
    return (batch.source != PAD).sum(1).tolist(), (batch.targets != IGNORE_INDEX).sum(1).tolist()


def batch_flops(batch: PairBatch, stack: StackSpec, vocabulary: int) -> float:
    """Return the FLOPs of a batch without padding, forward and backward."""
    layers, width, inner = stack.n_layers, stack.d_model, stack.inner_width
    total = 0.0
    for source, target in zip(*real(batch), strict=True):
        encoder = source * (4 * width**2 + 2 * width * inner) + 2 * source**2 * width
        decoder = target * (6 * width**2 + 2 * width * inner) + source * 2 * width**2  # the source's keys and values
        attention = 2 * target * (target + source) * width
        total += 6 * (layers * (encoder + decoder + attention) + target * width * vocabulary)
    return total


def lineup(options: Options) -> Lineup:
    tiny, quick = options.scale == "tiny", options.scale == "quick"
    lineup = Lineup()
    try:
        spec, batches = data(tiny, options.folder)
    except UserError as error:
        lineup.leave_out("all", str(error))
        return lineup
    tokens = sum(sum(map(sum, real(batch))) for batch in batches)
    flops = sum(batch_flops(batch, spec.encoder, spec.vocab_size) for batch in batches) / tokens

    def model() -> EncoderDecoder:
        return EncoderDecoder(spec, seed=1)

    def logits(scores: Any) -> Any:
        """Return a function of the logits of targets without padding; those of padding may differ."""
        first = batches[0]
        return lambda of: scores(of, first)[first.targets != IGNORE_INDEX]

    def contender(name: str, side: Side, way: Settings, build: Any, loss: Loss, scores: Any) -> Training:
        return Training(
            name, side, way, build=build, loss=loss, batches=batches, tokens=tokens, flops=flops,
            answer=None if scores is None else logits(scores),
        )  # fmt: skip

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        side: Side = "readme" if options.joeynmt is None else "peer"
        # Shapes change from bucket to bucket: compiling for each of them would never pay off.
        ways = peer_settings(bf16=options.bf16, quick=quick, compiles=False)
        plain = Settings(attention="sdpa", fused=False)
        return [
            contender("transformers", side, plain, lambda: hugging(model(), "sdpa"), marian_loss, marian),
            *(
                contender(
                    contender_name("transformers", way),
                    "peer",
                    way,
                    partial(hugging_as, model, way),
                    marian_loss,
                    marian,
                )
                for way in ways
            ),
        ]

    lineup.add(
        *ours_training(
            model, our_loss, batches, tokens,
            logits(lambda of, batch: of(batch.source, batch.inputs, source_token_mask=batch.source_token_mask)),
            flops, compiled=False,
        )
    )  # fmt: skip
    if options.joeynmt is None:
        lineup.leave_out("JoeyNMT", joeynmt.MISSING)
    else:
        folder = options.joeynmt

        def build() -> nn.Module:
            return joeynmt.joeynmt(folder, model(), SMOOTHING)

        lineup.add(
            *(
                contender(contender_name("JoeyNMT", way), side, way, build, _joey_loss, None)
                for side, way in (
                    ("readme", Settings(fused=False)),
                    ("peer", Settings(fused=True, matmul="medium")),
                )
            )
        )  # fmt: skip
    lineup.try_to("transformers", transformers_contenders)

    def build_torch() -> nn.Module:
        return PyTorchTranslator(model(), pad=PAD)

    torch_settings = [Settings(attention="sdpa", fused=True), Settings(attention="sdpa", fused=True, matmul="medium")]
    lineup.add(
        *(
            contender(contender_name("torch.nn", way), "peer", way, build_torch, torch_loss, torch_logits)
            for way in ([] if quick else torch_settings)
        )
    )  # fmt: skip
    if not options.bf16:
        lineup.leave_out("bf16", "this CPU has no avx512_bf16 or AMX, so products in bf16 are emulated")
    return lineup


def hugging_as(model: Any, way: Settings) -> nn.Module:
    return hugging(model(), way.attention)


def our_loss(model: EncoderDecoder, batch: PairBatch) -> Tensor:
    return seq2seq_loss(model, batch, smoothing=SMOOTHING).mean


def marian(model: Any, batch: PairBatch) -> Tensor:
    mask = None if batch.source_token_mask is None else batch.source_token_mask.long()
    return model(
        input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False
    ).logits  # fmt: skip


def marian_loss(model: Any, batch: PairBatch) -> Tensor:
    return smoothed_loss(marian(model, batch), batch)


def torch_logits(model: Any, batch: PairBatch) -> Tensor:
    return model(batch.source, batch.inputs)


def torch_loss(model: Any, batch: PairBatch) -> Tensor:
    return smoothed_loss(torch_logits(model, batch), batch)


def smoothed_loss(logits: Tensor, batch: PairBatch) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=SMOOTHING
    )


def _joey_loss(model: Any, batch: PairBatch) -> Tensor:
    last = batch.targets[:, -1:].clamp(min=PAD)
    return joeynmt.loss(model, batch.source, torch.cat((batch.inputs, last), dim=1))


TRANSLATION = Row(
    name="translation",
    title="Translation training, whole step: 4 + 4 layers of 256 over Multi30k's buckets",
    lineup=lineup,
    gigabytes=6.0,
)

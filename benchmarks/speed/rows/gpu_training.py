"""Training steps on one GPU: a GPT at two sizes, BERT, and a translator; the whole step, over given batches.

The work, the losses and the counts of FLOPs are those of the CPU rows. All compute in bf16 by autocast, and each
library that is compiled uses its own call. The further costs of a step of `tercet train`, reading rows and the trainer,
are measured by the whole runs of `benchmarks/gpu`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.ours import auto_settings, compile_as_tercet
from benchmarks.speed.peers.pytorch import PyTorchGPT, PyTorchTranslator
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.rows import bert, gpt, translation
from benchmarks.speed.training import Loss, Training
from torch import Tensor, nn

from tercet.config import UserError
from tercet.models import DecoderOnly, EncoderDecoder, EncoderOnly
from tercet.objectives import CausalBatch, causal_loss, masked_loss
from tercet.training.optim.adamw import clip_gradients
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.optim.specs import AdamW

SHAPES = {
    "gpt-124m": gpt.Shape(layers=12, heads=12, width=768, length=1024, rows=12, vocabulary=50304),
    "gpt-baby": gpt.Shape(layers=6, heads=6, width=384, length=256, rows=64, vocabulary=65, dropout=0.2),
}
LARGER = {"gpt-124m": 32, "gpt-baby": 256}  # rows of the larger batch
BERT_SIZES = {"layers": 12, "width": 768, "heads": 12, "length": 512, "vocabulary": 30592}
BERT_ROWS = 32
BASE = {"d_model": 512, "n_layers": 6, "n_heads": 8, "d_ff": 2048}
BATCH_TOKENS = 16384


def bf16(options: Options, **fields: Any) -> Settings:
    """Return the settings of other libraries on a GPU: fused kernels, TF32 for fp32; compiled except in tests."""
    return Settings(
        **{
            "precision": "bf16",
            "matmul": "high",
            "attention": "sdpa",
            "compiled": True,
            "fused": True,
            "dynamic": False,
        }
        | fields
        | ({"compiled": False} if options.scale == "tiny" else {})
    )


def ours(
    options: Options,
    build: Callable[[], nn.Module],
    loss: Loss,
    batches: Sequence[Any],
    tokens: int,
    answer: Callable[[Any], Tensor],
    flops: float,
    *,
    suffix: str = "",
    static: bool = True,
    graphs: bool = False,
) -> list[Training]:
    """Return Tercet's contenders on a GPU: compiled, then eager; in tests only the latter.

    Args:
        suffix: Suffix of their names in the row.
        static: If True, all batches have one shape.
        graphs: If True, add a contender that is compiled and replayed as CUDA graphs.
    """
    plain = replace(auto_settings("auto")[0], keeps_memory=False)  # keeping memory applies to a CPU
    compiled = replace(plain, compiled=True, dynamic=False if static else None)
    ways = {
        f"tercet, compiled{suffix}": compiled,
        **({f"tercet, CUDA graphs{suffix}": replace(compiled, mode="reduce-overhead")} if graphs else {}),
        f"tercet{suffix}": plain,
    }
    return [
        Training(
            name, "ours", settings, build=build, loss=loss, batches=batches, tokens=tokens, answer=answer,
            compile=compile_as_tercet, optimizer=partial(build_optimizer, AdamW(lr=1e-4)),
            clip=clip_gradients, flops=flops,
        )
        for name, settings in ways.items()
        if options.scale != "tiny" or not settings.compiled
    ]  # fmt: skip


def gpt_lineup(name: str, options: Options) -> Lineup:
    shape = gpt.TINY if options.scale == "tiny" else SHAPES[name]
    larger = replace(shape, rows=LARGER[name] if options.scale != "tiny" else 3)

    def model() -> DecoderOnly:
        return DecoderOnly(shape.spec(), seed=1)

    def make_batches(sized_shape: gpt.Shape) -> tuple[list[CausalBatch], int]:
        batches = [options.to_device(batch) for batch in sized_shape.batches(2)]
        return batches, sum(batch.inputs.numel() for batch in batches)

    def mine(sized_shape: gpt.Shape, suffix: str = "") -> list[Training]:
        batches, tokens = make_batches(sized_shape)
        loss, answer = lambda of, batch: causal_loss(of, batch).mean, partial(gpt.read_logits, batches[0])
        return ours(options, model, loss, batches, tokens, answer, shape.flops(), suffix=suffix, graphs=not suffix)

    def theirs(name: str, side: Side, way: Settings, build: Any, loss: Any, sized_shape: gpt.Shape = shape) -> Training:
        batches, tokens = make_batches(sized_shape)
        # The answers of a larger batch are for other tokens.
        answer = partial(gpt.read_logits, batches[0]) if sized_shape is shape else None
        return Training(
            name, side, way, build=build, loss=loss, batches=batches, tokens=tokens, answer=answer, flops=shape.flops()
        )

    lineup, rows = Lineup(), f", {larger.rows} rows"
    *compiled, plain = mine(shape)
    lineup.add((compiled or [plain])[0])
    if options.nanogpt is None:
        lineup.leave_out("nanoGPT", "give --nanogpt the folder of a checkout")
        lineup.add(*compiled[1:], mine(larger, rows)[0])
    else:
        build = partial(gpt.nanogpt_as, options.nanogpt, model, bf16(options))
        lineup.add(theirs("nanoGPT", "readme", bf16(options), build, gpt.nanogpt_loss))
        lineup.add(*compiled[1:], mine(larger, rows)[0])
        lineup.add(theirs(f"nanoGPT{rows}", "peer", bf16(options), build, gpt.nanogpt_loss, larger))
        tuned = bf16(options, mode="max-autotune")
        lineup.add(theirs("nanoGPT, max-autotune", "peer", tuned, build, gpt.nanogpt_loss))

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        side: Side = "readme" if options.nanogpt is None else "peer"
        build = partial(gpt.hugging_as, model, bf16(options))
        return [theirs("transformers", side, bf16(options), build, gpt.output_loss)]

    def liger_contenders() -> list[Contender]:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # pyright: ignore

        fused = LigerFusedLinearCrossEntropyLoss()

        def loss(of: Any, batch: CausalBatch) -> Tensor:
            hidden = of.transformer(input_ids=batch.inputs, use_cache=False).last_hidden_state
            return fused(of.lm_head.weight, hidden.flatten(0, 1), batch.targets.flatten())

        way = bf16(options, note="Liger's fused loss")
        return [theirs("transformers, Liger", "peer", way, partial(gpt.hugging_as, model, way), loss)]

    lineup.try_to("transformers", transformers_contenders)
    lineup.try_to("Liger", liger_contenders)
    lineup.add(theirs("torch.nn", "peer", bf16(options), lambda: PyTorchGPT(model()), gpt.logits_loss))
    lineup.add(*([plain] if compiled else []))
    return lineup


def bert_lineup(options: Options) -> Lineup:
    tiny = options.scale == "tiny"
    sizes = {"layers": 2, "width": 24, "heads": 2, "length": 7, "vocabulary": 23} if tiny else BERT_SIZES
    rows, (layers, width, length, vocabulary) = (
        3 if tiny else BERT_ROWS,
        (sizes[name] for name in ("layers", "width", "length", "vocabulary")),
    )
    spec = bert.build_spec(**sizes)
    cpu_batches = bert.random_batches(2, rows, length, vocabulary)
    batches = [(options.to_device(batch), labels.to(options.place)) for batch, labels in cpu_batches]
    tokens, share = len(batches) * rows * length, ceil(bert.RATE * length) / length
    flops = 6.0 * (layers * 12 * width**2 + share * (width * vocabulary + width**2)) + 12.0 * layers * length * width

    def model() -> EncoderOnly:
        return EncoderOnly(spec, seed=1)

    def logits(of: Any) -> Tensor:
        output = of(batches[0][0].inputs[: gpt.N_CHECKED])
        return output if isinstance(output, Tensor) else output.logits

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        plain = bf16(options, compiled=False)
        return [
            Training(
                name,
                side,
                way,
                build=partial(bert.hugging_as, model, way),
                loss=bert.labeled_loss,
                batches=batches,
                tokens=tokens,
                answer=logits,
                flops=flops,
            )
            for name, side, way in (
                ("transformers", "readme", plain),
                ("transformers, compiled", "peer", bf16(options)),
            )
        ]

    lineup = Lineup()
    first, *rest = ours(
        options, model, lambda of, batch: masked_loss(of, batch[0]).mean, batches, tokens, logits, flops
    )
    lineup.add(first)
    lineup.try_to("transformers", transformers_contenders)
    lineup.add(*rest)
    return lineup


def translation_lineup(options: Options) -> Lineup:
    lineup = Lineup()
    try:
        tiny = options.scale == "tiny"
        spec, cpu_batches = translation.data(tiny, options.folder, sizes=BASE, batch_tokens=BATCH_TOKENS)
    except UserError as error:
        lineup.leave_out("all", str(error))
        return lineup
    tokens = sum(sum(map(sum, translation.real(batch))) for batch in cpu_batches)
    flops = sum(translation.batch_flops(batch, spec.encoder, spec.vocab_size) for batch in cpu_batches) / tokens
    batches = [options.to_device(batch) for batch in cpu_batches]

    def model() -> EncoderDecoder:
        return EncoderDecoder(spec, seed=1)

    def logits(scores: Any, of: Any) -> Tensor:
        """Return the logits of targets without padding."""
        return scores(of, batches[0])[batches[0].targets != translation.IGNORE_INDEX]

    def our_logits(of: Any, batch: Any) -> Tensor:
        return of(batch.source, batch.inputs, source_token_mask=batch.source_token_mask)

    def theirs(name: str, side: Side, way: Settings, build: Any, loss: Any, scores: Any) -> Training:
        return Training(
            name, side, way, build=build, loss=loss, batches=batches, tokens=tokens, answer=partial(logits, scores),
            flops=flops,
        )  # fmt: skip

    plain, compiled = bf16(options, compiled=False), bf16(options, dynamic=True)

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        build = partial(translation.hugging_as, model, plain)
        how = build, translation.marian_loss, translation.marian
        return [
            theirs("transformers", "readme", plain, *how),
            theirs("transformers, compiled", "peer", compiled, *how),
        ]

    first, *rest = ours(
        options, model, translation.our_loss, batches, tokens, partial(logits, our_logits), flops, static=False
    )  # fmt: skip
    lineup.add(first)
    lineup.try_to("transformers", transformers_contenders)
    how = lambda: PyTorchTranslator(model(), pad=translation.PAD), translation.torch_loss, translation.torch_logits
    lineup.add(theirs("torch.nn", "peer", plain, *how), theirs("torch.nn, compiled", "peer", compiled, *how))
    lineup.add(*rest)
    return lineup


TRAINING = [
    *(
        Row(
            name=name,
            title=f"GPT training on a GPU, whole step: {shape.describe()}",
            lineup=partial(gpt_lineup, name),
            weight=4.0 if name == "gpt-124m" else 2.0,
        )
        for name, shape in SHAPES.items()
    ),
    Row(
        name="bert",
        title=f"BERT training on a GPU, whole step: 12 layers of 768, T 512, B {BERT_ROWS}, V 30,592, 15 % masked",
        lineup=bert_lineup,
        weight=1.0,
    ),
    Row(
        name="translation",
        title="Translation training on a GPU, whole step: 6 + 6 layers of 512 over Multi30k's buckets",
        lineup=translation_lineup,
        weight=1.0,
    ),
]

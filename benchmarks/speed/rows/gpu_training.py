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
from benchmarks.speed.ours import chosen, compile_as_tercet
from benchmarks.speed.peers.pytorch import PyTorchGPT, PyTorchTranslator
from benchmarks.speed.row import Asked, Lineup, Row
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


def bf16(asked: Asked, **more: Any) -> Settings:
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
        | more
        | ({"compiled": False} if asked.scale == "tiny" else {})
    )


def ours(
    asked: Asked,
    build: Callable[[], nn.Module],
    loss: Loss,
    batches: Sequence[Any],
    tokens: int,
    answer: Callable[[Any], Tensor],
    flops: float,
    *,
    more: str = "",
    static: bool = True,
    graphs: bool = False,
) -> list[Training]:
    """Return Tercet's contenders on a GPU: compiled, then eager; in tests only the latter.

    Args:
        more: Suffix of their names in the row.
        static: If True, all batches have one shape.
        graphs: If True, add a contender that is compiled and replayed as CUDA graphs.
    """
    plain = replace(chosen("auto")[0], keeps_memory=False)  # keeping memory applies to a CPU
    compiled = replace(plain, compiled=True, dynamic=False if static else None)
    ways = {
        f"tercet, compiled{more}": compiled,
        **({f"tercet, CUDA graphs{more}": replace(compiled, mode="reduce-overhead")} if graphs else {}),
        f"tercet{more}": plain,
    }
    return [
        Training(
            name, "ours", settings, build=build, loss=loss, batches=batches, tokens=tokens, answer=answer,
            compile=compile_as_tercet, optimizer=partial(build_optimizer, AdamW(lr=1e-4)),
            clip=clip_gradients, flops=flops,
        )
        for name, settings in ways.items()
        if asked.scale != "tiny" or not settings.compiled
    ]  # fmt: skip


def gpt_lineup(name: str, asked: Asked) -> Lineup:
    shape = gpt.TINY if asked.scale == "tiny" else SHAPES[name]
    larger = replace(shape, rows=LARGER[name] if asked.scale != "tiny" else 3)

    def model() -> DecoderOnly:
        return DecoderOnly(shape.spec(), seed=1)

    def batches_of(sized: gpt.Shape) -> tuple[list[CausalBatch], int]:
        made = [asked.moved(batch) for batch in sized.batches(2)]
        return made, sum(batch.inputs.numel() for batch in made)

    def mine(sized: gpt.Shape, more: str = "") -> list[Training]:
        batches, tokens = batches_of(sized)
        loss, answer = lambda of, batch: causal_loss(of, batch).mean, partial(gpt.logits_of, batches[0])
        return ours(asked, model, loss, batches, tokens, answer, shape.flops(), more=more, graphs=not more)

    def theirs(name: str, side: Side, way: Settings, build: Any, loss: Any, sized: gpt.Shape = shape) -> Training:
        batches, tokens = batches_of(sized)
        # The answers of a larger batch are for other tokens.
        answer = partial(gpt.logits_of, batches[0]) if sized is shape else None
        return Training(
            name, side, way, build=build, loss=loss, batches=batches, tokens=tokens, answer=answer, flops=shape.flops()
        )

    found, rows = Lineup(), f", {larger.rows} rows"
    *compiled, plain = mine(shape)
    found.add((compiled or [plain])[0])
    if asked.nanogpt is None:
        found.leave_out("nanoGPT", "give --nanogpt the folder of a checkout")
        found.add(*compiled[1:], mine(larger, rows)[0])
    else:
        build = partial(gpt.nanogpt_as, asked.nanogpt, model, bf16(asked))
        found.add(theirs("nanoGPT", "readme", bf16(asked), build, gpt.nanogpt_loss))
        found.add(*compiled[1:], mine(larger, rows)[0])
        found.add(theirs(f"nanoGPT{rows}", "peer", bf16(asked), build, gpt.nanogpt_loss, larger))
        tuned = bf16(asked, mode="max-autotune")
        found.add(theirs("nanoGPT, max-autotune", "peer", tuned, build, gpt.nanogpt_loss))

    def with_transformers() -> list[Contender]:
        import transformers  # noqa: F401

        side: Side = "readme" if asked.nanogpt is None else "peer"
        build = partial(gpt.hugging_as, model, bf16(asked))
        return [theirs("transformers", side, bf16(asked), build, gpt.output_loss)]

    def with_liger() -> list[Contender]:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # pyright: ignore

        fused = LigerFusedLinearCrossEntropyLoss()

        def loss(of: Any, batch: CausalBatch) -> Tensor:
            hidden = of.transformer(input_ids=batch.inputs, use_cache=False).last_hidden_state
            return fused(of.lm_head.weight, hidden.flatten(0, 1), batch.targets.flatten())

        way = bf16(asked, more="Liger's fused loss")
        return [theirs("transformers, Liger", "peer", way, partial(gpt.hugging_as, model, way), loss)]

    found.try_to("transformers", with_transformers)
    found.try_to("Liger", with_liger)
    found.add(theirs("torch.nn", "peer", bf16(asked), lambda: PyTorchGPT(model()), gpt.logits_loss))
    found.add(*([plain] if compiled else []))
    return found


def bert_lineup(asked: Asked) -> Lineup:
    tiny = asked.scale == "tiny"
    sizes = {"layers": 2, "width": 24, "heads": 2, "length": 7, "vocabulary": 23} if tiny else BERT_SIZES
    rows, (layers, width, length, vocabulary) = (
        3 if tiny else BERT_ROWS,
        (sizes[name] for name in ("layers", "width", "length", "vocabulary")),
    )
    spec = bert.spec_of(**sizes)
    made = bert.batches_of(2, rows, length, vocabulary)
    batches = [(asked.moved(batch), labels.to(asked.place)) for batch, labels in made]
    tokens, share = len(batches) * rows * length, ceil(bert.RATE * length) / length
    flops = 6.0 * (layers * 12 * width**2 + share * (width * vocabulary + width**2)) + 12.0 * layers * length * width

    def model() -> EncoderOnly:
        return EncoderOnly(spec, seed=1)

    def logits(of: Any) -> Tensor:
        found = of(batches[0][0].inputs[: gpt.CHECKED])
        return found if isinstance(found, Tensor) else found.logits

    def with_transformers() -> list[Contender]:
        import transformers  # noqa: F401

        plain = bf16(asked, compiled=False)
        return [
            Training(
                name,
                side,
                way,
                build=partial(bert.hugging_as, model, way),
                loss=bert.labelled_loss,
                batches=batches,
                tokens=tokens,
                answer=logits,
                flops=flops,
            )
            for name, side, way in (
                ("transformers", "readme", plain),
                ("transformers, compiled", "peer", bf16(asked)),
            )
        ]

    found = Lineup()
    first, *others = ours(asked, model, lambda of, one: masked_loss(of, one[0]).mean, batches, tokens, logits, flops)
    found.add(first)
    found.try_to("transformers", with_transformers)
    found.add(*others)
    return found


def translation_lineup(asked: Asked) -> Lineup:
    found = Lineup()
    try:
        tiny = asked.scale == "tiny"
        spec, made = translation.data(tiny, asked.folder, sizes=BASE, batch_tokens=BATCH_TOKENS)
    except UserError as error:
        found.leave_out("all", str(error))
        return found
    tokens = sum(sum(map(sum, translation.real(batch))) for batch in made)
    flops = sum(translation.flops_of(batch, spec.encoder, spec.vocab_size) for batch in made) / tokens
    batches = [asked.moved(batch) for batch in made]

    def model() -> EncoderDecoder:
        return EncoderDecoder(spec, seed=1)

    def logits(scores: Any, of: Any) -> Tensor:
        """Return the logits of targets without padding."""
        return scores(of, batches[0])[batches[0].targets != translation.IGNORE_INDEX]

    def of_ours(of: Any, batch: Any) -> Tensor:
        return of(batch.source, batch.inputs, source_token_mask=batch.source_token_mask)

    def theirs(name: str, side: Side, way: Settings, build: Any, loss: Any, scores: Any) -> Training:
        return Training(
            name, side, way, build=build, loss=loss, batches=batches, tokens=tokens, answer=partial(logits, scores),
            flops=flops,
        )  # fmt: skip

    plain, compiled = bf16(asked, compiled=False), bf16(asked, dynamic=True)

    def with_transformers() -> list[Contender]:
        import transformers  # noqa: F401

        build = partial(translation.hugging_as, model, plain)
        how = build, translation.marian_loss, translation.marian
        return [
            theirs("transformers", "readme", plain, *how),
            theirs("transformers, compiled", "peer", compiled, *how),
        ]

    first, *others = ours(
        asked, model, translation.our_loss, batches, tokens, partial(logits, of_ours), flops, static=False
    )  # fmt: skip
    found.add(first)
    found.try_to("transformers", with_transformers)
    how = lambda: PyTorchTranslator(model(), pad=translation.PAD), translation.torch_loss, translation.torch_logits
    found.add(theirs("torch.nn", "peer", plain, *how), theirs("torch.nn, compiled", "peer", compiled, *how))
    found.add(*others)
    return found


TRAINING = [
    *(
        Row(
            name=name,
            title=f"GPT training on a GPU, whole step: {shape.told()}",
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

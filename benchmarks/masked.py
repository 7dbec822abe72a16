"""Training a masked language model beside `transformers`' BertForMaskedLM: the same shape, weights, batches, in turn.

    python benchmarks/masked.py                  # 4 layers of 256, a vocabulary of 8,000, 32 rows of 128, 15 % masked
    python benchmarks/masked.py --precision bf16 # on a machine with units for it
    python benchmarks/masked.py --device cuda

Theirs at its best: attention written out ("eager") and by PyTorch's kernel ("sdpa"), each plain and compiled, with
fused AdamW, as ours. Theirs as it comes: BertForMaskedLM made from its default configuration at this shape, labels over
all rows, AdamW as torch makes it. Every contender begins with our weights, and the first loss of each, without dropout,
must be ours.

Rounds take turns, so that a machine's moods fall on all alike. Medians are printed, and each ratio to the contender.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tercet.models import Dropout, EncoderOnly, EncoderOnlySpec, model_spec
from tercet.objectives import IGNORED, MaskedBatch, Masking, masked_loss
from tercet.objectives.masking import mask_rows

SPECIAL, MASK = 5, 4
Given = tuple[MaskedBatch, Tensor]  # and the labels (B, T) over all rows, as theirs takes them
BEST, AS_IT_COMES = 1.25, 4.0  # how many times as fast ours is to be


class Ours:
    def __init__(self, spec: EncoderOnlySpec) -> None:
        self.model = EncoderOnly(spec, seed=1)

    def loss(self, batch: MaskedBatch, labels: Tensor) -> Tensor:
        return masked_loss(self.model, batch).mean


class Theirs:
    def __init__(self, spec: EncoderOnlySpec, attention: str | None) -> None:
        from transformers import BertConfig, BertForMaskedLM

        stack = spec.stack
        config = BertConfig(
            vocab_size=spec.vocab_size, hidden_size=stack.d_model, num_hidden_layers=stack.n_layers,
            num_attention_heads=stack.n_heads, intermediate_size=stack.inner_width,
            max_position_embeddings=spec.max_len, hidden_dropout_prob=stack.dropout.residual,
            attention_probs_dropout_prob=stack.dropout.attention,
        )  # fmt: skip
        if attention is not None:
            config._attn_implementation = attention  # pyright: ignore[reportPrivateUsage]
        self.model = BertForMaskedLM(config)

    def loss(self, batch: MaskedBatch, labels: Tensor) -> Tensor:
        return self.model(input_ids=batch.inputs, labels=labels).loss

    def take(self, ours: EncoderOnly) -> None:
        names = {
            "self_attention.query": "attention.self.query", "self_attention.key": "attention.self.key",
            "self_attention.value": "attention.self.value", "self_attention.out": "attention.output.dense",
            "self_residual.after": "attention.output.LayerNorm", "feedforward.up": "intermediate.dense",
            "feedforward.down": "output.dense", "feedforward_residual.after": "output.LayerNorm",
        }  # fmt: skip
        fixed = {
            "embedding.weight": "bert.embeddings.word_embeddings.weight",
            "segment_embedding.weight": "bert.embeddings.token_type_embeddings.weight",
            "stack.position.table.weight": "bert.embeddings.position_embeddings.weight",
            "unembedding.bias": "cls.predictions.bias", "unembedding.weight": None,
        }  # fmt: skip
        into = self.model.state_dict()
        for name, value in ours.state_dict().items():
            into_name = fixed.get(name, name)
            if into_name is None:
                continue
            if ".blocks." in name:
                number, _, part = name.partition(".blocks.")[2].partition(".")
                part, _, kind = part.rpartition(".")
                into_name = f"bert.encoder.layer.{number}.{names[part]}.{kind}"
            elif name.startswith("stack.embedding_norm."):
                into_name = f"bert.embeddings.LayerNorm.{name.rpartition('.')[2]}"
            elif name.startswith("transform."):
                part, kind = name.split(".")[1:]
                into_name = f"cls.predictions.transform.{'LayerNorm' if part == 'norm' else 'dense'}.{kind}"
            into[into_name].copy_(value)


def batches(args: argparse.Namespace, count: int) -> list[Given]:
    generator = np.random.default_rng(0)
    made: list[Given] = []
    for _ in range(count):
        tokens = generator.integers(SPECIAL, args.vocab, (args.rows, args.length))
        masked = mask_rows(
            tokens, np.ones(tokens.shape, bool), masking=Masking(rate=args.rate), generator=generator,
            mask_id=MASK, random_ids=np.arange(SPECIAL, args.vocab),
        )  # fmt: skip
        arrays = (torch.from_numpy(one).to(args.device) for one in (masked.inputs, masked.positions, masked.targets))
        batch = MaskedBatch(*arrays)
        used = batch.targets != IGNORED
        labels = torch.full_like(batch.inputs, IGNORED)
        labels.view(-1)[batch.positions[used]] = batch.targets[used]
        made.append((batch, labels))
    return made


def stepping(contender: Any, args: argparse.Namespace, *, compiled: bool, fused: bool) -> Callable[[Given], None]:
    parameters = list(contender.model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True if fused else None)
    loss = torch.compile(contender.loss) if compiled else contender.loss
    contender.model.train()

    def step(given: Given) -> None:
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            found = loss(*given)
        found.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def contenders(spec: EncoderOnlySpec, args: argparse.Namespace) -> dict[str, Callable[[Given], None]]:
    ours = EncoderOnly(spec, seed=1).eval()
    first = batches(args, 1)[0]
    with torch.no_grad():
        wanted = float(masked_loss(ours.to(args.device), first[0]).mean)
    work: dict[str, Callable[[Given], None]] = {}
    kinds: list[tuple[str, str | None, bool, bool]] = [("tercet", None, False, True)]
    kinds += [("tercet, compiled", None, True, True)]
    for attention in ("eager", "sdpa"):
        kinds += [
            (f"transformers, {attention}", attention, False, True),
            (f"transformers, {attention}, compiled", attention, True, True),
        ]
    kinds.append(("transformers, as it comes", None, False, False))
    for name, attention, compiled, fused in kinds:
        if compiled and args.no_compile:
            continue
        one = Ours(spec) if name.startswith("tercet") else Theirs(spec, attention)
        if isinstance(one, Theirs):
            one.take(ours.cpu())
        one.model.to(args.device).eval()
        with torch.no_grad():
            found = float(one.loss(*first))
        assert abs(found - wanted) < 1e-4, f"{name} begins with a loss of {found}, not {wanted}"
        work[name] = stepping(one, args, compiled=compiled, fused=fused)
    return work


def train(args: argparse.Namespace) -> dict[str, Any]:
    sizes = {"d_model": args.width, "n_layers": args.layers, "n_heads": args.heads, "d_ff": 4 * args.width}
    spec = model_spec({"preset": "bert-mini", "vocab_size": args.vocab, "max_len": args.length, "stack": sizes})
    assert isinstance(spec, EncoderOnlySpec)
    if args.no_dropout:
        spec = replace(spec, stack=replace(spec.stack, dropout=Dropout()))
    work = contenders(spec, args)
    speeds: dict[str, list[float]] = {name: [] for name in work}
    given = batches(args, args.steps)
    for name, step in work.items():  # the first steps compile
        start = time.perf_counter()
        for batch in given[:2]:
            step(batch)
        print(f"  {name:34} ready in {time.perf_counter() - start:5.1f} s", flush=True)
    for _ in range(args.rounds):
        for name, step in work.items():
            _wait(args.device)
            start = time.perf_counter()
            for batch in given:
                step(batch)
            _wait(args.device)
            speeds[name].append(args.steps * args.rows * args.length / (time.perf_counter() - start))
    return _report(speeds, args)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _report(speeds: dict[str, list[float]], args: argparse.Namespace) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ours = max(median for name, median in medians.items() if name.startswith("tercet"))
    print(f"tokens/s; median of {args.rounds} rounds of {args.steps} steps, threads {torch.get_num_threads()}")
    for name, median in medians.items():
        print(f"  {name:34} {median:12,.0f}   the faster tercet is {ours / median:5.2f} x")
    theirs = {name: median for name, median in medians.items() if name.startswith("transformers")}
    as_it_comes = theirs.pop("transformers, as it comes")
    ratios = {"best": ours / max(theirs.values()), "as it comes": ours / as_it_comes}
    print(f"beside theirs at its best {ratios['best']:.2f} x (aim {BEST}), as it comes {ratios['as it comes']:.2f} x "
          f"(aim {AS_IT_COMES})")  # fmt: skip
    return {"unit": "tokens/s", "rounds": speeds, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.15)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="training steps in a round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="for all of them")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled contenders out")
    parser.add_argument("--no-dropout", action="store_true", help="in none of them")
    parser.add_argument("--json", metavar="FILE", help="write every round's figure there")
    args = parser.parse_args()
    result = train(args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()

"""The effect of each ingredient of the default models on small texts: paired runs until the answer is certain.

    python examples/debian/packages.py runs/ingredients/debian                      # one of the corpora
    python benchmarks/quality/ingredients.py time decoder --out runs/ingredients    # seconds per step, quiet machine
    python benchmarks/quality/ingredients.py train decoder --out runs/ingredients   # hours; can be stopped and repeated
    python benchmarks/quality/ingredients.py report decoder --out runs/ingredients

A variant trains for as long as the default: its number of steps is that of the default times the ratio of their seconds
per step. With `--equal tokens`, it trains for as many steps as the default instead. Its loss is that of the whole
validation part; that of a translator is over target tokens, next to its BLEU. A pair is one seed on one corpus, with
the same batches. The effect is the mean difference of the pairs, with a 95 % interval (Student's t). Seeds are added
until half of the interval is below the limit, or up to a maximum. The results are in `ingredients/` next to this file,
so that the runs can continue on another machine. Two processes share the runs with `--part 1/2` and `--part 2/2`. With
`--device cuda` models are trained on a GPU, for as many steps as on a CPU; about a dozen processes share one.
`--steps`, `--corpora`, `--variants` and `--seeds` select a part of the experiment. Variants of the form `part=NAME` are
in `parts.py`.
"""

import argparse
import csv
import json
import math
import shutil
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from corpora import BUILDERS, write_corpus
from parts import PARTS
from scipy.stats import t as student

from tercet.checkpoint import load_model
from tercet.config import merge
from tercet.evaluate import evaluation_of
from tercet.settings_yaml import parse_assignment
from tercet.training import Recipe, load_recipe, train

RESULTS = Path(__file__).parent / "ingredients"  # one line per run, and the seconds per step
LIMIT, MAX_SEEDS, MIN_SEEDS = 0.003, 8, 3  # nats per token; seeds per corpus
TIMED_STEPS, TIMED_ROUNDS = 110, 3
COMMON = [
    "training.validate_every=100000", "training.save_every=100000", "training.compile=never", "training.precision=fp32",
    "training.log_every=10",
]  # fmt: skip
PART = "part="  # start of a change that is in `parts.py`
CHARACTERS = "data.tokenizer={kind: characters, eos: false}"


@dataclass(frozen=True)
class Family:
    """A default model, its variants, and the corpora on which they are compared.

    Attributes:
        recipe: Name of the packaged recipe of the default model.
        steps: Steps of the default model.
        corpora: Changes of the recipe by the name of a corpus.
        variants: Changes of the recipe by the name of a variant; the first has none.
        common: Changes of the recipe in all runs: no samples.
        seeds: Seeds of the pairs, in their order.
    """

    recipe: str
    steps: int
    corpora: dict[str, list[str]]
    variants: dict[str, list[str]]
    common: tuple[str, ...] = ("task.sample_tokens=0",)
    seeds: tuple[int, ...] = tuple(range(1, MAX_SEEDS + 1))


RELU_SQUARED = ["model.stack.activation=relu_squared", "model.stack.gated=false", "model.stack.d_ff=512"]
SOFTCAP, NO_QK_NORM = "model.logit_softcap=15", "model.stack.qk_norm=false"
NO_EMBEDDING_NORM = "model.embedding_norm=false"
FIRST_NORM, TRANSFORM = "model.stack.first_norm=true", "model.masked_head.transform=true"
SIDES = ("encoder", "decoder")
T5 = [
    change
    for side in SIDES
    for change in (f"model.{side}.qk_norm=false", f"model.{side}.position={{kind: relative_bias}}")
]
DRAWN_SEEDS = (714399, 39253, 510972, 2828, 562401, 923456, 287731, 587887)  # by Python's `secrets`
DROPOUT = "model.stack.dropout={{embedding: {0}, residual: {0}}}"
BPE = "data.tokenizer={kind: bpe, vocab_size: 1024}"
WORDPIECE = "data.tokenizer={kind: wordpiece, vocab_size: 4000}"
TIED, DECAY = "model.tie_embeddings=true", "training.optimizer.weight_decay=0.5"
GPT_RELU_SQUARED = ["model.stack.activation=relu_squared", "model.stack.gated=false", "model.stack.d_ff=256"]
NOISE = "part=token noise 0.15"
INNER_DROPOUT = ["model.stack.dropout.attention=0.1", "model.stack.dropout.activation=0.1"]
VARIANT = "training.optimizer={{kind: parts:MuonVariant, lr: 0.0213, adam_lr: 0.0085, head_lr: 0.0085, {}}}"
FAMILIES = {
    "gpt": Family(
        recipe="gpt",
        steps=1500,
        seeds=DRAWN_SEEDS,
        common=(
            "task.sample_tokens=0",
            "model.size=64",
            "training.optimizer={kind: muon, lr: 0.0213, adam_lr: 0.0085}",  # those of `tercet train --hours`
        ),
        corpora={
            "python-docs": ["data.source=python-docs", BPE, DROPOUT.format(0.1)],
            "shakespeare": ["data.source=shakespeare", CHARACTERS],
        },
        variants={
            "default": [],
            "Muon of parts.py": [VARIANT.format("weight_decay: 0")],
            "weight decay 0.5": [DECAY],
            "weight decay 1": ["training.optimizer.weight_decay=1"],
            "weight decay 2": ["training.optimizer.weight_decay=2"],
            "cautious weight decay 1": [VARIANT.format("weight_decay: 1, cautious: true")],
            "NorMuon": [VARIANT.format("normalize: true")],
            "Polar Express": [VARIANT.format("polar: true")],
            "EMA 0.99": ["training.ema=0.99"],
            "cosine": ["training.schedule={kind: cosine, final: 0}"],
            "linear": ["training.schedule={kind: wsd, cooldown: 1}"],
            "batch ramp": ["training.batch_ramp=0.5", "task.micro_batch_size=2"],
            "ReLU squared": GPT_RELU_SQUARED,
            "tied embeddings": [TIED],
            "sandwich": ["model.stack.placement=sandwich"],
            "softcap": ["model.logit_softcap=15"],
            "dropout in attention and activations": INNER_DROPOUT,
            "label smoothing 0.02": ["training.label_smoothing=0.02"],
            **{name: [f"part={name}"] for name in PARTS},
            "decay 0.5 of embeddings": [VARIANT.format("adam_weight_decay: 0.5")],
            "decay 0.1 of embeddings": [VARIANT.format("adam_weight_decay: 0.1")],
            "decay 0.5 of all matrices": [VARIANT.format("weight_decay: 0.5, adam_weight_decay: 0.5")],
            "tied, decay 0.5": [TIED, DECAY],
            "tied, cautious decay 1": [TIED, VARIANT.format("weight_decay: 1, cautious: true")],
            "tied, dropout 0.2": [TIED, DROPOUT.format(0.2)],
            "tied, dropout 0.2, decay 0.5": [TIED, DROPOUT.format(0.2), DECAY],
            "tied, ReLU squared": [TIED, *GPT_RELU_SQUARED],
            "tied, dropout in attention and activations": [TIED, *INNER_DROPOUT],
            "tied, sandwich": [TIED, "model.stack.placement=sandwich"],
            "tied, dropout 0": [TIED, DROPOUT.format(0)],
            "tied, Polar Express": [TIED, VARIANT.format("polar: true")],
            "dropout 0.2": [DROPOUT.format(0.2)],
            "dropout 0.3": [DROPOUT.format(0.3)],
            "dropout 0.2, decay 0.5": [DROPOUT.format(0.2), DECAY],
            "dropout 0.3, decay 0.5": [DROPOUT.format(0.3), DECAY],
            "dropout 0.2, decay 0.5 of all matrices": [
                DROPOUT.format(0.2),
                VARIANT.format("weight_decay: 0.5, adam_weight_decay: 0.5"),
            ],
            **{
                f"dropout {dropout}, decay {decay} of embeddings": [
                    DROPOUT.format(dropout),
                    VARIANT.format(f"adam_weight_decay: {decay}"),
                ]
                for dropout in (0.1, 0.2)
                for decay in (0.5, 1, 2)
            },
            "tied, decay 1": [TIED, "training.optimizer.weight_decay=1"],
            "tied, decay 0.5, dropout 0.2": [TIED, DECAY, DROPOUT.format(0.2)],
            "tied, decay 0.5, Polar Express": [TIED, VARIANT.format("polar: true, weight_decay: 0.5")],
            "tied, cautious decay 1, Polar Express": [
                TIED,
                VARIANT.format("polar: true, weight_decay: 1, cautious: true"),
            ],
            "tied, noise 0.15": [TIED, NOISE],
            "tied, noise 0.3": [TIED, "part=token noise 0.3"],
            "tied, row noise 0.15": [TIED, "part=row noise 0.15"],
            "tied, token dropout 0.15": [TIED, "part=token dropout 0.15"],
            "tied, noise 0.15, decay 0.5": [TIED, NOISE, DECAY],
            "tied, noise 0.15, dropout 0.2": [TIED, NOISE, DROPOUT.format(0.2)],
            "tied, noise 0.15, dropout in attention and activations": [TIED, NOISE, *INNER_DROPOUT],
            "tied, noise 0.15, ReLU squared": [TIED, NOISE, *GPT_RELU_SQUARED],
            "tied, noise 0.15, Polar Express": [TIED, NOISE, VARIANT.format("polar: true")],
            "tied, multi-token": [TIED, "part=multi-token"],
        },
    ),
    "bert": Family(
        recipe="bert",
        steps=1500,
        seeds=DRAWN_SEEDS,
        common=(
            "task.sample_tokens=0",
            "model.size=64",
            "training.optimizer={kind: muon, lr: 0.0213, adam_lr: 0.0085}",
        ),
        corpora={
            "python-docs": ["data.source=python-docs", WORDPIECE],
            "shakespeare": ["data.source=shakespeare", WORDPIECE],
        },
        variants={
            "default": [],
            "zero projections": ["model.init={kind: zero_projections}"],
            "decay 0.5": [DECAY],
            "dropout 0.1": [DROPOUT.format(0.1)],
            "ReLU squared": GPT_RELU_SQUARED,
            "sandwich": ["model.stack.placement=sandwich", "model.stack.first_norm=true"],
            "RMS norm": ["model.stack.norm=rms"],
            "QK norm": ["model.stack.qk_norm=true"],
            "masking 0.2": ["task.masking.rate=0.2"],
            "masking 0.4": ["task.masking.rate=0.4"],
            "untied": ["model.tie_embeddings=false"],
        },
    ),
    "decoder": Family(
        recipe="nanogpt-cpu-modern",
        steps=1000,
        corpora={
            "shakespeare": [CHARACTERS],
            "python-docs": ["data.source=python-docs", "data.tokenizer={kind: bpe, vocab_size: 1024}"],
            "python-code": ["data.source=OUT/python-code.txt", "data.tokenizer={kind: bpe, vocab_size: 1024}"],
            "debian": ["data.source=OUT/debian.txt", CHARACTERS],
            "captions-de": ["data.source=OUT/captions-de.txt", "data.tokenizer={kind: bpe, vocab_size: 2048}"],
        },
        variants={
            "default": [],
            "with a softcap": [SOFTCAP],
            "without embedding norm": [NO_EMBEDDING_NORM],
            "without QK norm": [NO_QK_NORM],
            "ReLU squared": RELU_SQUARED,
            "ReLU squared, with a softcap": [*RELU_SQUARED, SOFTCAP],
            "ReLU squared, without QK norm (Arcee)": [*RELU_SQUARED, NO_QK_NORM],
        },
    ),
    "translator": Family(
        recipe="multi30k-de-en",
        steps=1000,
        common=("task.sample_sentences=0", "training.max_epochs=null"),
        corpora={"de-en": [], "en-de": ["data.source_language=en", "data.target_language=de"]},
        variants={
            "default": [],
            "without QK norm": [f"model.{side}.qk_norm=false" for side in SIDES],
            "without embedding norm": [NO_EMBEDDING_NORM],
            "sandwich, without QK norm (T5Gemma)": [
                change
                for side in SIDES
                for change in (f"model.{side}.qk_norm=false", f"model.{side}.placement=sandwich")
            ],
            "relative bias, without QK norm (T5)": T5,
            "relative bias per layer, without QK norm (umT5)": [
                change.replace("relative_bias", "relative_bias, per_layer: true") for change in T5
            ],
            "relative bias per layer that starts as ALiBi, without QK norm": [
                change.replace("relative_bias", "relative_bias, per_layer: true, alibi_init: true") for change in T5
            ],
            "relative bias, without QK norm (T5), half the learning rate": [
                *T5,
                "training.optimizer={kind: muon, lr: 0.0075, adam_lr: 0.003}",
            ],
            "sinusoidal, layer norm, ReLU (M2M-100)": [
                change
                for side in SIDES
                for change in (
                    f"model.{side}.qk_norm=false",
                    f"model.{side}.position={{kind: sinusoidal}}",
                    f"model.{side}.norm=layer",
                    f"model.{side}.norm_bias=true",
                    f"model.{side}.bias=true",
                    f"model.{side}.activation=relu",
                    f"model.{side}.gated=false",
                    f"model.{side}.d_ff=512",
                )
            ],
        },
    ),
    "encoder": Family(
        recipe="bert-shakespeare",
        steps=1000,
        corpora={
            "shakespeare": [],
            "python-docs": ["data.source=python-docs"],
            "python-code": ["data.source=OUT/python-code.txt"],
            "debian": ["data.source=OUT/debian.txt"],
            "captions-de": ["data.source=OUT/captions-de.txt"],
        },
        variants={
            "default": [],
            "with first norm": [FIRST_NORM],
            "with a transform (ModernBERT)": [TRANSFORM],
            "with first norm and a transform": [FIRST_NORM, TRANSFORM],
            "RMS norm": ["model.stack.norm=rms"],
            "without embedding norm": [NO_EMBEDDING_NORM],
            "SiLU": ["model.stack.activation=silu"],
            "with first norm, RMS norm, SiLU (EuroBERT)": [
                FIRST_NORM,
                "model.stack.norm=rms",
                "model.stack.activation=silu",
            ],
        },
    ),
}


def select(family: Family, steps: int | None, corpora: str | None, variants: str | None) -> Family:
    """Return a part of an experiment: another number of steps, and only the named corpora and variants."""
    chosen_corpora = list(family.corpora) if corpora is None else corpora.split(",")
    chosen_variants = list(family.variants) if variants is None else ["default", *variants.split(";")]
    return replace(
        family,
        steps=steps or family.steps,
        corpora={corpus: family.corpora[corpus] for corpus in chosen_corpora},
        variants={variant: family.variants[variant] for variant in chosen_variants},
    )


def write_corpora(family: Family, out: Path) -> None:
    """Write the corpora of `family` that are no named datasets."""
    settings = " ".join(change for changes in family.corpora.values() for change in changes)
    for name in BUILDERS:
        if f"OUT/{name}.txt" in settings:
            write_corpus(name, out)


def recipe_of(family: Family, corpus: str, variant: str, out: Path, changes: list[str]) -> Recipe:
    data: dict[str, Any] = {}
    variants = (change for change in family.variants[variant] if not change.startswith(PART))
    for change in [*COMMON, *family.common, *family.corpora[corpus], *variants, *changes]:
        data = merge(data, parse_assignment(change.replace("OUT", str(out.resolve()))))
    return load_recipe(family.recipe, data)


def parts_of(changes: list[str]) -> ExitStack:
    """Return a context with the parts among the changes of a variant."""
    stack = ExitStack()
    for change in changes:
        if change.startswith(PART):
            stack.enter_context(PARTS[change.removeprefix(PART)]())
    return stack


def read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


def measure_times(name: str, family: Family, out: Path, rounds: int) -> None:
    """Measure the seconds per step of each variant, in turn, and keep the lowest of several rounds."""
    seconds = dict[str, float]()
    for _ in range(rounds):
        for variant in family.variants:
            taken = seconds_per_step(family, variant, out)
            seconds[variant] = min(taken, seconds.get(variant, taken))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-seconds.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | seconds, indent=1) + "\n")
    for variant, taken in seconds.items():
        print(f"{variant:50} {1000 * taken:7.2f} ms per step, {taken / seconds['default']:.3f} of the default's")


def seconds_per_step(family: Family, variant: str, out: Path) -> float:
    """Return the seconds per step of a short run: the lowest of ten steps each, which other processes disturb least."""
    shutil.rmtree(out / "timed", ignore_errors=True)
    corpus = next(iter(family.corpora))
    recipe = recipe_of(family, corpus, variant, out, [f"training.max_steps={TIMED_STEPS}"])
    with parts_of(family.variants[variant]):
        train(recipe, out / "timed", quiet=True)
    with (out / "timed" / "metrics.csv").open(encoding="utf-8") as file:
        times = [(int(row["step"]), float(row["seconds"])) for row in csv.DictReader(file)][1:-1]
    shutil.rmtree(out / "timed")
    return min((b - a) / (last - first) for (first, a), (last, b) in pairwise(times))


def results_path(name: str, family: Family, *, equal: str) -> Path:
    """Return the file of the results of a family at its number of steps, with equal `time` or `tokens`."""
    return RESULTS / f"{name}-{family.steps}{'-tokens' if equal == 'tokens' else ''}.jsonl"


def read_seconds(name: str) -> dict[str, float]:
    """Return the seconds per step of the variants that were timed."""
    path = RESULTS / f"{name}-seconds.json"
    return json.loads(path.read_text()) if path.exists() else {}


def train_all(name: str, family: Family, out: Path, part: tuple[int, int], device: str, *, equal: str) -> None:
    """Train pairs, seed by seed, until each variant is decided; `part` (i, n) takes every n-th run from the i-th on."""
    path, seconds = results_path(name, family, equal=equal), read_seconds(name)
    for turn, seed in enumerate(family.seeds):
        results = read_results(path)
        open_variants = [v for v in family.variants if v == "default" or not is_decided(family, v, results)]
        if len(open_variants) == 1:
            break
        pairs = [(corpus, variant) for corpus in family.corpora for variant in family.variants]
        for number, (corpus, variant) in enumerate(pairs, start=turn * len(pairs)):
            key = {"corpus": corpus, "variant": variant, "seed": seed}
            is_other = number % part[1] != part[0] - 1 or variant not in open_variants
            if is_other or any(key.items() <= result.items() for result in results):
                continue
            faster = 1.0 if equal == "tokens" else seconds["default"] / seconds[variant]
            steps = round(family.steps * faster)
            accelerator = "gpu" if device == "cuda" else device
            changes = [f"training.max_steps={steps}", f"training.seed={seed}", f"training.accelerator={accelerator}"]
            recipe = recipe_of(family, corpus, variant, out, changes)
            with parts_of(family.variants[variant]):
                result = key | {"steps": steps} | run(recipe, out / f"run-{name}-{part[0]}", device)
            result |= {} if device == "cpu" else {"device": device}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(corpus, variant, seed, f"{result['loss']:.4f}", f"{result['seconds']:.0f} s", flush=True)


def run(recipe: Recipe, folder: Path, device: str) -> dict[str, float]:
    """Train a recipe and return its loss on the whole validation part, in nats per token, and BLEU of a translator."""
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    train(recipe, folder, quiet=True)
    seconds = time.perf_counter() - started
    trained = load_model(folder / "last")
    trained.model.to(device)
    evaluation = evaluation_of(trained)
    scores = evaluation.score_held_out(evaluation.load_held_out()).scores
    loss = next(score for measure, score in scores.items() if measure.startswith("nats_per_"))
    others = {name: scores[name] for name in ("bits_per_byte", "bleu") if name in scores}
    shutil.rmtree(folder)
    return {"loss": loss, "seconds": round(seconds, 1)} | others


def effect(family: Family, variant: str, results: list[dict[str, Any]]) -> tuple[float, float, int]:
    """Return the mean difference to the default over all pairs, half of its 95 % interval, and the number of pairs.

    The interval is that of the mean over these corpora: the variance of a difference is that within each corpus.
    """
    losses = {(result["corpus"], result["variant"], result["seed"]): result["loss"] for result in results}
    by_corpus = []
    for corpus in family.corpora:
        seeds = [seed for c, v, seed in losses if (c, v) == (corpus, variant) and (c, "default", seed) in losses]
        by_corpus.append([losses[corpus, variant, seed] - losses[corpus, "default", seed] for seed in seeds])
    pairs = sum(map(len, by_corpus))
    if not all(by_corpus):
        return float("nan"), float("inf"), pairs
    mean = statistics.mean(statistics.mean(differences) for differences in by_corpus)
    if any(len(differences) < 2 for differences in by_corpus):
        return mean, float("inf"), pairs
    variances = [statistics.variance(differences) / len(differences) for differences in by_corpus]
    error = math.sqrt(sum(variances)) / len(by_corpus)
    return mean, float(student.ppf(0.975, pairs - len(by_corpus))) * error, pairs


def is_decided(family: Family, variant: str, results: list[dict[str, Any]]) -> bool:
    """Return whether enough pairs have the interval that is required, on every corpus."""
    _, half_width, pairs = effect(family, variant, results)
    return pairs >= MIN_SEEDS * len(family.corpora) and half_width < LIMIT


def print_report(name: str, family: Family, *, equal: str) -> None:
    """Print the effect of each variant that was trained, with its mean on each corpus."""
    results, seconds = read_results(results_path(name, family, equal=equal)), read_seconds(name)
    trained = {result["variant"] for result in results}
    print(f"| variant | time per step | change of the loss, nats per token | pairs | {' | '.join(family.corpora)} |")
    print("|---" * (4 + len(family.corpora)) + "|")
    for variant in (variant for variant in family.variants if variant in trained):
        mean, half_width, pairs = effect(family, variant, results)
        cells = [
            f"{effect(replace(family, corpora={corpus: []}), variant, results)[0]:+.4f}" for corpus in family.corpora
        ]
        print(
            f"| {variant} | {relative_time(seconds, variant)} | {mean:+.4f} ± {half_width:.4f} | {pairs} | "
            f"{' | '.join(cells)} |"
        )


def relative_time(seconds: dict[str, float], variant: str) -> str:
    return f"{seconds[variant] / seconds['default']:.3f}" if variant in seconds else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("time", "train", "report"))
    parser.add_argument("family", choices=tuple(FAMILIES))
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpora and of the current run")
    parser.add_argument("--part", default="1/1", help="of `train`: share of this process, such as 1/2")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of `train`; times are a CPU's")
    parser.add_argument("--rounds", type=int, default=TIMED_ROUNDS, help=f"of `time` (default: {TIMED_ROUNDS})")
    parser.add_argument("--steps", type=int, help="steps of the default (default: those of the family)")
    parser.add_argument("--corpora", help="only these corpora, separated by commas")
    parser.add_argument(
        "--variants", help="only these variants, separated by semicolons; the default is always included"
    )
    parser.add_argument("--seeds", type=int, help="maximum number of seeds (default: those of the family)")
    parser.add_argument("--equal", choices=("time", "tokens"), default="time", help="of `train` and `report`")
    arguments = parser.parse_args()
    name: str = arguments.family
    selected = select(FAMILIES[name], arguments.steps, arguments.corpora, arguments.variants)
    selected = replace(selected, seeds=selected.seeds[: arguments.seeds])
    write_corpora(selected, arguments.out)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    if arguments.action == "time":
        measure_times(name, selected, arguments.out, arguments.rounds)
    elif arguments.action == "train":
        number, count = map(int, arguments.part.split("/"))
        train_all(name, selected, arguments.out, (number, count), arguments.device, equal=arguments.equal)
    else:
        print_report(name, selected, equal=arguments.equal)

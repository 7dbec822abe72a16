"""Loss of the recipes with one dial, `gpt` and `bert`, over sizes, lengths and learning rates on small texts.

    python examples/debian/packages.py runs/corpora/debian                   # one of the corpora
    python benchmarks/quality/scaling.py train rates --out runs/corpora      # can be stopped and repeated
    python benchmarks/quality/scaling.py report rates
    python benchmarks/quality/scaling.py table            # the table from which the law starts, of `train gpt`
    python benchmarks/quality/scaling.py coverage         # how often the intervals contain the outcomes

An experiment is a list of runs. Their results are in `scaling/` next to this file, one line per run, so that they can
be continued on another machine; `--part 1/2` and `--part 2/2` share the runs between two processes. A loss is that of
the best model on the whole validation part, in nats per token and in bits per byte.
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpora import BUILDERS, write_corpus

from tercet.checkpoint import load_model, read_card
from tercet.config import merge
from tercet.evaluate import evaluation_of
from tercet.settings_yaml import parse_assignment
from tercet.training import load_recipe, train
from tercet.training.budget.law import fit, prior_of
from tercet.training.budget.priors import TABLE, read_points
from tercet.training.budget.settings import TextSize, learning_rate, run_settings
from tercet.training.planning.flops import training_flops
from tercet.training.planning.micro_batch import tokens_of_row
from tercet.training.run.judge import ngram_loss, unigram_loss
from tercet.training.run_folder.changes import read_recipe
from tercet.training.tasks.model_sizes import read_task
from tercet.training.tasks.open_task import task_of

RESULTS = Path(__file__).parent / "scaling"
MIN_FORECAST_TOKENS = 200_000  # of the trainings that `coverage` forecasts
COMMON = ("training.save_every=1000000", "training.compile=never", "training.precision=fp32", "task.sample_tokens=0")
CORPORA = {
    "shakespeare": ("data.source=shakespeare", "data.tokenizer={kind: characters, eos: false}"),
    "python-docs": ("data.source=python-docs", "data.tokenizer={kind: bpe, vocab_size: 1024}"),
    "python-code": ("data.source=OUT/python-code.txt", "data.tokenizer={kind: bpe, vocab_size: 1024}"),
    "c-code": ("data.source=OUT/c-code.txt", "data.tokenizer={kind: bpe, vocab_size: 1024}"),
    "debian": ("data.source=OUT/debian.txt", "data.tokenizer={kind: bpe, vocab_size: 2048}"),
    "torch-headers": ("data.source=OUT/torch-headers.txt", "data.tokenizer={kind: bpe, vocab_size: 1024}"),
    "licenses": ("data.source=OUT/licenses.txt", "data.tokenizer={kind: bpe, vocab_size: 1024}"),
    "perl": ("data.source=OUT/perl.txt", "data.tokenizer={kind: bpe, vocab_size: 1024}"),
}
WORDPIECE = "data.tokenizer={kind: wordpiece, vocab_size: 4000}"
BERT_CORPORA = {name: (changes[0], WORDPIECE) for name, changes in CORPORA.items()}


@dataclass(frozen=True)
class Cell:
    """A run: a recipe of a size on a corpus for a number of steps, and further changes."""

    corpus: str
    size: int
    steps: int
    changes: tuple[str, ...] = ()
    recipe: str = "gpt"
    seed: int = 1

    def key(self) -> dict[str, Any]:
        return {**asdict(self), "changes": list(self.changes)}


def rate(factor: float, adam_factor: float | None = None) -> str:
    """Return the change to learning rates that are those of the recipe times a factor."""
    adam = 0.006 * (factor if adam_factor is None else adam_factor)
    return f"training.optimizer={{kind: muon, lr: {0.015 * factor:g}, adam_lr: {adam:g}}}"


def rates() -> Iterator[Cell]:
    """Learning rates at three lengths, at width 64."""
    for steps in (250, 1000, 4000):
        for factor in (0.5, 1.0, 2.0, 4.0):
            for corpus in ("shakespeare", "python-code"):
                yield Cell(corpus, 64, steps, (rate(factor),))


def transfer() -> Iterator[Cell]:
    """Learning rates of Muon and of AdamW at two widths, for 1,000 steps."""
    for factor, adam_factor in ((1, 1), (1, 0.5), (2, 2), (0.5, 0.5)):
        for size in (256, 64):
            yield Cell("shakespeare", size, 1000, (rate(factor, adam_factor),))


def regularization() -> Iterator[Cell]:
    """Dropout and weight decay on a text that is read 35 and 18 times."""
    for dropout, decay in ((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.0, 2.0), (0.1, 1.0)):
        changes = [f"model.stack.dropout={{embedding: {dropout}, residual: {dropout}}}"] if dropout else []
        changes += [f"training.optimizer={{kind: muon, weight_decay: {decay}}}"] if decay else []
        yield Cell("python-docs", 64, 4000, tuple(changes))
        if not decay:
            yield Cell("python-docs", 128, 2000, tuple(changes))


DECAYS = {  # dropout and decay of embeddings, by text, size and steps
    ("python-docs", 64, 500): ((0.0, 0.3), (0.1, 1.0)),
    ("python-code", 64, 1000): ((0.0, 0.1), (0.0, 0.3)),
    ("python-docs", 128, 1000): ((0.1, 1.0), (0.2, 0.3), (0.2, 1.0)),
    ("python-docs", 64, 4000): ((0.1, 1.0), (0.2, 0.3), (0.2, 1.0)),
    ("python-code", 64, 4000): ((0.0, 0.1), (0.0, 0.3), (0.1, 0.0), (0.1, 0.3)),
}


def decay() -> Iterator[Cell]:
    """Dropout and the decay of embeddings for texts that are read 1.5 to 35 times, with the rates of `--hours`."""
    for (corpus, size, steps), pairs in DECAYS.items():
        lr = learning_rate(steps)
        for dropout, weight_decay in pairs:
            optimizer = f"kind: muon, lr: {lr}, adam_lr: {round(0.4 * lr, 6)}, adam_weight_decay: {weight_decay}"
            changes = [f"training.optimizer={{{optimizer}}}"]
            changes += [f"model.stack.dropout={{embedding: {dropout}, residual: {dropout}}}"] if dropout else []
            yield Cell(corpus, size, steps, tuple(changes))


GRID = {32: (60, 125, 500, 2000, 8000), 64: (60, 125, 250, 1000, 4000), 128: (60, 125, 250, 1000), 192: (60, 125, 250)}


def grid(recipe: str, corpora: Iterable[str], out: Path) -> Iterator[Cell]:
    """Sizes and lengths with the settings of `--hours`: the points of the law."""
    for corpus in corpora:
        text = text_of(recipe, corpus, out)
        for size in sorted(GRID, reverse=True):
            for steps in sorted(GRID[size], reverse=True):
                yield Cell(corpus, size, steps, run_changes(size, steps, text), recipe=recipe)


def run_changes(size: int, steps: int, text: TextSize) -> tuple[str, ...]:
    """Return the settings of `--hours` for a run of a size and length."""
    settings = run_settings(size, steps, validations=8, text=text)
    rates = ", ".join(f"{name}: {value}" for name, value in settings["training"]["optimizer"].items() if value)
    rate = settings["model"].get("stack", {}).get("dropout", {}).get("embedding")
    dropout = () if rate is None else (f"model.stack.dropout={{embedding: {rate}, residual: {rate}}}",)
    return (f"training.optimizer={{{rates}}}", *dropout)


def text_of(recipe: str, corpus: str, out: Path) -> TextSize:
    """Return the tokens of a corpus and of a step, with the tokenizer of the recipe."""
    task = read_task(load_recipe(recipe, settings_of(Cell(corpus, 64, 1, recipe=recipe), out)), progress=False)
    row = tokens_of_row(task.recipe)
    return TextSize(task.plan.n_rows * row, row * task.plan.full_batch, task.recipe.model.vocab_size)


def cells(name: str, out: Path) -> Iterator[Cell]:
    """Return the runs of an experiment."""
    match name:
        case "rates":
            return rates()
        case "transfer":
            return transfer()
        case "regularization":
            return regularization()
        case "decay":
            return decay()
        case "bert":
            return grid("bert", BERT_CORPORA, out)
        case _:
            return grid("gpt", CORPORA, out)


EXPERIMENTS = ("rates", "transfer", "regularization", "decay", "gpt", "bert")


def train_all(name: str, out: Path, part: tuple[int, int]) -> None:
    """Train the runs of an experiment that have no result."""
    path = RESULTS / f"{name}.jsonl"
    RESULTS.mkdir(exist_ok=True)
    for number, cell in enumerate(cells(name, out)):
        done = [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []
        if number % part[1] != part[0] - 1 or any(cell.key().items() <= result.items() for result in done):
            continue
        result = cell.key() | run(cell, out, out / f"run-{name}-{part[0]}")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


def settings_of(cell: Cell, out: Path) -> dict[str, Any]:
    """Return the changes of the recipe of a cell, and write its corpus."""
    if cell.corpus in BUILDERS:
        write_corpus(cell.corpus, out)
    settings: dict[str, Any] = {}
    lengths = (f"training.max_steps={cell.steps}", f"training.validate_every={max(50, cell.steps // 8)}")
    fixed = (f"model.size={cell.size}", f"training.seed={cell.seed}")
    corpora = CORPORA if cell.recipe == "gpt" else BERT_CORPORA
    for change in (*COMMON, *lengths, *fixed, *corpora[cell.corpus], *cell.changes):
        settings = merge(settings, parse_assignment(change.replace("OUT", str(out.resolve()))))
    return settings


def run(cell: Cell, out: Path, folder: Path) -> dict[str, Any]:
    """Train a cell, and return the loss of its best model on the whole validation part."""
    settings = settings_of(cell, out)
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    train(load_recipe(cell.recipe, settings), folder, quiet=True)
    seconds = time.perf_counter() - started
    facts = facts_of(folder)
    trained = load_model(folder)
    evaluation = evaluation_of(trained)
    scores = evaluation.score_held_out(evaluation.load_held_out()).scores
    shutil.rmtree(folder)
    return {
        "best_step": trained.card.step,
        "seconds": round(seconds, 1),
        **facts,
        **{name: round(score, 5) for name, score in scores.items() if name.startswith(("nats_per_", "bits_per_"))},
    }


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what the law needs of a run: the matrices, the tokens, and the validation losses as in `--hours`."""
    card = read_card(folder)
    task = task_of(read_recipe(folder), pretrained=None, progress=False)
    row = tokens_of_row(task.recipe)
    return {
        "multiplied": training_flops(task.recipe).multiplied,
        "tokens": task.plan.steps * task.plan.full_batch * row,
        "unique": task.plan.n_rows * row,
        "validation_loss": card.metrics["val/loss"],
        "unigram_loss": unigram_loss(task, card.metrics),
        "ngram_loss": ngram_loss(task),
    }


def table(out: Path) -> None:
    """Write the results of the grids with the present settings as the table from which the law starts."""
    lines = ["recipe,text,size,multiplied,tokens,unique,ngram,ratio"]
    for recipe in ("gpt", "bert"):
        path = RESULTS / f"{recipe}.jsonl"
        results = [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []
        wanted = [cell.key() for cell in cells(recipe, out)] if results else []
        results = [one for one in results if any(key.items() <= one.items() for key in wanted)]
        for one in sorted(results, key=lambda one: (one["corpus"], one["size"], one["steps"])):
            ratios = (one[name] / one["unigram_loss"] for name in ("ngram_loss", "validation_loss"))
            facts = (one[name] for name in ("corpus", "size", "multiplied", "tokens", "unique"))
            words = (recipe, *facts, *(f"{ratio:.5f}" for ratio in ratios))
            lines.append(",".join(map(str, words)))
    path = Path(__file__).parents[2] / "src" / "tercet" / "training" / "budget" / TABLE
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines) - 1} trainings")


def coverage() -> None:
    """Forecast the trainings of each text from its shortest ones, with a law that starts from the other texts."""
    texts, inside, errors, widths = read_points("gpt"), 0, list[float](), list[float]()
    for text, points in texts.items():
        prior = prior_of({other: points for other, points in texts.items() if other != text})
        for longest_pilot in (70_000, 130_000):
            law = fit([point for point in points if point.tokens <= longest_pilot][:6], prior)
            for point in (point for point in points if point.tokens > MIN_FORECAST_TOKENS):
                draws = law.draw(point)
                low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95]).tolist()
                inside += low <= point.ratio <= high
                errors.append(abs(middle / point.ratio - 1))
                widths.append((high - low) / 2 / middle)
    print(
        f"{inside} of {len(errors)} outcomes are within the interval of 90 %; median error "
        f"{statistics.median(errors):.1%}, half of the interval {statistics.median(widths):.1%}"
    )


def report(name: str) -> None:
    for line in (RESULTS / f"{name}.jsonl").open(encoding="utf-8"):
        result = json.loads(line)
        loss = next(score for measure, score in result.items() if measure.startswith("nats_per_"))
        changes = " ".join(result["changes"])
        print(f"| {result['corpus']} | {result['size']} | {result['steps']:,} | {changes} | {loss:.4f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("train", "report", "table", "coverage"))
    parser.add_argument("experiment", choices=EXPERIMENTS, nargs="?", default="gpt")
    parser.add_argument("--out", type=Path, default=Path("runs/corpora"), help="folder of the corpora")
    parser.add_argument("--part", default="1/1", help="share of this process, such as 1/2")
    arguments = parser.parse_args()
    if arguments.action == "train":
        number, count = map(int, arguments.part.split("/"))
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
        train_all(arguments.experiment, arguments.out, (number, count))
    elif arguments.action == "table":
        table(arguments.out)
    elif arguments.action == "coverage":
        coverage()
    else:
        report(arguments.experiment)

"""Runs that take a second: recipes, comparison of two runs, and child processes that may be killed."""

import gc
import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_type_hints

import torch

from tercet.checkpoint.metrics import read_metrics
from tercet.config import merge
from tercet.settings_yaml import write_yaml
from tercet.storage import atomic
from tercet.training import Interrupted, Recipe, parse_recipe, train
from tercet.training.recipe.recipe import RECIPES

# Files of a run of text or pairs, except for its lock.
RUN_FILES = {"recipe.yaml", "run.json", "metrics.csv", "loss.png", "samples", "best", "last", "checkpoints"}
CHECKPOINT = "step-??????"  # the name of a checkpoint's folder
TEXT = "".join(f"{n} times {m} is {n * m}.\n" for n in range(3, 9) for m in range(2, 8))

MUON: dict[str, Any] = {"kind": "muon", "lr": 0.01, "adam_lr": 0.005}
ADAMW: dict[str, Any] = {"kind": "adamw", "lr": 0.01}
PAIRS_ADAMW: dict[str, Any] = {"kind": "adamw", "lr": 0.06}
PAIRS_MUON: dict[str, Any] = {"kind": "muon", "lr": 0.05, "adam_lr": 0.06}


def build_recipe(base: dict[str, Any], changes: dict[str, Any] | None, settings: dict[str, Any]) -> Recipe:
    """Merge `settings`, keys of the task and of the training, and `changes` into `base`."""
    task_fields = {field.name for field in fields(get_type_hints(RECIPES[base["task"]["kind"]])["task"])}
    parts = {"task": {}, "training": {}}
    for key, value in settings.items():
        parts["task" if key in task_fields else "training"][key] = value
    return parse_recipe(merge(merge(base, parts), changes or {}), name=f"tiny {base['task']['kind']}")


def tiny_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return one layer, 8 tokens of context, 12 steps of 16 rows in four micro-batches; an epoch is about 4 steps."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    base: dict[str, Any] = {
        "task": {"kind": "language", "batch_size": 16, "micro_batch_size": 4, "sample_tokens": 6},
        "data": {
            "source": str(text),
            "validation": {"kind": "tail", "fraction": 0.1},
            "tokenizer": {"kind": "characters", "eos": False},
        },
        "model": {
            "preset": "gpt2",
            "max_len": 8,
            "stack": {
                "d_model": 16,
                "n_layers": 1,
                "n_heads": 2,
                "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1},
            },
        },
        "training": {
            "max_steps": 12,
            "optimizer": ADAMW,
            "schedule": {"kind": "cosine"},
            "warmup_steps": 2,
            "precision": "fp32",
            "compile": "never",
            "accelerator": "cpu",
            "validate_every": 3,
            "save_every": 4,
            "log_every": 1,
        },
    }
    return build_recipe(base, changes, settings)


COLORS = {"red": "rote", "blue": "blaue", "green": "grüne", "black": "schwarze", "small": "kleine"}
ANIMALS = {"cat": "Katze", "mouse": "Maus", "cow": "Kuh", "duck": "Ente", "bee": "Biene"}
DEEDS = {"sleeps": "schläft", "eats": "isst alles auf", "sings well": "singt sehr gut", "is here again": "ist da"}
PAIRS = [
    (f"the {color} {animal} {deed}", f"die {colors} {animals} {deeds}")
    for color, colors in COLORS.items()
    for animal, animals in ANIMALS.items()
    for deed, deeds in DEEDS.items()
]


def tiny_pairs_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return one layer per side with all features of translation.

    The run takes 12 steps of 192 tokens per side in three micro-batches. An epoch is 3.67 steps: saves occur within
    epochs, and steps extend from one epoch into the next.
    """
    pairs = folder / "pairs.tsv"
    if not pairs.exists():
        pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    stack: dict[str, Any] = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 32,
        "position": "rotary",
        "qk_norm": True,
        "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1},
    }
    init = {"kind": "normal", "std": 0.2}  # large enough for BLEU to change within 12 steps
    base: dict[str, Any] = {
        "task": {"kind": "translation", "batch_tokens": 192, "micro_batch_tokens": 64, "best_by": "bleu"},
        "data": {
            "source": str(pairs),
            "validation": {"kind": "drawn", "count": 6},
            "tokenizer": {"kind": "words", "prefix_space": True},
        },
        "model": {"preset": "modern-translator", "max_len": 8, "encoder": stack, "decoder": stack, "init": init},
        "training": {
            "max_steps": 12,
            "label_smoothing": 0.1,
            "ema": 0.4,
            "optimizer": PAIRS_ADAMW,
            "schedule": {"kind": "inverse_square_root"},
            "warmup_steps": 2,
            "precision": "fp32",
            "compile": "never",
            "accelerator": "cpu",
            "validate_every": 3,
            "save_every": 4,
            "log_every": 1,
        },
    }
    return build_recipe(base, changes, settings)


def tiny_masked_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return an encoder's `tiny_recipe`: 12 steps of 16 rows in four micro-batches of 10 tokens, word by word."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    stack: dict[str, Any] = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 32,
        "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1},
    }
    base: dict[str, Any] = {
        "task": {"kind": "masked", "batch_size": 16, "micro_batch_size": 4, "sample_tokens": 8},
        "data": {
            "source": str(text),
            "validation": {"kind": "tail", "fraction": 0.1},
            "tokenizer": {"kind": "words", "bos": True, "pad": True, "mask": True},
        },
        "model": {"preset": "modern-encoder", "max_len": 10, "stack": stack},
        "training": {
            "max_steps": 12,
            "optimizer": ADAMW,
            "schedule": {"kind": "cosine"},
            "warmup_steps": 2,
            "precision": "fp32",
            "compile": "never",
            "accelerator": "cpu",
            "validate_every": 3,
            "save_every": 4,
            "log_every": 1,
        },
    }
    return build_recipe(base, changes, settings)


def tiny_labels_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return the sentences of `PAIRS`, labeled by their animal: 12 steps of 16 texts in four micro-batches."""
    labels = folder / "labels.jsonl"
    if not labels.exists():
        lines = ({"text": source, "label": source.split()[2]} for source, _ in PAIRS)
        labels.write_text("".join(json.dumps(line) + "\n" for line in lines))
    stack: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32}
    base: dict[str, Any] = {
        "task": {"kind": "labels", "batch_size": 16, "micro_batch_size": 4, "best_by": "accuracy"},
        "data": {
            "source": str(labels),
            "validation": {"kind": "drawn", "count": 10},
            "tokenizer": {"kind": "words"},
        },
        "model": {"preset": "modern-encoder", "max_len": 8, "stack": stack},
        "training": {
            "max_steps": 12,
            "optimizer": ADAMW,
            "precision": "fp32",
            "compile": "never",
            "accelerator": "cpu",
            "validate_every": 3,
            "save_every": 4,
            "log_every": 1,
        },
    }
    return build_recipe(base, changes, settings)


def tiny_chat_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return `PAIRS` as chats, nine with two turns: 12 steps of 16 conversations in four micro-batches."""
    chat = folder / "chat.jsonl"
    if not chat.exists():
        turns = [[("user", source), ("assistant", target)] for source, target in PAIRS]
        turns = [*([("system", "short"), *turns[n], *turns[n + 9]] for n in range(9)), *turns]
        lines = ({"messages": [{"role": role, "content": text} for role, text in turn]} for turn in turns)
        chat.write_text("".join(json.dumps(line) + "\n" for line in lines))
    base: dict[str, Any] = {
        "task": {"kind": "chat", "batch_size": 16, "micro_batch_size": 4, "sample_conversations": 2},
        "data": {
            "source": str(chat),
            "validation": {"kind": "drawn", "count": 10},
            "tokenizer": {"kind": "words", "prefix_space": True},
        },
        "model": {"preset": "gpt2", "max_len": 32, "stack": {"d_model": 16, "n_layers": 1, "n_heads": 2}},
        "training": {
            "max_steps": 12,
            "optimizer": ADAMW,
            "precision": "fp32",
            "compile": "never",
            "accelerator": "cpu",
            "validate_every": 3,
            "save_every": 4,
            "log_every": 1,
        },
    }
    return build_recipe(base, changes, settings)


def tiny_vectors_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return `PAIRS` as queries and documents, each third with a hard negative: 12 steps of 16 in two micro-batches."""
    queries = folder / "queries.jsonl"
    if not queries.exists():
        negatives = [PAIRS[n - 1][1] if n % 3 == 0 else "" for n in range(len(PAIRS))]
        lines = (
            {"query": query, "document": document, "negative": negative}
            for (query, document), negative in zip(PAIRS, negatives, strict=True)
        )
        queries.write_text("".join(json.dumps(line) + "\n" for line in lines))
    stack: dict[str, Any] = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 32,
        "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1},
    }
    base: dict[str, Any] = {
        "task": {"kind": "vectors", "batch_size": 16, "micro_batch_size": 8, "sizes": [8], "pooling": "first"},
        "data": {
            "source": str(queries),
            "negative_field": "negative",
            "validation": {"kind": "drawn", "count": 10},
            "tokenizer": {"kind": "words"},
        },
        "model": {"preset": "modern-encoder", "max_len": 8, "stack": stack},
        "training": {
            "max_steps": 12,
            "optimizer": ADAMW,
            "precision": "fp32",
            "compile": "never",
            "accelerator": "cpu",
            "validate_every": 3,
            "save_every": 4,
            "log_every": 1,
        },
    }
    return build_recipe(base, changes, settings)


TINY: dict[str, Callable[..., Recipe]] = {
    "text": tiny_recipe,
    "pairs": tiny_pairs_recipe,
    "masked": tiny_masked_recipe,
    "labels": tiny_labels_recipe,
    "chat": tiny_chat_recipe,
    "vectors": tiny_vectors_recipe,
}
NO_SAMPLES: dict[str, dict[str, int]] = {
    "text": {"sample_tokens": 0},
    "pairs": {"sample_sentences": 0},
    "masked": {"sample_tokens": 0},
    "labels": {"sample_texts": 0},
    "chat": {"sample_conversations": 0},
    "vectors": {"sample_texts": 0},
}
NO_DROPOUT: dict[str, float] = {"embedding": 0.0, "attention": 0.0, "residual": 0.0}


def recipe_writer(folder: Path, **settings: Any) -> Callable[[str], str]:
    """Return a function that writes the YAML file of a tiny recipe of a kind in `TINY`, and returns its path."""

    def write(kind: str) -> str:
        path = folder / f"{kind}.yaml"
        if not path.exists():
            path.write_text(write_yaml(TINY[kind](folder, **settings)))
        return str(path)

    return write


def weights(run: Path, folder: str = "last") -> bytes:
    """Return the trained weights of the model or of an adapter."""
    names = ("model.safetensors", "adapter_model.safetensors")
    return next(path for name in names if (path := run / folder / name).exists()).read_bytes()


def resume_state(run: Path) -> dict[str, Any]:
    return torch.load(newest_checkpoint(run) / "state.ckpt", weights_only=True)


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def figures(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return all columns of the metrics that do not depend on the clock."""
    columns = read_metrics(run / "metrics.csv")
    return {name: column for name, column in columns.items() if name not in ("seconds", "tokens_per_second")}


def assert_same_run(first: Path, second: Path) -> None:
    """Check that weights, optimizer, metrics and samples of two runs are bitwise identical."""
    for folder in ("last", "best"):
        assert weights(first, folder) == weights(second, folder), folder
    a, b = resume_state(first), resume_state(second)
    for part in ("global_step", "state_dict", "optimizer_states", "callbacks"):
        assert_equal_trees(a[part], b[part], part)
    assert figures(first) == figures(second)
    samples = [{path.name: path.read_bytes() for path in (run / "samples").iterdir()} for run in (first, second)]
    assert samples[0] == samples[1]


def assert_equal_trees(a: Any, b: Any, path: str) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_equal_trees(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal_trees(x, y, f"{path}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    else:
        assert a == b, path


def child(work: Callable[[], Any]) -> int:
    """Call `work` in a forked process, which has all imports already, and return its process id."""
    assert torch.get_num_threads() == 1, "the threads of GNU's OpenMP do not survive a fork, and the child would hang"
    pid = os.fork()
    if pid:
        return pid
    gc.freeze()  # collecting the parent's objects would copy the pages of all of them
    code = 1
    try:
        work()
        code = 0
    except Interrupted as stopped:
        code = 128 + stopped.signal
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Wait for a child and return its exit code, -9 if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at_random(recipe: Recipe, out: Path, *, timed_run: Path) -> int:
    """Start the run in `out` until it finishes, and kill each attempt within the first third of `timed_run`'s duration.

    Returns how often it was still running when killed.
    """
    start_time = time.perf_counter()
    assert exit_code(child(lambda: train(recipe, timed_run, quiet=True))) == 0
    duration, rng, n_kills = time.perf_counter() - start_time, random.Random(3), 0
    for _ in range(20):
        pid = child(lambda: train(recipe, out, quiet=True))
        time.sleep(rng.uniform(0.05, 0.35) * duration)
        os.kill(pid, signal.SIGKILL)
        if exit_code(pid) != -signal.SIGKILL:
            break
        n_kills += 1
    return n_kills


def dies_at_rename(n: int, *, after: bool, name: str = "") -> Callable[[], None]:
    """Return a function that makes a child kill itself just before or after its n-th rename, when a file appears.

    With a `name`, only renames to files and folders of that name count; it may be a pattern such as `CHECKPOINT`.
    """

    def prepare() -> None:
        count = 0

        def watch(rename: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
            def replace(source: Any, target: Any) -> None:
                nonlocal count
                counts = not name or fnmatch(os.path.basename(target), name)
                count += counts
                if counts and count == n and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                rename(source, target)
                if counts and count == n and after:
                    os.kill(os.getpid(), signal.SIGKILL)

            return replace

        os.replace = watch(os.replace)
        atomic.swap_folders = watch(atomic.swap_folders)

    return prepare


def tiny_numbers_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return `tiny_labels_recipe` with a number per text: its number of letters, on an unusual scale."""
    lines = [{"text": source, "label": 1e4 + 25 * len(source)} for source, _ in PAIRS]
    return _other_labels(folder, "numbers", lines, "regression", "spearman", changes, settings)


def tiny_sets_recipe(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> Recipe:
    """Return `tiny_labels_recipe` with a set of labels per text: its colors and animals, except for two of them."""
    label_words = {*COLORS, *ANIMALS} - {"red", "cat"}
    lines = [{"text": source, "label": [word for word in source.split() if word in label_words]} for source, _ in PAIRS]
    return _other_labels(folder, "sets", lines, "multi_label_classification", "f1", changes, settings)


def _other_labels(
    folder: Path, name: str, lines: list[dict[str, Any]], problem_type: str, best_by: str,
    changes: dict[str, Any] | None, settings: dict[str, Any],
) -> Recipe:  # fmt: skip
    path = folder / f"{name}.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data_changes = {"data": {"source": str(path), "problem_type": problem_type}}
    return tiny_labels_recipe(folder, merge(data_changes, changes or {}), **{"best_by": best_by, **settings})

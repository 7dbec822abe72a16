"""Recipes on texts with one to four bytes per character, combining marks and documents of different lengths."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tercet.config import merge
from tercet.training import Recipe, parse_recipe

DOCUMENTS = [
    "Zoë aß 3 Äpfel.",
    "東京は雨🙂 und Zoë aß",
    "e\u0301te\u0301, a\u0308pfel 3",  # an accent is a separate character here
    "🙂🙂 3",
    "Äpfel für Zoë: 雨, 雨, 🙂.",
    "der Regen 雨 aß Äpfel",
]
HELD_OUT = ["Äpfel 雨🙂 für Zoë.", "3 e\u0301", "🙂雨 aß der Regen 3 Äpfel, Zoë 東京.", "Zoë 雨"]
CONTEXT = 7

WORDS = ("e\u0301te\u0301", "Äpfel 🙂", "雨")
PAIRS = [(f"the {n} 🙂 cats eat", f"die {n} Katzen fressen Ä{'ß' * (n % 3)}") for n in range(40)]
LABELED_TEXTS = [(f"{n} {WORDS[n % 3]} {'und ' * (n % 4)}", "abc"[n % 3]) for n in range(45)]

NO_DROPOUT = {"embedding": 0.0, "attention": 0.0, "residual": 0.0}
STACK: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": NO_DROPOUT}
INIT: dict[str, Any] = {"kind": "normal", "std": 0.3}  # far from uniform
TRAINING: dict[str, Any] = {
    "max_steps": 9,
    "optimizer": {"kind": "adamw", "lr": 0.02},
    "schedule": {"kind": "cosine", "final": 0.1},
    "warmup_steps": 3,
    "clip_norm": 0.25,  # below the gradient's norm
    "precision": "fp32",
    "compile": "never",
    "accelerator": "cpu",
    "validate_every": 3,
    "save_every": 9,
    "log_every": 1,
}
CHARACTERS: dict[str, Any] = {"kind": "characters", "byte_fallback": True, "pad": True}
BPE: dict[str, Any] = {"kind": "bpe", "vocab_size": 290, "pad": True}  # whose tokens end within characters


def text_files(folder: Path) -> dict[str, Any]:
    """Write both parts, one document per line, and return the settings of `data`."""
    for name, documents in (("train", DOCUMENTS), ("held_out", HELD_OUT)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return {
        "source": str(folder / "train.jsonl"),
        "validation": {"kind": "held_out", "source": str(folder / "held_out.jsonl")},
    }


def text_recipe(folder: Path, rows: dict[str, Any], tokenizer: dict[str, Any], **training: Any) -> Recipe:
    return parse_recipe(
        {
            "task": {"kind": "language", "batch_size": 6, "micro_batch_size": 2, "sample_tokens": 0},
            "data": {**text_files(folder), "tokenizer": tokenizer, "rows": rows},
            "model": {"preset": "modern", "max_len": CONTEXT, "stack": STACK, "init": INIT},
            "training": {**TRAINING, **training},
        },
        name="text",
    )


def masked_recipe(folder: Path, rows: dict[str, Any]) -> Recipe:
    return parse_recipe(
        {
            "task": {"kind": "masked", "batch_size": 6, "micro_batch_size": 2, "sample_tokens": 0},
            "data": {
                **text_files(folder), "tokenizer": {**CHARACTERS, "bos": True, "mask": True}, "rows": rows,
            },
            "model": {"preset": "modern-encoder", "max_len": 2 * CONTEXT, "stack": STACK, "init": INIT},
            "training": TRAINING,
        },
        name="masked",
    )  # fmt: skip


def pairs_recipe(folder: Path, **training: Any) -> Recipe:
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return parse_recipe(
        {
            "task": {
                "kind": "translation", "batch_tokens": 96, "micro_batch_tokens": 32, "sample_sentences": 0,
            },
            "data": {
                "source": str(folder / "pairs.tsv"),
                "validation": {"kind": "drawn", "count": 9},
                "tokenizer": {"kind": "words", "prefix_space": True},
            },
            "model": {"preset": "modern-translator", "max_len": 12, "encoder": STACK, "decoder": STACK, "init": INIT},
            "training": merge(TRAINING, {"label_smoothing": 0.1, **training}),
        },
        name="pairs",
    )  # fmt: skip


def labels_recipe(folder: Path) -> Recipe:
    lines = ({"text": text, "label": label} for text, label in LABELED_TEXTS)
    (folder / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # The held-out part lacks one class.
    held_out = ({"text": text + "!", "label": label} for text, label in LABELED_TEXTS[:20] if label != "c")
    (folder / "held_labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in held_out))
    return parse_recipe(
        {
            "task": {"kind": "labels", "batch_size": 6, "micro_batch_size": 2, "sample_texts": 0},
            "data": {
                "source": str(folder / "labels.jsonl"),
                "validation": {"kind": "held_out", "source": str(folder / "held_labels.jsonl")},
                "tokenizer": BPE | {"bos": True},
            },
            "model": {
                "preset": "modern-encoder", "max_len": 16, "stack": STACK, "init": INIT, "classifier": {"dropout": 0.0},
            },
            "training": TRAINING,
        },
        name="labels",
    )  # fmt: skip


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "packed": ({"kind": "packed"}, CHARACTERS),
    "packed-bytes": ({"kind": "packed"}, BPE),
    "documents": ({"kind": "packed", "document_mask": True}, BPE),
    "left": ({"kind": "padded", "stride": 2}, CHARACTERS),
    "right": ({"kind": "padded", "side": "right", "stride": 5}, BPE),
    "sliding": ({"kind": "sliding", "stride": 3}, {**CHARACTERS, "eos": False}),
}
SMALL_RUNS: dict[str, Callable[[Path], Recipe]] = {
    **{name: lambda folder, name=name: text_recipe(folder, *ROWS[name]) for name in ROWS},
    "smoothed": lambda folder: text_recipe(folder, *ROWS["right"], label_smoothing=0.1),
    "masked": lambda folder: masked_recipe(folder, {"kind": "packed"}),
    "masked-documents": lambda folder: masked_recipe(folder, {"kind": "packed", "document_mask": True}),
    "masked-padded": lambda folder: masked_recipe(folder, {"kind": "padded", "side": "right", "stride": 6}),
    "pairs": pairs_recipe,
    "labels": labels_recipe,
}

"""Training solves small tasks exactly, which a falling loss does not prove."""

import random
import string
from pathlib import Path

import pytest

from tercet.checkpoint import load_model
from tercet.data.datasets.text_datasets import FACTS
from tercet.generation import Beam, Sampling, generate, translate
from tercet.models import EncoderDecoder
from tercet.training import load_recipe, parse_recipe, train

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_string_task_is_learned_exactly(tmp_path: Path, task: str) -> None:
    rng = random.Random(0)
    words = sorted({"".join(rng.choices(string.ascii_lowercase[:6], k=4)) for _ in range(900)})
    rng.shuffle(words)

    def line(word: str) -> str:
        return f"{word}>{word if task == 'copy' else word[::-1]}."

    validation_words, training_words = words[:60], words[60:]
    (tmp_path / "seen.jsonl").write_text("".join(f'{{"text": "{line(word)}"}}\n' for word in training_words))
    (tmp_path / "unseen.jsonl").write_text("".join(f'{{"text": "{line(word)}"}}\n' for word in validation_words))
    recipe = parse_recipe(
        {
            "task": {"kind": "language", "batch_size": 64, "sample_tokens": 0},
            "data": {
                "source": str(tmp_path / "seen.jsonl"),
                "validation": {"kind": "held_out", "source": str(tmp_path / "unseen.jsonl")},
                "tokenizer": {"kind": "characters", "eos": False, "pad": True},
                "rows": {"kind": "padded", "side": "right"},
            },
            "model": {"preset": "modern", "max_len": 10, "stack": {"d_model": 32, "n_layers": 2, "n_heads": 2}},
            "training": {
                "max_steps": 600,
                "precision": "fp32",
                "compile": "never",
                "accelerator": "cpu",
                "validate_every": 600,
                "save_every": 600,
            },
        },
        name=task,
    )
    trained_model = load_model(train(recipe, tmp_path / "run", quiet=True) / "last")
    prompts = [f"{word}>" for word in validation_words]
    answers = generate(
        trained_model.model, trained_model.tokenizer, prompts, Sampling(max_new_tokens=5, temperature=0.0)
    )
    assert [answer.prompt + answer.text for answer in answers] == [line(word) for word in validation_words]


@pytest.mark.parametrize("task", [pytest.param("copy", marks=pytest.mark.exhaustive), "reverse"])
def test_translation_is_learned_exactly(tmp_path: Path, task: str) -> None:
    """The run uses all features of translation: varying lengths, micro-batches, smoothing, an average, and BLEU."""
    rng = random.Random(0)
    letters = string.ascii_lowercase[:5]
    lines = sorted({" ".join(rng.choices(letters, k=rng.randint(3, 5))) for _ in range(2000)})
    rng.shuffle(lines)

    def pair(line: str) -> str:
        return f"{line}\t{line if task == 'copy' else line[::-1]}\n"

    (tmp_path / "seen.tsv").write_text("".join(pair(line) for line in lines[80:]))
    (tmp_path / "unseen.tsv").write_text("".join(pair(line) for line in lines[:80]))
    n_layers = 2 if task == "copy" else 1  # one layer sometimes copies a repeated letter once too few
    dropout = {"embedding": 0.0, "residual": 0.0}
    stack = {"d_model": 32, "n_layers": n_layers, "n_heads": 2, "d_ff": 64, "dropout": dropout}
    recipe = parse_recipe(
        {
            "task": {
                "kind": "translation",
                "batch_tokens": 768,
                "micro_batch_tokens": 384,
                "best_by": "bleu",
                "sample_sentences": 0,
            },
            "data": {
                "source": str(tmp_path / "seen.tsv"),
                "validation": {"kind": "held_out", "source": str(tmp_path / "unseen.tsv")},
                "tokenizer": {"kind": "words", "prefix_space": True},
            },
            "model": {"preset": "modern-translator", "max_len": 6, "encoder": stack, "decoder": stack},
            "training": {
                "max_steps": 320,
                "label_smoothing": 0.1,
                "ema": 0.98,
                "optimizer": {"kind": "muon", "lr": 0.02, "adam_lr": 0.01},
                "precision": "fp32",
                "compile": "never",
                "accelerator": "cpu",
                "validate_every": 160,
                "save_every": 320,
            },
        },
        name=task,
    )
    trained_model = load_model(train(recipe, tmp_path / "run", quiet=True) / "best")
    assert isinstance(trained_model.model, EncoderDecoder)
    answers = translate(trained_model.model, trained_model.tokenizer, lines[:80], Beam(size=1))
    assert [f"{line}\t{answer[0].text}\n" for line, answer in zip(lines, answers, strict=False)] == [
        pair(line) for line in lines[:80]
    ]
    assert trained_model.card.metrics["val/bleu"] == pytest.approx(100)


@pytest.mark.exhaustive
def test_animals_are_memorized(tmp_path: Path) -> None:
    changes = {
        "model": {"stack": {"d_model": 64, "n_layers": 2}},
        "training": {
            "max_epochs": 30,
            "optimizer": {"lr": 3e-3},
            "schedule": "cosine",
            "validate_every": 10_000,
        },
        "task": {"sample_tokens": 0},
    }
    recipe = load_recipe("animals", {**changes, "training": {**changes["training"], "accelerator": "cpu"}})
    trained_model = load_model(train(recipe, tmp_path / "run", quiet=True) / "last")
    fact = next(text for text in FACTS if text.startswith("elephants"))
    sampling = Sampling(max_new_tokens=len(fact) - len("elephants"), temperature=0.0)
    completion = generate(trained_model.model, trained_model.tokenizer, ["elephants"], sampling)[0]
    assert completion.prompt + completion.text == fact

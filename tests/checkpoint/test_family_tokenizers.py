"""Tokenizers of every supported family, saved by their own classes, have the ids of AutoTokenizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

from tercet.config import UserError
from tercet.tokens import Tokenizer
from tercet.tokens.foreign import load_tokenizers

TEXT = "The cat sat on the mat. Don't they say: naïve größe, 1234 567? \n\n  def f(x):\n    return x\n"
LINES = [
    TEXT,
    "The cat",
    " the  cat\n",
    "日本 🙂 in 2024",
    "",
    "it's <s> not </s> [SEP] an end",
    "\tTabs\r\nand lines  ",
]
ENDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def bytes_bpe(special: list[str]) -> dict[str, Any]:
    """Return vocabulary and merges of a small byte-level BPE."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library.train_from_iterator(
        [TEXT] * 3,
        trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return {name: json.loads(library.to_str())["model"][name] for name in ("vocab", "merges")}


def tuple_merges(model: dict[str, Any]) -> dict[str, Any]:
    return model | {"merges": [tuple(merge) for merge in model["merges"]]}


def qwen() -> Any:
    return transformers.Qwen2Tokenizer(
        **tuple_merges(bytes_bpe(ENDS)), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def roberta() -> Any:
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)  # as in the published tokenizers
    return transformers.RobertaTokenizer(**tuple_merges(bytes_bpe(ROBERTA)), mask_token=mask)


def xlm_roberta() -> Any:
    letters = sorted(set(TEXT.replace("\n", "").replace(" ", "▁")) | {"▁"})
    names = ["<s>", "<pad>", "</s>", "<unk>", "▁the", "▁cat", "▁sat", "at", *letters]
    return transformers.XLMRobertaTokenizer(
        vocab=[*((name, -float(n)) for n, name in enumerate(names)), ("<mask>", 0.0)]
    )


def t5() -> Any:
    letters = sorted(set(TEXT.replace("\n", "").replace(" ", "▁")) | {"▁"})
    names = ["<pad>", "</s>", "<unk>", "▁the", "▁cat", "▁sat", "at", *letters, "<extra_id_1>", "<extra_id_0>"]
    return transformers.T5Tokenizer(vocab=[(name, -float(n)) for n, name in enumerate(names)], extra_ids=2)


def distilbert() -> Any:
    letters = sorted(set(TEXT.lower()) - set(" \n"))
    names = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        "the",
        "cat",
    ]
    return transformers.DistilBertTokenizer(vocab={name: number for number, name in enumerate(names)})


def gemma() -> Any:
    letters = sorted(set(TEXT.replace("\n", "").replace(" ", "▁")) | {"▁"})
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "t"), ("▁", "c"), ("▁c", "at")]
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    names += [left + right for left, right in merges]
    return transformers.GemmaTokenizer(vocab={name: n for n, name in enumerate(names)}, merges=merges)


KINDS: dict[str, tuple[str, Callable[[], Any]]] = {
    "Qwen": ("qwen3", qwen),
    "Gemma": ("gemma", gemma),
    "RoBERTa": ("roberta", roberta),
    "XLM-RoBERTa": ("xlm-roberta", xlm_roberta),
    "DistilBERT": ("distilbert", distilbert),
    "T5": ("t5", t5),
}


def load_both(folder: Path, kind: str) -> tuple[Tokenizer, Any]:
    """Return our tokenizer and AutoTokenizer's for one folder."""
    model_type, build = KINDS[kind]
    build().save_pretrained(folder)
    config = {"model_type": model_type}
    (folder / "config.json").write_text(json.dumps(config))
    return load_tokenizers(folder, config)[0], transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_special_tokens_match_auto_tokenizer(kind: str, tmp_path: Path) -> None:
    ours, theirs = load_both(tmp_path, kind)
    for line in LINES:
        # Special tokens that a text spells out are text in our tokenizer.
        ids = theirs(line, split_special_tokens=True)["input_ids"]
        if kind == "T5":
            assert ours.frame(ours.encode(line), max_len=999) == ids, line
        elif theirs.mask_token_id is None or theirs.cls_token_id is None:  # a language model's tokenizer
            assert [*ours.opening, *ours.encode(line)] == ids, line
        else:
            assert [ours.bos_id, *ours.encode(line), ours.eos_id] == ids, line
    for role in ("eos", "pad"):
        name = "sep" if role == "eos" and theirs.eos_token_id is None else role
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{name}_token_id")


@pytest.mark.parametrize("kind", ["RoBERTa", "XLM-RoBERTa", "DistilBERT"])
def test_masks_match_auto_tokenizer(kind: str, tmp_path: Path) -> None:
    ours, theirs = load_both(tmp_path, kind)
    for line in ("The <mask> sat", "<mask> cat", "The cat<mask>.", "the <mask> <mask> mat"):
        ids = theirs(line.replace("<mask>", theirs.mask_token))["input_ids"]
        assert [ours.bos_id, *ours.encode_masked(line).tolist(), ours.eos_id] == ids, line


def two_files(folder: Path, kind: str, **settings: Any) -> Path:
    """Write only vocabulary and merges, as in older folders, and return the folder."""
    model = bytes_bpe(ROBERTA if kind == "roberta" else ENDS)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, model["merges"])))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_roberta_with_two_files_is_read(tmp_path: Path) -> None:
    ours, _ = load_tokenizers(two_files(tmp_path, "roberta"), {"model_type": "roberta"})
    theirs = roberta()
    for line in LINES:
        ids = theirs(line, split_special_tokens=True)["input_ids"]
        assert [ours.bos_id, *ours.encode(line), ours.eos_id] == ids
    masked = theirs("The <mask> sat")["input_ids"]
    assert [ours.bos_id, *ours.encode_masked("The <mask> sat").tolist(), ours.eos_id] == masked


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("opt", {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "add_bos_token": True}),
        ("opt", {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>"}),
        ("bart", {"tokenizer_class": "BartTokenizer"}),
    ],
)
def test_two_files_with_a_beginning_match_auto_tokenizer(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = two_files(tmp_path, "roberta", **settings)
    config = {"model_type": kind} | ({"forced_bos_token_id": 0} if kind == "bart" else {})
    (folder / "config.json").write_text(json.dumps(config))
    ours, _ = load_tokenizers(folder, config)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for line in LINES:
        end = [ours.eos_id] if kind == "bart" else []
        assert [*ours.opening, *ours.encode(line), *end] == theirs(line, split_special_tokens=True)["input_ids"], line
    assert len(ours.opening) == (kind == "bart" or "add_bos_token" in settings)


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "Qwen2Tokenizer"}])
def test_two_files_with_another_split_are_rejected(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer\.json, which is required for qwen2; save its"):
        load_tokenizers(two_files(tmp_path, "qwen2", **settings), {"model_type": "qwen2"})

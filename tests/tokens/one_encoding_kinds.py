"""Tokenizers of every kind that adds a space before texts or merges across spaces and line ends."""

import json
from collections.abc import Callable
from functools import cache

from tokenizers import Regex, decoders, models, normalizers, processors, trainers
from tokenizers import Tokenizer as Library
from tokenizers import pre_tokenizers as pre

from tercet.tokens import Tokenizer

LINES = "The cat sat on the mat.\nDon't  they say: 1234 567?\n\n  def f(x):\n    return x\nthe cat\nsat on\n"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
STRIPPED = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def _bytes_level(*, adds_space: bool, splits: bool) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre.ByteLevel(add_prefix_space=adds_space, use_regex=splits)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False, special_tokens=["<s>", "</s>"]
    )
    library.train_from_iterator([LINES[start : start + 9] for start in range(len(LINES))], trainer)
    return library


def _pieces(scheme: str, *, splits: bool = False) -> Library:
    """Return SentencePiece's kind; `scheme` is the Metaspace scheme, or "normalizer" for the legacy form."""
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=True))
    library.pre_tokenizer = pre.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *BYTES])
    library.train_from_iterator([LINES * 3], trainer)
    structure = json.loads(library.to_str())
    structure["added_tokens"] = structure["added_tokens"][:3]  # bytes are not added tokens
    library = Library.from_str(json.dumps(structure))
    if scheme == "normalizer":
        library.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        library.pre_tokenizer = pre.Metaspace(prepend_scheme=scheme, split=splits)
    library.decoder = PIECES if scheme == "never" else STRIPPED
    library.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return library


def _unigram(*, lines_are_spaces: bool) -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.Replace(Regex(r"\s+") if lines_are_spaces else "\t", " ")
    library.pre_tokenizer = pre.Metaspace(prepend_scheme="always")
    library.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", show_progress=False, special_tokens=["<unk>", "<s>", "</s>"]
    )
    library.train_from_iterator([LINES * 3], trainer)
    return library


MAKERS: dict[str, Callable[[], Library]] = {
    "GPT-2": lambda: _bytes_level(adds_space=False, splits=True),
    "RoBERTa with add_prefix_space": lambda: _bytes_level(adds_space=True, splits=True),
    "bytes that are not split": lambda: _bytes_level(adds_space=False, splits=False),
    "Llama 2": lambda: _pieces("first"),
    "Llama 2, legacy": lambda: _pieces("normalizer"),
    "Mistral": lambda: _pieces("always"),
    "split words": lambda: _pieces("always", splits=True),
    "Gemma": lambda: _pieces("never"),
    "T5": lambda: _unigram(lines_are_spaces=True),
    "unigram": lambda: _unigram(lines_are_spaces=False),
}


@cache
def foreign(kind: str) -> tuple[Tokenizer, Library]:
    """Return our tokenizer and the library's, both from the same file."""
    structure = MAKERS[kind]().to_str()
    library = Library.from_str(structure)
    library.encode_special_tokens = True
    return Tokenizer.from_json(structure), library

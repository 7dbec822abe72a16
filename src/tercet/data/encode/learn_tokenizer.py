"""Tokenizers that are learned from the data once, and kept in the cache."""

from collections.abc import Callable, Iterable, Iterator

from tercet.cache_dir import cache_dir
from tercet.config import to_plain
from tercet.data.cache import FORMAT, Snapshot, create_atomically, digest, is_complete
from tercet.tokens import Characters, PlainIds, Tokenizer, TokenizerSpec, Words
from tercet.tokens.trainers import WORD

TRAINING_BYTES = 256 << 20  # maximum bytes of text that a vocabulary is learned from


def learn_tokenizer(
    spec: TokenizerSpec, texts: Callable[[], Iterable[str]], content: str, snapshots: Iterable[Snapshot]
) -> Tokenizer:
    """Return the tokenizer that is learned from `texts`, from the cache if possible.

    Args:
        content: Hash of everything that the texts depend on.
        snapshots: Sources of the texts, which must not change during training.
    """
    if spec.kind in ("gpt2", "file"):
        return Tokenizer.train(spec, ())
    pattern = [WORD] if isinstance(spec, Words) else []
    folder = cache_dir() / "tokenizers" / digest(FORMAT, content, to_plain(spec), *pattern)[:32]
    if not is_complete(folder):
        max_bytes = None if isinstance(spec, Characters | PlainIds) else TRAINING_BYTES
        with create_atomically(folder, snapshots) as new:
            Tokenizer.train(spec, _take_bytes(max_bytes, texts())).save(new / "tokenizer.json")
    return Tokenizer.load(folder / "tokenizer.json")


def _take_bytes(max_bytes: int | None, texts: Iterable[str]) -> Iterator[str]:
    """Yield texts until they reach `max_bytes` bytes."""
    n_bytes = 0
    for text in texts:
        yield text
        n_bytes += len(text.encode())
        if max_bytes is not None and n_bytes >= max_bytes:
            return

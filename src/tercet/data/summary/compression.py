"""Bits per byte of a text under general compressors, a baseline of language models."""

import lzma
import zlib
from collections.abc import Iterable


def compression_bits(texts: Iterable[str]) -> dict[str, float]:
    """Return the bits per byte of `gzip -9` and `xz -9e` for the concatenated texts, which are read once.

    Raises:
        ValueError: If there is no text.
    """
    compressors = {
        "gzip -9": zlib.compressobj(9, wbits=31),
        "xz -9e": lzma.LZMACompressor(preset=9 | lzma.PRESET_EXTREME),
    }
    sizes = dict.fromkeys(compressors, 0)
    n_bytes = 0
    for text in texts:
        data = text.encode()
        n_bytes += len(data)
        for name, compressor in compressors.items():
            sizes[name] += len(compressor.compress(data))
    if not n_bytes:
        raise ValueError("no text to compress; pass a text that is not empty")
    return {name: 8 * (sizes[name] + len(compressor.flush())) / n_bytes for name, compressor in compressors.items()}

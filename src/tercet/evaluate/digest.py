"""SHA-256 of data that models are scored on, so that only scores on the same data are compared."""

import hashlib


def digest(*parts: str) -> str:
    """Return the SHA-256 of several texts, including the boundaries between them, as hex digits."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(f"{len(part)}:".encode() + part.encode(errors="surrogatepass"))
    return sha.hexdigest()

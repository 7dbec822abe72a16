"""Reading of untrusted files: only regular files, within the bounds of `limits.py`."""

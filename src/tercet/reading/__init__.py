"""The one door for bytes that someone else may have written: regular files alone, within the bounds of `limits.py`."""

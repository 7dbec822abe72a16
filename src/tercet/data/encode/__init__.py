"""Encoding of texts as token ids, and tokenizers that are learned from the data."""

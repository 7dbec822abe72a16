"""Tokenized corpora: built from a data spec once, and kept in the cache."""

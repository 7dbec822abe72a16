"""Readers of files that someone else may have written: text, tables, sequences and ids, as streams."""

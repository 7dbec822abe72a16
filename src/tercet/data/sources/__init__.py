"""Readers of third-party files as streams: text, tables, sequences and ids."""

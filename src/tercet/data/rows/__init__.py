"""Rows and buckets of token ids, and their order in batches."""

"""Summaries of data before training."""

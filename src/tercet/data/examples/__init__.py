"""Typed examples from files: sentence pairs, labeled texts and conversations."""

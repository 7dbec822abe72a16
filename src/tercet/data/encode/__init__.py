"""Texts to ids, in memory."""

"""Optimizers and learning-rate schedules, their settings, and the selection of trainable weights."""

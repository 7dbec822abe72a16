"""Optimizers and schedules, as settings and as built, and which weights learn."""

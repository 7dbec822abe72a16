"""Faults of data, their effect on training, and a repaired copy."""

"""Training and comparison of variants of recipes on the same data."""

"""The stages of a run, from a recipe to a run folder: open, lock, start, train, finish."""

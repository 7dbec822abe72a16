"""Error analysis: the worst predictions of a model on held-out or other data, with their texts.

The losses and predictions are those that `Evaluation.score` sums, so the listed errors explain the scores.
"""

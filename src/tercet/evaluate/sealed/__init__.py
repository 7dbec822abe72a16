"""Scores on a sealed test part, by a limited number of calls that are all recorded."""

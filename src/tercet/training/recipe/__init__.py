"""Recipes: their settings, the YAML files that they are read from, and recipes chosen for data."""

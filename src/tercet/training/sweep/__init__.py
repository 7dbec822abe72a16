"""Variants of a recipe: trained on the same data, and compared."""

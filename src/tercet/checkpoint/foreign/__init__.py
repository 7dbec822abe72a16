"""Import and export of models in the formats of other programs."""

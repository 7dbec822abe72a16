"""A run on disk: its folder, its checkpoints, and what of it may change."""

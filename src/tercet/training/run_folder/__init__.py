"""A run on disk: its folder, its checkpoints, and the settings that may change."""

"""Named datasets, and detection of a file's format."""

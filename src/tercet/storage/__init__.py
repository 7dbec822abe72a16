"""Files that are whole, known by their hash, and owned by one process at a time."""

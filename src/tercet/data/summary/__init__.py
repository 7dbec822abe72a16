"""What is in a file, before anything is trained on it."""

"""The exercise sheets. They are copied for students, never imported, and contain no answers."""

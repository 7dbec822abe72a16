"""From a name or a path to a source: named datasets, and the settings that suit a file."""

"""Other libraries' models with our weights, a file each. They are imported where they are built: none is needed."""

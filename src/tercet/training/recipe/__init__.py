"""What a recipe says: its settings, the files it is read from, and recipes for data."""

"""Serve trained models: `engine` generates many texts at once, and `http` answers requests of clients."""

"""Serving of trained models: the engine generates many texts at once, the HTTP server handles clients."""

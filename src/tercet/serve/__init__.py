"""Trained models as a service: the engine, which writes many texts at once, and the HTTP wing, which knows clients."""

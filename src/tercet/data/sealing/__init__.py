"""Sealed test parts: data that is divided once, and a test part on which a limited number of calls score models."""

"""Folders of tokens in shards: written by several processes, read here or from a URL."""

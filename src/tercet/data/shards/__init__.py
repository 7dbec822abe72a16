"""Folders of tokens in shards, written by several processes and read locally or from a URL."""

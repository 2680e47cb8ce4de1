"""Weights that role processes share, and the KV capacity on which they agree."""

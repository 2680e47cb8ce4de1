"""Shared metadata of a cluster in Redis (paper, 4.1.3)."""

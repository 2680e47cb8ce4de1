"""Directories for the import path: packages that stand in for builds which do not exist on the CPU."""

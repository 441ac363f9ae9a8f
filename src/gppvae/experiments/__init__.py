"""Experiments: each module runs one and returns its results."""

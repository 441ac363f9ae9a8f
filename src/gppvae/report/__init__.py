"""Figures and a self-contained HTML report of a fitted model."""

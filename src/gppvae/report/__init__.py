"""Turns results into figures and one self-contained HTML page."""

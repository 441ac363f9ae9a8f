"""Input: tables of auxiliary columns, arrays of samples, and a small data set of digits."""

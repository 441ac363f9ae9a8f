"""Input: tables of auxiliary columns, arrays of samples, and digits to try things on."""

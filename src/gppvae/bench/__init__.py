"""Benchmarks of the default settings on data they were not tuned to; loaded by `gppvae bench` alone."""

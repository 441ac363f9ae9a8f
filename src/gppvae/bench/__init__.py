"""The package measured on public data; loaded by `gppvae bench` alone."""

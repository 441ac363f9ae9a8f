"""The latent Gaussian process in weight space: statistics, the low-rank algebra, the posterior."""

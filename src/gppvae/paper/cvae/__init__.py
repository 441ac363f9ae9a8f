"""The conditional VAE (Sohn et al. 2015), told the view: one of the paper's baselines."""

from gppvae.paper.cvae.estimator import CVAE

__all__ = ["CVAE"]

"""The whole model: an autoencoder whose latents have a prior over table columns."""

from __future__ import annotations

from torch import nn

from gppvae.models.vae import Autoencoder
from gppvae.prior.latent_prior import LatentPrior


class GPPriorVAE(nn.Module):
    """z_n = f(row_n) + eta_n,   f ~ GP(0, k),   y_n ~ p(y | decoder(z_n)).

    A plain VAE has one group of latents without a kernel.

    Args:
        autoencoder: networks and likelihood.  prior: of the latents.
    """

    def __init__(self, autoencoder: Autoencoder, prior: LatentPrior) -> None:
        super().__init__()
        self.autoencoder, self.prior = autoencoder, prior
        prior.size_column = autoencoder.likelihood.size_column

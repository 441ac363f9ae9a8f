"""The whole model: an autoencoder whose latents have a Gaussian process prior over table columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gppvae.data.table import Rows
from gppvae.kernels.base import Kernel
from gppvae.kernels.features import Features
from gppvae.models.vae import Autoencoder
from gppvae.prior.kronecker import complete_design_nll, is_cheaper, is_complete
from gppvae.prior.lowrank import gp_nll
from gppvae.prior.statistics import Statistics


class GPPriorVAE(nn.Module):
    """z_n = B'v(row_n) + eta_n, eta_n ~ N(0, alpha I); y_n = g(z_n) + noise.

    Args:
        autoencoder: networks and likelihood.
        kernel: bound to the training table.
        alpha: latent noise variance to start from.
        latent_dim: L.
    """

    def __init__(self, autoencoder: Autoencoder, kernel: Kernel, alpha: float, latent_dim: int) -> None:
        super().__init__()
        self.autoencoder, self.kernel, self.latent_dim = autoencoder, kernel, latent_dim
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha), dtype=torch.float64))
        self.split: str | None = None  # coded column kept apart in the Gram matrix
        self.complete_design = False  # whether the GP term goes through eigenvalues of two small Gram matrices

    def arrange(self, rows: Rows, rows_at_once: int, sums_between: int | None = None) -> None:
        """Choose the cheapest algebra for these training rows.

        Args:
            rows: all of them.  rows_at_once: how many are summed at a time.
            sums_between: how many such sums later q(B) is conditioned again; None when once per epoch.
        """
        kernel = self.kernel
        self.split = kernel.best_split(rows, rows_at_once, sums_between)
        shape = kernel.features(rows[:1], self.split)
        one_block = len(shape.tables) == 1
        cheaper = one_block and is_cheaper(shape.n_groups, shape.sizes[0], shape.tables[0].shape[1], self.latent_dim)
        self.complete_design = cheaper and is_complete(kernel, rows, self.split)

    def gp_nll(self, totals: Statistics, rows: Rows) -> Tensor:
        """The GP term at the statistics of all training rows; `rows` may be any few of them."""
        tables, sizes = self.tables(rows)
        return complete_design_nll(totals, tables[0]) if self.complete_design else gp_nll(totals, tables, sizes)

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.exp()

    def features(self, rows: Rows) -> Features:
        return self.kernel.features(rows, self.split)

    def tables(self, rows: Rows) -> tuple[list[Tensor], list[int]]:
        """View tables and block sizes that all features share; no tables where nothing is split off."""
        if self.split is None:
            return [], [self.kernel.rank]
        return self.kernel.tables(rows, self.split), self.kernel.widths(self.split)

    def noise(self, rows: Rows) -> Tensor:
        """Latent noise variance d of rows, () or (N,): alpha, plus the prior variance that features miss."""
        if self.kernel.carries_training_variance:
            return self.alpha
        return self.alpha + self.kernel.residual(rows)

    def to_gp(self, x: Tensor) -> Tensor:
        """Network output as the GP wants it: float64, on the GP's device."""
        return x.to(self.log_alpha.device).to(torch.float64)

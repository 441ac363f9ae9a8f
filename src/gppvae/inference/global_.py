"""Global inference: q(B) is learned directly, no encoder in the training path."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from gppvae.data.batches import Epoch
from gppvae.inference.base import Inference, LossTerms, draw_latents, recon_nll
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import DiagonalCovariance, WeightPosterior


class Global(Inference):
    """q(B) = N(m, diag std^2) with m and std learned by mini-batches beside decoder, kernel and noise.

    The bound is sum_n E log p(y_n | z_n) - KL(q(B) || N(0, I)), z_n = B'v_n + eta_n: what the decoder is
    trained on is what it meets in predictions. Source: docs/math.md, "Train path = predict path".

    Args:
        model: the model.
        std: of the weights at the start, relative to their prior.
    Cost: below one plain VAE epoch (no encoder pass) plus O(N H L).
    """

    name = "global"
    conditions = True

    def __init__(self, model: GPPriorVAE, std: float = 0.01) -> None:
        super().__init__()
        self._model = (model,)
        H, L = model.kernel.rank, model.latent_dim
        self.mean = nn.Parameter(torch.randn(H, L, dtype=torch.float64) / H**0.25)
        self.log_std = nn.Parameter(torch.full((H, L), std, dtype=torch.float64).log())

    def posterior(self) -> DiagonalCovariance:
        return DiagonalCovariance(self.mean, self.log_std.exp())

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        model = self._model[0]
        for batch in epoch:
            weights, n = self.posterior(), batch.total
            V = model.features(batch.rows).dense()
            var = weights.var_at(V) + model.noise(batch.rows).reshape(-1, 1)
            z = draw_latents(weights.mean_at(V), var, batch.noise(model.latent_dim))
            recon = recon_nll(model.autoencoder, batch, z)
            kl, penalty = weights.kl(), model.kernel.neg_log_prior()
            (recon / n + ((kl + penalty) * (batch.share / epoch.n_rows)).to(recon.device, recon.dtype)).backward()
            yield LossTerms.without_encoder(recon, kl, penalty, len(batch) / epoch.n_rows, n)

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> WeightPosterior:
        return DiagonalCovariance(self.mean.detach().clone(), self.log_std.exp().detach().clone())


class Distill(Inference):
    """Fit the encoder to the latents that a finished q(B) predicts for the training rows, all else fixed.

    Loss: -log N(E z_n; mu(y_n), s2(y_n)), so that the variance says how well the encoder knows z.
    """

    name = "distill"
    follows = True

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__()
        self._model = (model,)
        self._weights: WeightPosterior | None = None

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        self._weights = weights

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        model, weights = self._model[0], self._weights
        assert weights is not None, "distillation follows a phase that learned q(B)"
        for batch in epoch:
            with torch.no_grad():
                target = weights.mean_at(model.features(batch.rows).dense())
            mean, var = model.autoencoder.encode(batch.y)
            error = mean - target.to(mean.dtype).to(mean.device)
            nll = 0.5 * (error.square() / var + var.log() + math.log(2.0 * math.pi)).sum()
            (nll / batch.total).backward()
            zero = torch.zeros_like(nll.detach())
            yield LossTerms(zero, nll.detach(), zero, zero, n=batch.total)

    def weights(self, epoch: Epoch) -> WeightPosterior:
        assert self._weights is not None
        return self._weights

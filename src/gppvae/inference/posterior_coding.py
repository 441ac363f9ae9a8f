"""GP posterior coding: encoder outputs are pseudo-observations, the decoder sees the GP's posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import (
    GPArguments,
    LossTerms,
    back_propagate,
    draw_latents,
    known_of_rows,
    recon_nll,
    sum_over,
    sum_statistics,
)
from gppvae.inference.running import RunningInference
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, WeightPosterior, condition
from gppvae.prior.pseudo import (
    Conditioned,
    condition_on_pseudo,
    posterior_at,
    pseudo_sums,
    pull_own,
    split_pseudo_sums,
)
from gppvae.prior.statistics import Statistics

FORGOTTEN = 0.5  # weight of what rows asked for, each time that q(B) is conditioned again


class PosteriorCoding(RunningInference[Conditioned]):
    """q(B) = posterior given pseudo-observations mu_n of f(row_n) with noise d_n from the encoder.

    The noise of a sample is the geometric mean of the encoder's variances, so that all latent dimensions
    share one covariance. Training and prediction then use the same path, row -> q(f) -> decoder; the bound is
    E log p(y | z) - KL(q(B) || N(0, I)), z = f + eta. A row acts on the f of every other: what these want of it is
    estimated from the rows seen before q(B) was conditioned, the last of them first, not from the few that share
    its batch. Source: Pearce 2019; Jazbec et al. 2021.

    Cost: one plain VAE epoch plus O(N H (H + L)), and a few H^3; one more such epoch before the first.
    """

    name = "posterior"

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.asked_outer: Tensor
        self.asked_sums: Tensor
        self.register_buffer("asked_outer", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("asked_sums", torch.zeros(0, dtype=torch.float64))

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        if not self.running.empty:  # a resumed run has them from the checkpoint
            return
        at_start = self.weights(epoch)

        def part(batch: Batch) -> Statistics:
            features, mean, _, noise = self._pseudo_observations(batch)
            f, s, _ = posterior_at(at_start, features.dense())
            moments = f.requires_grad_(), (s + self._latent_noise(batch)).requires_grad_()
            with torch.enable_grad():
                recon = recon_nll(self.model.autoencoder, batch, draw_latents(*moments, batch))
            return pseudo_sums(features, mean, noise, *torch.autograd.grad(recon, moments))

        observed, asked = split_pseudo_sums(sum_over(epoch, part))
        self.running.set(observed)
        self.asked_outer, self.asked_sums = asked.tensors()

    def take_over(self, recent: Statistics) -> None:
        observed, asked = split_pseudo_sums(recent)
        super().take_over(observed)
        n_rows = self.running.n_rows
        if self.asked_sums[3] < n_rows and asked.sums[3] < n_rows:  # all rows at once stand for themselves alone
            asked.add_(Statistics(self.asked_outer, self.asked_sums, asked.n_latents).scaled(FORGOTTEN))
        self.asked_outer, self.asked_sums = asked.tensors()

    def condition(self, totals: Statistics, tables: list[Tensor], sizes: list[int]) -> Conditioned:
        asked = Statistics(self.asked_outer, self.asked_sums, totals.n_latents)
        return condition_on_pseudo(totals, asked, tables, sizes)

    def batch_loss(self, batch: Batch, given: Conditioned, epoch: Epoch) -> tuple[LossTerms, Statistics]:
        """First the decoder's part, which tells the gradients at f; from them the encoder's and the kernel's."""
        model, n, n_rows, weights = self.model, batch.total, epoch.n_rows, given.weights
        arguments = self._pseudo_observations(batch)
        features, mean, _, noise = arguments
        V, eta = features.dense(), self._latent_noise(batch)
        with torch.no_grad():
            f, s, P = posterior_at(weights, V)
            var = s + eta
        recon = recon_nll(model.autoencoder, batch, draw_latents(f.requires_grad_(), var.requires_grad_(), batch))
        (recon / n).backward()
        g, h = f.grad, var.grad
        assert g is not None and h is not None
        penalty = model.kernel.neg_log_prior() * batch.share
        with torch.no_grad():
            part = pseudo_sums(features, mean, noise, g * n, h * n)
            own = zip((V, mean, noise), pull_own(given, P, f, s, mean, noise, g, h), strict=True)
            by_tables = [by * (batch.share / n_rows) for by in given.by_tables]
        through_others = known_of_rows(given.pull.scaled(1.0 / n), arguments)
        through_tables = zip(features.tables, by_tables, strict=True)
        by_eta = h if len(eta) == len(h) else h.sum(0, keepdim=True)
        back_propagate((penalty / n_rows, None), (eta, by_eta), *own, *through_others, *through_tables)
        return LossTerms.without_encoder(recon, weights.kl() * batch.share, penalty, n, n_rows), part

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> SharedCovariance:
        return condition(assemble(sum_statistics(epoch, self._pseudo_observations), *self.model.tables(epoch.rows)))

    def _pseudo_observations(self, batch: Batch) -> GPArguments:
        mean, var = self.model.autoencoder.encode(batch.y)
        noise = self.model.to_gp(var).log().mean(1).exp() + self._residual(batch)
        return self.model.features(batch.rows), self.model.to_gp(mean), None, noise

    def _residual(self, batch: Batch) -> Tensor | float:
        kernel = self.model.kernel
        return 0.0 if kernel.carries_training_variance else kernel.residual(batch.rows)

    def _latent_noise(self, batch: Batch) -> Tensor:
        """Variance of eta, (n, 1) or (1, 1)."""
        return self.model.noise(batch.rows).reshape(-1, 1)

"""Posterior of the latents of single samples by Gauss-Newton steps through the decoder: q(z | y, row)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.batches import Batch
from gppvae.data.table import Rows
from gppvae.models.curvature import EXACT_LATENTS, Expansion, expand
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import vector_covariance
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.linalg import matvec, vecmat
from gppvae.prior.posterior import LatentPosterior

STEPS = 6
PAIRS = 4  # of antithetic draws
LEAST_VAR = 1e-10
DAMPING_STEP = 5.0  # factor on the damping after a step: up where it failed, down where it helped
DAMPINGS = (1e-7, 1e7)
START_DAMPING = 1e-3
CONVERGED = 1e-4  # predicted decrease of the loss, in nats, below which the search ends
ROUNDING = 1e-6  # the same relative to the loss, by the precision of float32 networks


@dataclass(frozen=True)
class Normal:
    """N(mean, cov) per row: (B, L) and (B, L, L)."""

    mean: Tensor
    cov: Tensor

    @property
    def precision(self) -> Tensor:
        return torch.cholesky_inverse(torch.linalg.cholesky(self.cov))

    def kl(self, other: Normal) -> Tensor:
        """KL(self || other) per row, (B,).

        1/2 [tr(S_2^-1 S_1) + (m_1 - m_2)'S_2^-1 (m_1 - m_2) - L + log |S_2| - log |S_1|]
        """
        root, own = torch.linalg.cholesky(other.cov), torch.linalg.cholesky(self.cov)
        shift = torch.linalg.solve_triangular(root, (self.mean - other.mean).unsqueeze(2), upper=False)  # (B, L, 1)
        spread = torch.linalg.solve_triangular(root, own, upper=False)  # |L_2^-1 L_1|^2 = tr S_2^-1 S_1, (B, L, L)
        quad = shift.square().sum((1, 2)) + spread.square().sum((1, 2)) - self.mean.shape[1]
        return 0.5 * quad + (root.diagonal(dim1=1, dim2=2).log() - own.diagonal(dim1=1, dim2=2).log()).sum(1)


@dataclass(frozen=True)
class Quadratic:
    """A loss around points, problem by problem: value (P,), gradient (P, J), positive definite curvature (P, J, J)."""

    loss: Tensor
    gradient: Tensor
    curvature: Tensor

    def where(self, chosen: Tensor, other: Quadratic) -> Quadratic:
        """These problems where `chosen` (P,) is True, those of `other` elsewhere."""
        return Quadratic(
            torch.where(chosen, self.loss, other.loss),
            torch.where(chosen[:, None], self.gradient, other.gradient),
            torch.where(chosen[:, None, None], self.curvature, other.curvature),
        )


@torch.no_grad()
def levenberg_marquardt(
    expand: Callable[[Tensor], Quadratic], x: Tensor, steps: int, until_converged: bool = True
) -> tuple[Tensor, Quadratic]:
    """Minimise P independent losses from x (P, J) by damped Gauss-Newton steps.

        step = (H + damping diag H)^-1 g
    A step that does not lower the true loss of a problem is rejected and its damping raised.

    Args:
        expand: the losses around points.  steps: at most.
        until_converged: end when the quadratic expansion predicts no noticeable decrease for any problem.
    """
    at = expand(x)
    damping = torch.full((len(x), 1, 1), START_DAMPING, dtype=x.dtype, device=x.device)
    for _ in range(steps):
        scale = torch.diag_embed(at.curvature.diagonal(dim1=1, dim2=2))  # (P, J, J)
        step = torch.linalg.solve(at.curvature + damping * scale, at.gradient.unsqueeze(2)).squeeze(2)  # (P, J)
        promised = 0.5 * (step * at.gradient).sum(1)  # predicted decrease, (P,)
        if until_converged and not (promised > CONVERGED + ROUNDING * at.loss.abs()).any():
            break
        tried_x = x - step
        tried = expand(tried_x)
        better = tried.loss < at.loss  # False for NaN
        x = torch.where(better[:, None], tried_x, x)
        at = tried.where(better, at)
        damping = torch.where(better[:, None, None], damping / DAMPING_STEP, damping * DAMPING_STEP).clamp(*DAMPINGS)
    return x, at


@torch.no_grad()
def covariance_at(prior: LatentPrior, weights: LatentPosterior, rows: Rows) -> Tensor:
    """Covariance of z at each row, from q(B) and the latent noise, (N, L, L)."""
    cov = torch.diag_embed(prior.noise_at(rows).clamp_min(LEAST_VAR))
    for group, own, q in zip(prior.groups, prior.latent_slices, weights.parts, strict=True):
        cov[:, own, own] += q.covariance_at(group.features(rows))
        new = group.new_ids(rows)
        if new is not None:
            cov[:, own, own] += torch.diag_embed(new.variance().expand(-1, group.n_latents))
    return cov


@torch.no_grad()
def normal_at(model: GPPriorVAE, weights: LatentPosterior, rows: Rows) -> Normal:
    """p(z | row, training data), from q(B), the vectors of objects and the latent noise."""
    prior = model.prior
    mean = prior.functions_at(rows, weights.means)
    return Normal(mean, covariance_at(prior, weights, rows) + vector_covariance(prior, weights, rows))


def typical(prior: LatentPrior, n: int) -> Normal:
    """Prior of the latents of n samples whose rows are unknown: mean and covariance over the training rows."""
    return Normal(*(part.expand(n, *part.shape) for part in (prior.typical_mean, prior.typical_cov)))


class RowFit:
    """Laplace approximation of p(z | y, row) for the samples of a batch: the mode of p(y | z) p(z), and the curvature.

    Args:
        model: fitted.  batch: the samples.  before: p(z) of each row.
    Cost: per step about min(L, 16) passes of the decoder.
    """

    def __init__(self, model: GPPriorVAE, batch: Batch, before: Normal) -> None:
        self.autoencoder, self.batch, self.before = model.autoencoder.with_sizes_of(batch), batch, before
        self.precision = before.precision
        self.to_gp = model.prior.to_gp
        encoded = self.autoencoder.encode(batch.y, batch.mask)
        self.encoded = Normal(self.to_gp(encoded[0]), torch.diag_embed(self.to_gp(encoded[1])))

    def expand(self, z: Tensor) -> Expansion:
        """-log p(y | z) around z; with the same random probes in every call."""
        likelihood = self.autoencoder.likelihood.values
        found = expand(self.autoencoder, likelihood, self.batch, z)
        return Expansion(*map(self.to_gp, (found.nll, found.gradient, found.curvature)))

    def quadratic(self, z: Tensor) -> Quadratic:
        """-log p(y, z) around z."""
        found, pull = self.expand(z), vecmat(z - self.before.mean, self.precision)  # gradient of -log p(z), (B, L)
        loss = found.nll + 0.5 * (pull * (z - self.before.mean)).sum(1)
        return Quadratic(loss, found.gradient + pull, found.curvature + self.precision)

    def run(self, steps: int = STEPS) -> tuple[Tensor, Quadratic]:
        """The mode (B, L), from the better of encoder mean and prior mean, and the expansion there."""
        starts = self.encoded.mean, self.before.mean
        nearer = self._loss(starts[0]) < self._loss(starts[1])
        return levenberg_marquardt(self.quadratic, torch.where(nearer[:, None], *starts), steps)

    def _loss(self, z: Tensor) -> Tensor:
        """-log p(y, z) up to a constant, (B,)."""
        shift = z - self.before.mean
        return self.nll(z) + 0.5 * (vecmat(shift, self.precision) * shift).sum(1)

    def nll(self, z: Tensor) -> Tensor:
        """-log p(y | z) of the values alone, (B,)."""
        likelihood = self.autoencoder.likelihood.values
        return self.to_gp(likelihood.nll(self.batch.y, self.autoencoder.decode(z), self.batch.mask))

    def best(self, steps: int = STEPS) -> Tensor:
        """The latents of highest likelihood p(y | z): the mode, the encoder mean or the prior mean, (B, L)."""
        z = self.run(steps)[0]
        for other in (self.encoded.mean, self.before.mean):
            z = torch.where((self.nll(z) <= self.nll(other))[:, None], z, other)
        return z

    def posterior(self, steps: int = STEPS) -> Normal:
        """q(z | y, row) = N(mode, curvature^-1); diagonal for many latents, whose curvature is a random estimate."""
        z, at = self.run(steps)
        if z.shape[1] > EXACT_LATENTS:
            return Normal(z, torch.diag_embed(at.curvature.diagonal(dim1=1, dim2=2).reciprocal()))
        return Normal(z, torch.cholesky_inverse(torch.linalg.cholesky(at.curvature)))

    def bound(self, q: Normal, seed: int, narrow: bool = False) -> tuple[Tensor, Tensor]:
        """E_q log p(y | z) - KL(q || p(z)) per row by pairs of antithetic draws, and its standard error, (B,) each.

        Args:
            narrow: whether the quadratic expansion holds within q. Then, for few latents, it is a control variate: only
                its error is estimated from draws, which is zero for a linear decoder.
        """
        generator, L = torch.Generator().manual_seed(seed), q.mean.shape[1]
        root, pairs = torch.linalg.cholesky(q.cov), []
        around = self.expand(q.mean).curvature if narrow and L <= EXACT_LATENTS else torch.zeros_like(q.cov)
        for _ in range(PAIRS):
            eps = torch.randn((self.batch.total, L), generator=generator, dtype=q.mean.dtype)
            eps = eps[self.batch.start : self.batch.start + len(self.batch)].to(q.mean)
            shift = matvec(root, eps)  # (B, L)
            nll = 0.5 * (self._full_nll(q.mean + shift) + self._full_nll(q.mean - shift))  # antithetic: no linear term
            pairs.append(nll - 0.5 * (vecmat(shift, around) * shift).sum(1))
        drawn = torch.stack(pairs)  # (PAIRS, B)
        expected = drawn.mean(0) + 0.5 * (around * q.cov).sum((1, 2))  # + 1/2 tr(curvature Cov), the variate's mean
        return -expected - q.kl(self.before), drawn.std(0) / PAIRS**0.5

    def _full_nll(self, z: Tensor) -> Tensor:
        """-log p(y | z) with every term of the likelihood, (B,)."""
        autoencoder = self.autoencoder
        return self.to_gp(autoencoder.likelihood.nll(self.batch.y, autoencoder.decode(z), self.batch.mask))

"""Objects that were not in the training set: their vectors from a few samples, with uncertainty."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.kernels import Learned
from gppvae.likelihoods import Likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import latents_by_vector
from gppvae.prior.posterior import LatentPosterior

LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class VectorPrior:
    """N(mean, precision^-1) over the vectors of one object, J entries."""

    mean: Tensor
    precision: Tensor


def vector_prior(leaves: list[Learned]) -> VectorPrior:
    """Gaussian fitted to the trained vectors, its covariance shrunk towards its own average variance.

    The vectors of the trained objects are a better prior for a new one than the N(0, I) of training.
    """
    trained = len(leaves[0].levels) - leaves[0].n_added
    X = torch.cat([leaf.x.detach()[:trained] for leaf in leaves], dim=1)
    P, J = X.shape
    centred = X - X.mean(0)
    eye = torch.eye(J, dtype=X.dtype, device=X.device)
    covariance = centred.T @ centred / max(P - 1, 1)
    target = covariance.diagonal().mean().clamp_min(1e-6) * eye
    share = J / (P + J)
    root = torch.linalg.cholesky((1.0 - share) * covariance + share * target)
    return VectorPrior(X.mean(0), torch.cholesky_solve(eye, root))


class ObjectFit:
    """Vectors of new objects as the maximum of their posterior, and its curvature there.

    Start: closed form, since E z is linear in x and the encoder says what z is. Then damped Gauss-Newton
    steps (Levenberg-Marquardt) on -log p(y | decoder(z(x))) - log p(x), all objects at once; an object whose
    step does not help takes a shorter one. Source: docs/math.md, "Objects that were not in the training set".

    Args:
        model, weights: fitted.  leaves: learned kernels of the column.
        epoch: the samples with coded rows.  owner: (N,) which new object each row shows.
        n_objects: P_new.  likelihood: of the samples, with measured noise.
    Cost: per step J forward-mode passes of the decoder over the samples.
    """

    def __init__(
        self,
        model: GPPriorVAE,
        weights: LatentPosterior,
        leaves: list[Learned],
        epoch: Epoch,
        owner: Tensor,
        n_objects: int,
        likelihood: Likelihood,
    ) -> None:
        self.model, self.epoch, self.owner, self.n_objects = model, epoch, owner, n_objects
        self.likelihood, self.of_vectors = likelihood, vector_prior(leaves)
        self.A, self.offset = latents_by_vector(model.prior, weights, epoch.rows, leaves)
        self.device = self.A.device

    def run(self, steps: int) -> tuple[Tensor, Tensor]:
        """Vectors (P_new, J) and covariance roots (P_new, J, J)."""
        x = self._closed_form()
        damping = torch.full((self.n_objects, 1, 1), 1e-3, dtype=x.dtype, device=self.device)
        loss, curvature, gradient = self._expand(x)
        for _ in range(steps):
            diagonal = torch.diag_embed(curvature.diagonal(dim1=1, dim2=2))
            step = torch.linalg.solve(curvature + damping * diagonal, gradient.unsqueeze(2)).squeeze(2)
            tried = self._expand(x - step)
            better = tried[0] < loss
            x = torch.where(better[:, None], x - step, x)
            loss = torch.where(better, tried[0], loss)
            curvature = torch.where(better[:, None, None], tried[1], curvature)
            gradient = torch.where(better[:, None], tried[2], gradient)
            damping = torch.where(better[:, None, None], damping / 5.0, damping * 5.0).clamp(1e-7, 1e7)
        root = torch.linalg.cholesky(curvature)
        eye = torch.eye(x.shape[1], dtype=x.dtype, device=self.device)
        return x, torch.linalg.solve_triangular(root.transpose(1, 2), eye.expand_as(root), upper=True)

    def _closed_form(self) -> Tensor:
        """Posterior mean of x when the encoder's (mean, var) are observations of z = A'x + o + eta."""
        J, prior = self.of_vectors.mean.shape[0], self.model.prior
        precision = self.of_vectors.precision.expand(self.n_objects, J, J).clone()
        right = (self.of_vectors.precision @ self.of_vectors.mean).expand(self.n_objects, J).clone()
        with torch.no_grad():
            for batch in self.epoch:
                mean, var = map(prior.to_gp, self.model.autoencoder.encode(batch.y, batch.mask))
                index = batch.index.to(self.device)
                A, owner = self.A[index], self.owner[index]
                c = 1.0 / (var + prior.noise_at(batch.rows))  # (B, L)
                weighted = A * c.unsqueeze(1)
                precision.index_add_(0, owner, weighted @ A.transpose(1, 2))
                error = mean - self.offset[index]
                right.index_add_(0, owner, (weighted @ error.unsqueeze(2)).squeeze(2))
        return torch.linalg.solve(precision, right.unsqueeze(2)).squeeze(2)

    @torch.no_grad()
    def _expand(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss (P,), Gauss-Newton curvature (P, J, J) and gradient (P, J) of -log posterior at x."""
        shift = x - self.of_vectors.mean
        curvature = self.of_vectors.precision.expand(len(x), -1, -1).clone()
        gradient = shift @ self.of_vectors.precision
        loss = 0.5 * (gradient * shift).sum(1)
        for batch, nll, jacobian, residual in self._decoded(x):
            owner = self.owner[batch.index.to(self.device)]
            loss.index_add_(0, owner, nll)
            curvature.index_add_(0, owner, jacobian @ jacobian.transpose(1, 2))
            gradient.index_add_(0, owner, -(jacobian @ residual.unsqueeze(2)).squeeze(2))
        return loss, curvature, gradient

    def _decoded(self, x: Tensor) -> Iterator[tuple[Batch, Tensor, Tensor, Tensor]]:
        """Per batch: nll (B,), d mean / d x (B, J, K) and residuals (B, K), both in units of the noise."""
        like = next(self.model.autoencoder.decoder.parameters(), self.A)
        for batch in self.epoch:
            index = batch.index.to(self.device)
            A = self.A[index]
            z = ((x[self.owner[index]].unsqueeze(1) @ A).squeeze(1) + self.offset[index]).to(like)
            tangents = A.to(like)  # (B, J, L)
            mean_at = functools.partial(self._mean, self.model.autoencoder.sizes(batch))
            slopes = []
            for entry in range(A.shape[1]):
                slope = torch.func.jvp(mean_at, (z,), (tangents[:, entry].contiguous(),))[1]
                slopes.append(slope.flatten(1))
            raw = self.model.autoencoder.decode(z, self.model.autoencoder.sizes(batch))
            # A probability of exactly 0 or 1 has no variance; its slope is zero too, and must not become 0 / 0.
            std = self.likelihood.variance(raw).clamp_min(LEAST_VARIANCE).sqrt()
            residual = (batch.y - self.likelihood.mean(raw)) / std
            jacobian = torch.stack(slopes, dim=1) / std.flatten(1).unsqueeze(1)
            if batch.mask is not None:
                residual, jacobian = residual * batch.mask, jacobian * batch.mask.flatten(1).unsqueeze(1)
            nll = self.likelihood.nll(batch.y, raw, batch.mask)
            gp = self.model.prior.to_gp
            yield batch, gp(nll), gp(jacobian), gp(residual.flatten(1))

    def _mean(self, sizes: Tensor | None, z: Tensor) -> Tensor:
        return self.likelihood.mean(self.model.autoencoder.decode(z, sizes))

"""Vectors of objects, with uncertainty, from a few samples: of new objects, or further ones of known objects."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.kernels import Learned
from gppvae.likelihoods import Likelihood
from gppvae.models.curvature import expand
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import latents_by_vector, level_of, using_vectors, vector_roots
from gppvae.models.refine import DAMPING_STEP, DAMPINGS, START_DAMPING, covariance_at
from gppvae.prior.linalg import eye_like, inverse_root, matvec, vecmat
from gppvae.prior.posterior import LatentPosterior

TRIED = 64  # vectors of trained objects that are tried as starts
LITTLE, MOST_REFUSED = 1e-9, 1e3  # the search ends at a smaller relative gain, or at a larger damping


@dataclass(frozen=True)
class VectorPrior:
    """N(mean, precision^-1) of the vectors x of P objects: mean (P, J) and precision (P, J, J)."""

    mean: Tensor
    precision: Tensor


def trained_vectors(leaves: list[Learned]) -> Tensor:
    """Vectors of the training objects, concatenated over the leaves of a column, (P, J)."""
    return torch.cat([leaf.x.detach()[: leaf.n_trained] for leaf in leaves], dim=1)


def vector_prior(leaves: list[Learned], n_objects: int = 1) -> VectorPrior:
    """Gaussian fitted to the trained vectors, its covariance shrunk towards its mean variance.

        S = (1 - w) Cov(X) + w tr(Cov(X)) / J I,   w = J / (P + J)

    For a new object this is a better prior than the N(0, I) of training.
    """
    X = trained_vectors(leaves)
    P, J = X.shape
    centred = X - X.mean(0)
    eye = eye_like(X)
    covariance = centred.T @ centred / max(P - 1, 1)  # (J, J)
    target = covariance.diagonal().mean().clamp_min(1e-6) * eye
    share = J / (P + J)
    root = torch.linalg.cholesky((1.0 - share) * covariance + share * target)
    precision = torch.cholesky_solve(eye, root)
    return VectorPrior(X.mean(0).expand(n_objects, J), precision.expand(n_objects, J, J))


def known_vectors(leaves: list[Learned], levels: Tensor) -> VectorPrior:
    """The posterior of the vectors of these levels, (P,), as the prior for further samples."""
    mean = torch.cat([leaf.x.detach() for leaf in leaves], dim=1)[levels]
    root = vector_roots(leaves)[levels]
    # Point estimates are fixed: a tiny variance in place of zero.
    covariance = root @ root.mT + 1e-10 * eye_like(root)
    return VectorPrior(mean, torch.cholesky_inverse(torch.linalg.cholesky(covariance)))


@dataclass(frozen=True)
class _State:
    """Vectors x (P, J), deviations u (N, L), the loss (P,) and -log p(y | z): gradient (N, L), curvature (N, L, L)."""

    x: Tensor
    u: Tensor
    loss: Tensor
    gradient: Tensor
    curvature: Tensor

    def where(self, better: Tensor, of_row: Tensor, other: _State) -> _State:
        """This state for the objects where `better` (P,) and their rows `of_row` (N,), `other` elsewhere."""
        return _State(
            torch.where(better[:, None], self.x, other.x),
            torch.where(of_row[:, None], self.u, other.u),
            torch.where(better, self.loss, other.loss),
            torch.where(of_row[:, None], self.gradient, other.gradient),
            torch.where(of_row[:, None, None], self.curvature, other.curvature),
        )


class ObjectFit:
    """Laplace approximation of the posterior of objects' vectors: its mode and the curvature there.

        z_n = A_n'x + o_n + R_n u_n,   u_n ~ N(0, I)
        loss = sum_n -log p(y_n | decoder(z_n)) + |u_n|^2 / 2 - log p(x)

    Latents are linear in the vector x, with a deviation per row: R R' is the latent noise plus the covariance of q(B).
    The start is the best of a closed form (encoder outputs as observations of z), the mean of the trained vectors and
    some of these. Then damped Gauss-Newton steps (Levenberg-Marquardt) in x and u, all objects at once; a step that
    does not lower the loss of an object is rejected and its damping raised.
    Source: docs/math.md, "Objects that were not in the training set".

    Args:
        model, weights: fitted.  leaves: learned kernels of the column.
        epoch: the samples with coded rows.  owner: (N,) number of the object of each row.
        n_objects: P.  likelihood: of the samples, with measured noise.
        x_prior: prior of the vectors; by default that of new objects.
    Cost: per step about min(L, 16) passes of the decoder over the samples; memory O(N L (L + J)).
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
        x_prior: VectorPrior | None = None,
    ) -> None:
        self.model, self.weights, self.leaves, self.epoch = model, weights, leaves, epoch
        self.owner, self.n_objects, self.likelihood = owner, n_objects, likelihood
        self.new = x_prior is None
        self.x_prior = vector_prior(leaves, n_objects) if x_prior is None else x_prior
        self.A, self.offset = latents_by_vector(model.prior, weights, epoch.rows, leaves)
        self.device = self.A.device
        self.R = self._deviations()

    def run(self, steps: int) -> tuple[Tensor, Tensor]:
        """Vectors (P, J) and covariance roots (P, J, J).

        Args:
            steps: at most; an object is finished when a step lowers its loss only a little, whatever the others do.
        """
        now = self._state(self._start(steps), self.offset.new_zeros(self.offset.shape))
        damping = now.loss.new_full((self.n_objects,), START_DAMPING)
        going = torch.ones_like(damping, dtype=torch.bool)
        for _ in range(steps):
            tried = self._state(*self._step(now, damping))
            gain = now.loss - tried.loss
            better = going & (gain > 0.0)  # False for NaN, (P,)
            now = tried.where(better, better[self.owner], now)
            damping = torch.where(better, damping / DAMPING_STEP, damping * DAMPING_STEP).clamp(*DAMPINGS)
            enough = LITTLE * now.loss.abs().clamp_min(1.0)
            going = going & torch.where(better, gain > enough, damping < MOST_REFUSED)
            if not going.any():
                break
        root = torch.linalg.cholesky(self._reduced(now, torch.zeros_like(damping))[0])
        return now.x, inverse_root(root).contiguous()

    @torch.no_grad()
    def _deviations(self) -> Tensor:
        """R with R R' = Cov z at the rows given the prior mean of the vectors, (N, L, L)."""
        rows, vectors = self.epoch.rows, [leaf.x.detach().clone() for leaf in self.leaves]
        means = self.x_prior.mean.split([leaf.dim for leaf in self.leaves], dim=1)  # (P, M) each
        for x, mean in zip(vectors, means, strict=True):
            x[level_of(self.leaves, rows)] = mean[self.owner]  # rows of one object write the same vector
        with using_vectors(self.leaves, vectors):
            return torch.linalg.cholesky(covariance_at(self.model.prior, self.weights, rows))

    @torch.no_grad()
    def _start(self, steps: int) -> Tensor:
        """Initial vectors, (P, J); for new objects the best of several, since the loss has many local minima."""
        x = self.x_prior.mean.clone()
        if not self.new:
            return x
        closed_form = self._closed_form()
        if steps == 0:
            return closed_form
        others = trained_vectors(self.leaves)
        others = others[torch.linspace(0, len(others) - 1, min(TRIED, len(others))).long()]
        best, u = self._loss(x, torch.zeros_like(self.offset)), torch.zeros_like(self.offset)
        for tried in (closed_form, *(other.expand_as(x) for other in others)):
            loss = self._loss(tried, u)
            x, best = torch.where((loss < best)[:, None], tried, x), torch.minimum(best, loss.nan_to_num(torch.inf))
        return x

    def _closed_form(self) -> Tensor:
        """Posterior mean of x if the encoder's (mean, var) were observations of z = A'x + o + R u, (P, J)."""
        prior = self.model.prior
        precision = self.x_prior.precision.clone()
        right = matvec(precision, self.x_prior.mean)
        for batch in self.epoch:
            mean, var = map(prior.to_gp, self.model.autoencoder.encode(batch.y, batch.mask))
            index = batch.index.to(self.device)
            A, owner = self.A[index], self.owner[index]
            c = 1.0 / (var + self.R[index].square().sum(2))  # (B, L)
            weighted = A * c.unsqueeze(1)  # (B, J, L)
            precision.index_add_(0, owner, weighted @ A.transpose(1, 2))  # (P, J, J)
            error = mean - self.offset[index]
            right.index_add_(0, owner, matvec(weighted, error))
        return torch.linalg.solve(precision, right.unsqueeze(2)).squeeze(2)

    # -- the loss

    def _latents(self, x: Tensor, u: Tensor, batch: Batch) -> Tensor:
        index = batch.index.to(self.device)
        linear = vecmat(x[self.owner[index]], self.A[index]) + self.offset[index]  # A'x + o, (B, L)
        return linear + matvec(self.R[index], u[index])

    def _penalty(self, x: Tensor, u: Tensor) -> Tensor:
        """-log p(x) - log p(u) per object up to a constant, (P,)."""
        shift = x - self.x_prior.mean
        own = 0.5 * (vecmat(shift, self.x_prior.precision) * shift).sum(1)  # (P,)
        return own.index_add(0, self.owner, 0.5 * u.square().sum(1))

    def _loss(self, x: Tensor, u: Tensor) -> Tensor:
        """-log posterior per object up to a constant, (P,)."""
        loss = self._penalty(x, u)
        for batch in self.epoch:
            autoencoder = self.model.autoencoder.with_sizes_of(batch)
            nll = self.likelihood.nll(batch.y, autoencoder.decode(self._latents(x, u, batch)), batch.mask)
            loss = loss.index_add(0, self.owner[batch.index.to(self.device)], self.model.prior.to_gp(nll))
        return loss

    @torch.no_grad()
    def _state(self, x: Tensor, u: Tensor) -> _State:
        """The loss around vectors and deviations."""
        loss, gp = self._penalty(x, u), self.model.prior.to_gp
        gradient, curvature = torch.zeros_like(self.offset), torch.zeros_like(self.R)
        for batch in self.epoch:
            z, index = self._latents(x, u, batch), batch.index.to(self.device)
            autoencoder = self.model.autoencoder.with_sizes_of(batch)
            found = expand(autoencoder, self.likelihood, batch, z)
            loss = loss.index_add(0, self.owner[index], gp(found.nll))
            gradient[index], curvature[index] = gp(found.gradient), gp(found.curvature)
        return _State(x, u, loss, gradient, curvature)

    def _reduced(self, at: _State, damping: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Curvature (P, J, J) and gradient (P, J) in x with the deviations eliminated (Schur complement).

        Also returns the Cholesky factors of the curvature in u, I + R'Lambda R, (N, L, L), and the cross term
        R'Lambda A', (N, L, J), for back-substitution.
        """
        R = self.R
        own = eye_like(R) + R.transpose(1, 2) @ at.curvature @ R  # in u, (N, L, L)
        own = own + torch.diag_embed(own.diagonal(dim1=1, dim2=2) * damping[self.owner, None])
        root = torch.linalg.cholesky(own)
        LA = at.curvature @ self.A.transpose(1, 2)  # (N, L, J)
        cross = R.transpose(1, 2) @ LA
        pull = (at.u + matvec(R.mT, at.gradient)).unsqueeze(2)  # gradient in u, (N, L, 1)
        curvature = self.A @ LA - cross.transpose(1, 2) @ torch.cholesky_solve(cross, root)  # (N, J, J)
        gradient = self.A @ at.gradient.unsqueeze(2) - cross.transpose(1, 2) @ torch.cholesky_solve(pull, root)
        shift = vecmat(at.x - self.x_prior.mean, self.x_prior.precision)
        total = self.x_prior.precision.clone().index_add_(0, self.owner, curvature)
        return total, shift.index_add(0, self.owner, gradient.squeeze(2)), root, cross

    def _step(self, at: _State, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors and deviations after one damped Gauss-Newton step."""
        curvature, gradient, root, cross = self._reduced(at, damping)
        diagonal = torch.diag_embed(curvature.diagonal(dim1=1, dim2=2) * damping[:, None])
        dx = -torch.linalg.solve(curvature + diagonal, gradient.unsqueeze(2))  # (P, J, 1)
        pull = at.u.unsqueeze(2) + self.R.transpose(1, 2) @ at.gradient.unsqueeze(2) + cross @ dx[self.owner]
        return at.x + dx.squeeze(2), at.u - torch.cholesky_solve(pull, root).squeeze(2)  # back-substitution for u

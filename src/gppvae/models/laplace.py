"""The posterior after a fit: variances of q(B) and of the objects' vectors from the likelihood of all rows.

The means of an inference predict well, but its variances are those of its approximation. Here they are replaced by a
Laplace approximation at the means, with the decoder linearised: the prior variance where nothing was observed, the
exact posterior variance where the decoder is linear. Source: docs/math.md, "A posterior from sites".
"""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows
from gppvae.kernels import Learned
from gppvae.models.curvature import PROBES, Signs, jacobian_rows
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import latents_by_vector, level_of, map_covariance, uncertain_columns
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.linalg import eye_like, inverse_root, steady_cholesky
from gppvae.prior.posterior import LatentPosterior
from gppvae.prior.sites import Sites, SiteSums, through_noise, with_sites

AXES_ROWS = 1024  # approximate number of rows that determine the directions of the latents
MANY_ROWS, FEW_PROBES = 2048, 4  # from MANY_ROWS on, fewer probes per row: their errors average out over rows
VECTOR_ROWS = 1024  # rows whose features are evaluated at a time, once per entry of a vector
ROWS_AT_ONCE = 64  # rows whose (J, J) matrices are summed at a time
UNCERTAIN_ROWS = 64  # rows over which the covariance of the map from vectors to latents is averaged


@torch.no_grad()
def laplace_posterior(model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch) -> LatentPosterior:
    """q(B) with the given means and Sigma_k = (I + sum_n lambda_nk / (1 + d_n lambda_nk) v_n v_n')^-1 from all rows.

    The vectors of objects get covariances from the same sites. Directions k are the principal axes of the average
    curvature over rows, along which q(B) is independent: with a linear decoder and one noise level it is the exact
    posterior. Means, and so predictions without draws, do not change.

    Args:
        model: fitted.  weights: q(B) whose means are kept.  epoch: the training rows.
    Cost: one pass over the data with about min(L, 16) passes of the decoder (4 for many rows and latents), and part of
    another for the directions.
    """
    prior, probes = model.prior, PROBES if epoch.n_rows < MANY_ROWS else FEW_PROBES
    typical = Typical(prior)
    average = torch.zeros(prior.n_latents, prior.n_latents, dtype=torch.float64, device=prior.device)
    every = max(1, epoch.n_rows // AXES_ROWS)
    for number, batch in enumerate(epoch):
        if number % every == 0:
            average += curvature_of(model, weights, batch, probes).sum(0)  # (L, L); its scale has no effect
    epoch.world.sum_([average])
    bases = [torch.linalg.eigh(average[own, own])[1] for own in prior.latent_slices]  # (L_g, L_g), least precise first
    sums, vectors = SiteSums(prior, bases), VectorSums(prior, weights, bases, epoch.rows)
    for batch in epoch:
        sites = site_precisions(prior, bases, batch.rows, curvature_of(model, weights, batch, probes))
        sums.add(batch.rows, sites)
        vectors.add(batch.index, sites)
        typical.add(weights, batch)
    vectors.add_waiting()
    epoch.world.sum_([*sums.tensors(), *vectors.precisions, *vectors.along, *typical.sums])
    found = with_sites(weights, sums)
    vectors.store(found)
    typical.store()
    return found


def curvature_of(model: GPPriorVAE, weights: LatentPosterior, batch: Batch, probes: int) -> Tensor:
    """Lambda_n = J'W J at the means of the rows, (B, L, L), latents without a kernel integrated out."""
    prior, autoencoder = model.prior, model.autoencoder.with_sizes_of(batch)
    z = latents_for(model, weights.means, batch)
    rows = jacobian_rows(autoencoder, autoencoder.likelihood.values, z, batch.mask, Signs.of(batch), probes)
    return without_unexplained(prior, prior.to_gp(rows.transpose(1, 2) @ rows))


def latents_for(model: GPPriorVAE, means: list[Tensor], batch: Batch) -> Tensor:
    """Latents of the rows at these means of q(B), those without a kernel at the encoder's mean, (B, L)."""
    prior, where = model.prior, model.prior.unexplained()
    f = prior.functions_at(batch.rows, means)
    if not where.any():
        return f
    return torch.where(where, prior.to_gp(model.autoencoder.encode(batch.y, batch.mask)[0]), f)


def without_unexplained(prior: LatentPrior, curvature: Tensor) -> Tensor:
    """Curvature with the latents without a kernel, of prior N(0, I), integrated out, (B, L, L): a Schur complement."""
    where = prior.unexplained()
    if not where.any() or where.all():
        return curvature
    out = torch.zeros_like(curvature)
    kept, gone = torch.nonzero(~where).squeeze(1), torch.nonzero(where).squeeze(1)
    own = curvature[:, gone][:, :, gone]  # (B, L_0, L_0)
    cross = curvature[:, gone][:, :, kept]  # (B, L_0, L - L_0)
    left = curvature[:, kept][:, :, kept] - cross.transpose(1, 2) @ torch.linalg.solve(own + eye_like(own), cross)
    out[:, kept[:, None], kept[None, :]] = left
    return out


def site_precisions(prior: LatentPrior, bases: list[Tensor], rows: Rows, curvature: Tensor) -> list[Sites]:
    """Sites of rows: precisions of f along the directions of each group, latent noise integrated out.

    Args:
        curvature: Lambda, of the rows' negative log likelihood in z, (B, L, L).
    """
    noise, found = prior.noise_at(rows, training=True), []
    for basis, own in zip(bases, prior.latent_slices, strict=True):
        found.append(Sites(through_noise(along_directions(curvature[:, own, own], basis), noise[:, own])))
    return found


def along_directions(curvature: Tensor, basis: Tensor) -> Tensor:
    """u_k'Lambda_n u_k for the columns u_k of a basis, (B, L, L), (L, L) -> (B, L), never negative."""
    return ((curvature @ basis) * basis).sum(1).clamp_min(0.0)


class Typical:
    """Mean and covariance of z over the training rows: the prior of a sample whose row is unknown.

    E z = mean_n f_n,   Cov z = mean_n (f_n f_n' + diag d_n) - E z E z'
    """

    def __init__(self, prior: LatentPrior) -> None:
        L = prior.n_latents
        self.prior = prior
        self.sums = [torch.zeros(size, dtype=torch.float64, device=prior.device) for size in ((L,), (L, L), ())]

    def add(self, weights: LatentPosterior, batch: Batch) -> None:
        """Add the rows of a batch."""
        f, noise = self.prior.functions_at(batch.rows, weights.means), self.prior.noise_at(batch.rows, training=True)
        self.sums[0] += f.sum(0)
        self.sums[1] += f.T @ f + torch.diag_embed(noise.sum(0))
        self.sums[2] += len(batch)

    def store(self) -> None:
        """Write mean and covariance to the buffers of the prior."""
        total, squares, n = self.sums
        mean = total / n
        self.prior.typical_mean.copy_(mean)
        self.prior.typical_cov.copy_(squares / n - torch.outer(mean, mean))


class VectorSums:
    """Posterior precisions of the vectors of objects, I + sum_n E[A_n W_n A_n'], with z = A'x + o and W the sites.

    The expectation is over q(B), with other columns at their means. The contribution of Cov A_n is averaged over some
    rows. Columns whose vectors enter non-linearly are left out. Source: docs/math.md, "A posterior from sites".
    """

    def __init__(self, prior: LatentPrior, weights: LatentPosterior, bases: list[Tensor], rows: Rows) -> None:
        self.prior, self.weights, self.rows, self.columns = prior, weights, rows, uncertain_columns(prior)
        self.turn = torch.block_diag(*bases)
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.precisions, self.along = [], []
        for leaves in self.columns:
            trained, J = leaves[0].n_trained, sum(leaf.dim for leaf in leaves)
            self.precisions.append(torch.zeros(trained, J, J, dtype=torch.float64, device=prior.device))
            self.along.append(torch.zeros(trained, prior.n_latents, dtype=torch.float64, device=prior.device))

    def add(self, index: Tensor, sites: list[Sites]) -> None:
        """Add the rows at these positions; they are collected until there are VECTOR_ROWS."""
        self.waiting.append((index.to(self.rows.device), torch.cat([own.precision for own in sites], dim=1)))
        if sum(len(own) for own, _ in self.waiting) >= VECTOR_ROWS:
            self.add_waiting()

    def add_waiting(self) -> None:
        """Add the collected rows. Cost: J + 1 evaluations of the features, O(N J^2 L)."""
        if not self.waiting:
            return
        index, along = (torch.cat(parts) for parts in zip(*self.waiting, strict=True))  # (n,), (n, L)
        self.waiting = []
        rows = self.rows[index]
        for leaves, total, precision in zip(self.columns, self.precisions, self.along, strict=True):
            A, _ = latents_by_vector(self.prior, self.weights, rows, leaves)
            A = A @ self.turn  # (n, J, L), the last axis along the directions
            ids = level_of(leaves, rows)  # (n,)
            precision.index_add_(0, ids, along)
            # A few rows at a time: their (J, J) matrices need the most memory.
            for own in torch.arange(len(index), device=ids.device).split(ROWS_AT_ONCE):
                total.index_add_(0, ids[own], (A[own] * along[own].unsqueeze(1)) @ A[own].transpose(1, 2))  # A W A'

    def store(self, posterior: LatentPosterior) -> None:
        """Set the roots of the covariances in the leaves.

        Args:
            posterior: q(B) with its covariances along the directions.
        """
        some = self.rows[:: max(1, len(self.rows) // UNCERTAIN_ROWS)]
        for leaves, total, along in zip(self.columns, self.precisions, self.along, strict=True):
            # Cov A: without it, entries of x that the fit does not use would keep their prior variance, and so would
            # their weights in B; the product would then vary more than any sample does.
            uncertain = map_covariance(self.prior, posterior, some, leaves)  # (L, J, J)
            total += torch.einsum("pk,kij->pij", along, uncertain)
            set_trained_roots(leaves, total + eye_like(total))


def set_trained_roots(leaves: list[Learned], precision: Tensor) -> None:
    """Set the roots of the covariances of a column's vectors in its leaves, from precisions (P, J, J)."""
    roots = inverse_root(steady_cholesky(precision)).split([leaf.dim for leaf in leaves], dim=1)  # (P, M, J) each
    for leaf, own in zip(leaves, roots, strict=True):
        leaf.trained_root = own.clone(memory_format=torch.contiguous_format)

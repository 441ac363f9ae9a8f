"""Conditioning q(B) on further samples, without training."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.likelihoods import Likelihood
from gppvae.models.curvature import expand
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.laplace import along_directions, latents_for, without_unexplained
from gppvae.prior.new_blocks import ConditionedRows
from gppvae.prior.posterior import LatentPosterior, Rotated
from gppvae.prior.sites import (
    Precisions,
    Sites,
    SiteSums,
    add_precisions,
    average_precisions,
    covariance_index,
    n_covariances,
    precisions_of,
    solve_precision,
    through_noise,
    with_precisions,
)

HALVINGS = 6


@dataclass(frozen=True)
class _Around:
    """The loss at a mean of q(B), the sites of all rows in order, one entry per group, and their sums."""

    loss: float
    sites: list[Sites]
    sums: SiteSums


class WeightUpdate:
    """q(B) given further samples, with the present q(B) as the prior: means by Gauss-Newton steps, then covariances.

    With P_k the present precisions along the directions u_k, and m_0 the present mean, the loss is

        1/2 sum_k (m - m_0)_k'P_k (m - m_0)_k - sum_n log p(y_n | f_n = m'v_n)

    with the latent noise between f and z integrated out to second order. A step solves (P_k + S_k) s_k = -gradient_k,
    S_k the sum of the sites; one that does not lower the loss is halved. With a linear decoder and one noise level the
    first step gives the exact posterior. With per-id blocks, only those of the samples' ids are updated and all others
    are integrated out; at the end the means of the others change with the shared weights.
    Source: docs/math.md, "Further samples".

    Args:
        model: fitted.  weights: q(B) from sites.  epoch: the further samples.  likelihood: of these.
    Cost: per step about min(L, 16) passes of the decoder over the samples, and O(K H^3), H the weights updated.
    """

    def __init__(self, model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch, likelihood: Likelihood) -> None:
        self.model, self.before, self.epoch, self.likelihood = model, weights, epoch, likelihood
        groups, parts = model.prior.groups, weights.parts
        self.blocks = [
            None if group.blocks is None else epoch.rows.columns[group.blocks.key].index.unique() for group in groups
        ]
        kinds = list(zip(groups, parts, self.blocks, strict=True))
        self.known: list[Precisions | None] = [
            None if group.kernel is None else precisions_of(part, blocks) for group, part, blocks in kinds
        ]
        self.counts = [
            n_covariances(group)
            if known is None or blocks is None
            else max(len(known), n_covariances(group, len(blocks)))
            for (group, _, blocks), known in zip(kinds, self.known, strict=True)
        ]
        self.bases = [
            part.basis if isinstance(part, Rotated) else torch.eye(group.n_latents).to(part.mean)
            for group, part, _ in kinds
        ]

    @torch.no_grad()
    def run(self, steps: int) -> LatentPosterior:
        """q(B) given all samples, old and new."""
        means = self.before.means
        at = self._around(means)
        pulled = [torch.zeros_like(own.precision) for own in at.sites]
        for _ in range(steps):
            step, length = self._step(means, at.sums), 1.0
            for _ in range(HALVINGS):
                moved_to = [mean + length * s for mean, s in zip(means, step, strict=True)]
                tried = self._around(moved_to)
                if tried.loss < at.loss:
                    break
                length /= 2.0
            else:
                break
            pulled = self._pulled(pulled, at.sites, step, length)
            gain, means, at = at.loss - tried.loss, moved_to, tried
            if gain < 1e-9 * (1.0 + abs(at.loss)):
                break
        self.ended = at.sites, pulled
        parts = []
        found = zip(self.before.parts, means, self.known, at.sums.totals(), self.blocks, strict=True)
        for part, mean, known, (S, _), blocks in found:
            if known is None:
                parts.append(part)
                continue
            assert isinstance(part, Rotated)
            parts.append(
                with_precisions(
                    part, mean, add_precisions(known, average_precisions(S, mean.shape[1], len(known))), blocks
                )
            )
        return LatentPosterior(tuple(parts))

    def _pulled(self, so_far: list[Tensor], sites: list[Sites], step: list[Tensor], length: float) -> list[Tensor]:
        """The contribution a_n of each row to the mean, P (m - m_0) = sum_n v_n a_n', after a step, (N, L).

        A step solves (P + S) s = sum_n v (pull - a)', so P s = sum_n v (pull - a - precision s'v)'.
        """
        prior, found = self.model.prior, []
        f = prior.functions_at(self.epoch.rows, step).split(prior.sizes, dim=1)  # s'v, (N, L_g) each
        for a, own, moved_by, basis, K in zip(so_far, sites, f, self.bases, self.counts, strict=True):
            assert own.pull is not None
            precision = own.averaged(K)[:, covariance_index(a.shape[1], K)]  # as averaged in the sums, (N, L_g)
            found.append(a + length * (own.pull - a - precision * (moved_by @ basis)))
        return found

    @torch.no_grad()
    def conditioned_rows(self, weights: LatentPosterior, picked: list[Tensor]) -> list[list[ConditionedRows | None]]:
        """The sites that `run` added, for sets of rows, (n,) each; one entry per group of latents."""
        found: list[list[ConditionedRows | None]] = [[] for _ in picked]
        for group, part, sites, pulled in zip(self.model.prior.groups, weights.parts, *self.ended, strict=True):
            for own, rows_of in zip(found, picked, strict=True):
                if group.kernel is None:
                    own.append(None)
                    continue
                gave = Sites(sites.precision[rows_of], pulled[rows_of])
                own.append(ConditionedRows.of(group, part, self.epoch.rows[rows_of], gave))
        return found

    def _step(self, means: list[Tensor], sums: SiteSums) -> list[Tensor]:
        """The Gauss-Newton step of each group's mean, (H, L)."""
        steps = []
        parts = zip(self.before.parts, means, self.bases, self.known, sums.totals(), strict=True)
        for part, mean, basis, known, (S, pull) in parts:
            if known is None:
                steps.append(torch.zeros_like(mean))
                continue
            shift, found = (mean - part.mean) @ basis, torch.zeros_like(mean)
            for along, k, own in _runs(mean.shape[1], len(known), len(S)):
                right = pull[:, along] - known[k] @ shift[:, along]  # -gradient, (H, directions)
                found[:, along] = solve_precision(operator.add(known[k], S[own]), right)
            steps.append(found @ basis.T)
        return steps

    def _around(self, means: list[Tensor]) -> _Around:
        """The loss at these means, and the sites there."""
        loss, sums = 0.0, SiteSums(self.model.prior, self.bases, self.blocks, self.counts, training=False)
        for part, mean, basis, known in zip(self.before.parts, means, self.bases, self.known, strict=True):
            if known is not None:
                shift = (mean - part.mean) @ basis
                for along, k, _ in _runs(mean.shape[1], len(known), len(known)):
                    loss += 0.5 * float((shift[:, along] * (known[k] @ shift[:, along])).sum())
        every = [Sites(*torch.zeros(2, self.epoch.n_rows, len(basis)).to(basis)) for basis in self.bases]
        for batch in self.epoch:
            nll, sites = self._sites(means, batch)
            loss += nll
            sums.add(batch.rows, sites)
            for whole, own in zip(every, sites, strict=True):
                assert whole.pull is not None and own.pull is not None
                index = batch.index.to(own.pull.device)
                whole.precision[index], whole.pull[index] = own.precision, own.pull
        return _Around(loss, every, sums)

    def _sites(self, means: list[Tensor], batch: Batch) -> tuple[float, list[Sites]]:
        """-log p(y | f) of a batch, and its sites."""
        model, prior = self.model, self.model.prior
        z = latents_for(model, means, batch)
        around = expand(model.autoencoder, self.likelihood, batch, z)
        curvature = without_unexplained(prior, prior.to_gp(around.curvature))
        gradient, noise = prior.to_gp(around.gradient), prior.noise_at(batch.rows)
        nll, sites = float(around.nll.sum()), []
        for basis, own in zip(self.bases, prior.latent_slices, strict=True):
            slope, d = gradient[:, own] @ basis, noise[:, own]
            along = along_directions(curvature[:, own, own], basis)  # (B, L_g)
            damped = slope / (1.0 + d * along)  # gradient in f, with eta ~ N(0, d) integrated out
            nll -= 0.5 * float((slope * d * damped).sum())  # and its second-order effect on the loss
            sites.append(Sites(through_noise(along, d), -damped))
        return nll, sites


def _runs(n_latents: int, one: int, other: int) -> list[tuple[slice, int, int]]:
    """Runs of adjacent directions that share a covariance both if there are `one` and if there are `other` of them.

    Returns:
        The directions, and the number of their covariance among `one` and among `other`.
    """
    pairs = list(zip(covariance_index(n_latents, one), covariance_index(n_latents, other), strict=True))
    found, start = [], 0
    for (k, own), run in itertools.groupby(pairs):
        stop = start + len(list(run))
        found.append((slice(start, stop), k, own))
        start = stop
    return found

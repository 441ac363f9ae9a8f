"""Further samples without training: q(B) and the vectors of known objects are conditioned on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.likelihoods import Likelihood
from gppvae.models.curvature import Signs, expand
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.laplace import latents_for, without_unexplained
from gppvae.prior.posterior import LatentPosterior, Rotated
from gppvae.prior.sites import Sites, SiteSums, added, from_precisions, precisions_of, solved, through_noise

HALVINGS = 6


@dataclass(frozen=True)
class _Around:
    """The loss at a q(B) mean, and the sums of its sites."""

    loss: float
    sums: SiteSums


class WeightUpdate:
    """q(B) given further samples, q(B) so far being the prior: its means by Gauss-Newton steps, then its covariances.

    With the precisions P_k so far along the directions u_k, and m_0 the mean so far, the loss is

        1/2 sum_k (m - m_0)_k'P_k (m - m_0)_k - sum_n log p(y_n | f_n = m'v_n),

    the latent noise between f and z integrated out to second order. A step solves (P_k + S_k) s_k = -gradient_k with
    S_k the sum of the sites; one that does not lower the loss is halved. With a linear decoder and one noise level the
    first step is the exact posterior. Source: docs/math.md, "A posterior from sites".

    Args:
        model: fitted.  weights: q(B) made from sites.  epoch: the further samples.  likelihood: of them.
    Cost: per step about min(L, 16) passes of the decoder over the samples, O(R H^3).
    """

    def __init__(self, model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch, likelihood: Likelihood) -> None:
        self.model, self.before, self.epoch, self.likelihood = model, weights, epoch, likelihood
        kinds = zip(model.prior.groups, weights.parts, strict=True)
        self.known = [None if group.kernel is None else precisions_of(part) for group, part in kinds]
        self.bases = [
            part.basis if isinstance(part, Rotated) else torch.eye(group.n_latents).to(part.mean)
            for group, part in zip(model.prior.groups, weights.parts, strict=True)
        ]

    @torch.no_grad()
    def run(self, steps: int) -> LatentPosterior:
        """q(B) given what it was given before, and the further samples."""
        means = self.before.means
        at = self._around(means)
        for _ in range(steps):
            step, length = self._step(means, at.sums), 1.0
            for _ in range(HALVINGS):
                moved = [mean + length * s for mean, s in zip(means, step, strict=True)]
                tried = self._around(moved)
                if tried.loss < at.loss:
                    break
                length /= 2.0
            else:
                break
            gain, means, at = at.loss - tried.loss, moved, tried
            if gain < 1e-9 * (1.0 + abs(at.loss)):
                break
        parts = []
        found = zip(self.before.parts, means, self.bases, self.known, at.sums.precisions(), strict=True)
        for part, mean, basis, known, S in found:
            parts.append(part if known is None else from_precisions(mean, basis, added(known, S)))
        return LatentPosterior(tuple(parts))

    def _step(self, means: list[Tensor], sums: SiteSums) -> list[Tensor]:
        """The Gauss-Newton step of each group's mean, (H, L)."""
        steps = []
        parts = zip(self.before.parts, means, self.bases, self.known, sums.precisions(), sums.pulls(), strict=True)
        for part, mean, basis, known, S, pull in parts:
            if known is None:
                steps.append(torch.zeros_like(mean))
                continue
            shift, found, both = (mean - part.mean) @ basis, torch.zeros_like(mean), added(known, S)
            for direction, k in enumerate(_shared(mean.shape[1], len(known))):
                right = pull[:, direction] - known[k] @ shift[:, direction]
                found[:, direction] = solved(both[k], right)
            steps.append(found @ basis.T)
        return steps

    def _around(self, means: list[Tensor]) -> _Around:
        """The loss at these means, and its sites."""
        loss, sums = 0.0, SiteSums(self.model.prior, self.bases)
        for part, mean, basis, known in zip(self.before.parts, means, self.bases, self.known, strict=True):
            if known is not None:
                shift = (mean - part.mean) @ basis
                for direction, k in enumerate(_shared(mean.shape[1], len(known))):
                    loss += 0.5 * float(shift[:, direction] @ (known[k] @ shift[:, direction]))
        for batch in self.epoch:
            nll, sites = self._sites(means, batch)
            loss += nll
            sums.add(batch.rows, sites)
        return _Around(loss, sums)

    def _sites(self, means: list[Tensor], batch: Batch) -> tuple[float, list[Sites]]:
        """-log p(y | f) of a batch, and its sites."""
        model, prior = self.model, self.model.prior
        z = latents_for(model, means, batch)
        around = expand(model.autoencoder, self.likelihood, batch.y, batch.mask, z, Signs.of(batch))
        curvature = without_unexplained(prior, prior.to_gp(around.curvature))
        gradient, noise = prior.to_gp(around.gradient), prior.noise_at(batch.rows)
        nll, start, sites = float(around.nll.sum()), 0, []
        for basis in self.bases:
            own = slice(start, start + len(basis))
            start += len(basis)
            slope, d = gradient[:, own] @ basis, noise[:, own]
            along = ((curvature[:, own, own] @ basis) * basis).sum(1).clamp_min(0.0)  # (B, L_g)
            damped = slope / (1.0 + d * along)
            nll -= 0.5 * float((slope * d * damped).sum())
            sites.append(Sites(through_noise(along, d), -damped))
        return nll, sites


def _shared(n_latents: int, n_covariances: int) -> list[int]:
    """Which covariance each direction has."""
    return [direction * n_covariances // n_latents for direction in range(n_latents)]

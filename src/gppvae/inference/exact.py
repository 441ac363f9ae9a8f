"""Exact inference: the full gradient in two sweeps, with the graph of one batch (the paper's procedure)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.data.world import World
from gppvae.inference.base import (
    Inference,
    LossTerms,
    back_propagate,
    draw,
    neg_entropy,
    recon_nll,
    sum_rows,
)
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.statistics import Sums


class Exact(Inference):
    """One step per epoch, with the gradient of the whole bound.

    Sweep 1 sums statistics without a graph; the gradient of the GP term with respect to them is an H x H
    problem; sweep 2 back-propagates its inner product with each batch's own statistics. That is the
    paper's Taylor expansion, as a vector-Jacobian product. Source: Casale et al. 2018, "Low-memory
    stochastic backpropagation"; docs/math.md.

    Args:
        model: the model.
        sampled: evaluate the GP term at one sampled Z, as the paper does, instead of its expectation.
    Cost: one plain VAE epoch, one more encoder pass, O(N M (2M + L) + H^3).
    """

    name = "exact"
    sweeps = 2

    def __init__(self, model: GPPriorVAE, sampled: bool = False) -> None:
        super().__init__(model)
        self.sampled = sampled

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        prior, autoencoder = self.model.prior, self.model.autoencoder
        totals = sum_rows(epoch, lambda batch: prior.statistics(batch.rows, *self._latents(batch)[0]))
        gp_nll, penalty, pull = pull_back(prior, totals, epoch.n_rows, epoch.world)
        recon_sum = entropy_sum = torch.zeros((), dtype=torch.float64)
        for batch in epoch:
            latents, z, var = self._latents(batch)
            recon, entropy = recon_nll(autoencoder, batch, z), neg_entropy(var)
            gp = pull.dot(prior.statistics(batch.rows, *latents))
            back_propagate((recon + entropy) / epoch.n_rows, gp)
            recon_sum = recon_sum + recon.detach().cpu()
            entropy_sum = entropy_sum + entropy.detach().cpu()
        yield LossTerms(recon_sum, gp_nll.cpu(), entropy_sum, penalty.cpu(), n=epoch.n_rows)

    def _latents(self, batch: Batch) -> tuple[tuple[Tensor, Tensor | None], Tensor, Tensor]:
        """What the GP term is evaluated at, a draw of z, and the variance of q(z | y)."""
        mean, var = self.model.autoencoder.encode(batch.y, batch.mask)
        z = draw(mean, var, batch)
        return ((z, None) if self.sampled else (mean, var)), z, var


class Pull:
    """The gradient of the GP term, per sample, with respect to the sums over all rows: detached by construction.

    Its inner product with the statistics of a batch is a loss; over all batches those add up to the full gradient.
    """

    def __init__(self, gradient: Sums) -> None:
        self.gradient = gradient

    def dot(self, sums: Sums) -> Tensor:
        return torch.stack([by.dot(own) for by, own in zip(self.gradient, sums, strict=True)]).sum()


def pull_back(prior: LatentPrior, totals: Sums, n_rows: int, world: World) -> tuple[Tensor, Tensor, Pull]:
    """GP term and kernel prior at `totals`, and the gradient of the term with respect to them.

    Gradients of parameters that act on the sums as a whole (factors of a split column, the kernel prior) go to `.grad`
    here; all others follow batch by batch. Each of several processes takes its share of the two terms, so that they
    count once, and the whole gradient with respect to the sums.

    Returns:
        The two terms (this process's share), and the gradient.
    Cost: O(H^3 + H^2 L).
    """
    leaves = [sums.map(lambda x: x.detach().requires_grad_()) for sums in totals]
    value, penalty = prior.nll(leaves), prior.neg_log_prior()
    ((value + penalty) * (world.share / n_rows)).backward()
    pull = Pull([sums.map(lambda x: _grad(x) * world.size) for sums in leaves])
    return value.detach() * world.share, penalty.detach() * world.share, pull


def _grad(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad

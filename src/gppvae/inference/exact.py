"""Exact inference: the full gradient in two sweeps, with the graph of one batch at a time (the paper's procedure)."""

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
    """One step per epoch, with the gradient of the whole negative bound:

        sum_n E_q[-log p(y_n | z_n)] + E_q[-log p(Z)] - sum_n H(q(z_n | y_n)),   q = q(z | y)

    Sweep 1 sums statistics without a graph; the gradient of the GP term with respect to them is an H x H problem; sweep
    2 back-propagates its inner product with the statistics of each batch. That is the paper's Taylor expansion, as a
    vector-Jacobian product. Source: Casale et al. 2018, "Low-memory stochastic backpropagation"; docs/math.md, "Exact
    gradient in the memory of one batch".

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
        gp_nll, penalty, by_sums = pull_back(prior, totals, epoch.n_rows, epoch.world)
        recon_sum = entropy_sum = torch.zeros((), dtype=torch.float64)
        for batch in epoch:
            latents, z, var = self._latents(batch)
            recon, entropy = recon_nll(autoencoder, batch, z), neg_entropy(var)
            gp = inner_product(by_sums, prior.statistics(batch.rows, *latents))  # has the gradient of the GP term
            back_propagate((recon + entropy) / epoch.n_rows, gp)
            recon_sum = recon_sum + recon.detach().cpu()
            entropy_sum = entropy_sum + entropy.detach().cpu()
        yield LossTerms(recon_sum, gp_nll.cpu(), entropy_sum, penalty.cpu(), n=epoch.n_rows)

    def _latents(self, batch: Batch) -> tuple[tuple[Tensor, Tensor | None], Tensor, Tensor]:
        """The arguments (mean, var) of the GP term, a draw of z, and the variance of q(z | y); (B, L) each."""
        mean, var = self.model.autoencoder.encode(batch.y, batch.mask)
        z = draw(mean, var, batch)
        return ((z, None) if self.sampled else (mean, var)), z, var


def inner_product(gradient: Sums, sums: Sums) -> Tensor:
    """<gradient, sums> over all groups of latents, ().

    With the detached gradient of the GP term and the statistics of a batch it is a loss whose gradients, over all
    batches, add up to that of the GP term.
    """
    return torch.stack([by.dot(own) for by, own in zip(gradient, sums, strict=True)]).sum()


def pull_back(prior: LatentPrior, totals: Sums, n_rows: int, world: World) -> tuple[Tensor, Tensor, Sums]:
    """GP term and kernel prior at `totals`, and the gradient of the term, per sample, with respect to these sums.

    Gradients of parameters that act on the sums as a whole (factors of a split column, the kernel prior) go to `.grad`
    here; all others follow batch by batch. With several processes, each counts its share of the two terms and has the
    whole gradient.

    Returns:
        The two terms (this process's share), and the gradient, detached.
    Cost: O(H^3 + H^2 L).
    """
    leaves = [sums.map(lambda x: x.detach().requires_grad_()) for sums in totals]  # leaves of the autograd graph
    value, penalty = prior.nll(leaves), prior.neg_log_prior()
    ((value + penalty) * (world.share / n_rows)).backward()

    def gradient(x: Tensor) -> Tensor:
        return (torch.zeros_like(x) if x.grad is None else x.grad) * world.size  # undoes the share above

    return value.detach() * world.share, penalty.detach() * world.share, [sums.map(gradient) for sums in leaves]

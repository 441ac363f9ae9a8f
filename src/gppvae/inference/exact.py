"""Exact inference: the full gradient in two sweeps, with the graph of one batch (the paper's procedure)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import (
    GPInference,
    Latents,
    LossTerms,
    back_propagate,
    joined_latents,
    neg_entropy,
    of_each,
    recon_nll,
    reparametrise,
    rows_of,
    sum_encoded,
    together,
)
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.groups import GroupedRows
from gppvae.prior.statistics import Statistics, pull_features, pull_latents, pulled_at


class Exact(GPInference):
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
        with self.model.kernel.held():  # one step per epoch: the kernel stays as it is until then
            gp_value, penalty, recon_sum, entropy_sum = self._sweeps(epoch)
        yield LossTerms(recon_sum, gp_value.cpu(), entropy_sum, penalty.cpu(), n=epoch.n_rows)

    def _sweeps(self, epoch: Epoch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        model = self.model
        totals = sum_encoded(model, epoch, self._encoded)
        gp_value, penalty, pull = pull_back(model, totals, epoch)
        recon_sum = entropy_sum = torch.zeros((), dtype=torch.float64)
        for batches in together(epoch):
            coded, sizes = rows_of(batches), [len(batch) for batch in batches]
            features, noise = model.features(coded), model.noise(coded)
            rows, d = GroupedRows(features), noise.detach()
            at, seen = pulled_at(pull, rows, d), []
            of_batches = zip(batches, at.b.split(sizes), of_each(at.ox, sizes), of_each(d, sizes), strict=True)
            for batch, b, ox, own_d in of_batches:
                mean, var = model.autoencoder.encode(batch.y)
                z = reparametrise(mean, var, batch)
                recon, entropy = recon_nll(model.autoencoder, batch, z), neg_entropy(var)
                latents = (model.to_gp(z), None) if self.sampled else (model.to_gp(mean), model.to_gp(var))
                by = pull_latents(pull, b, ox, latents[0], own_d)
                known = [(x, by_x) for x, by_x in zip(latents, by, strict=True) if x is not None]
                back_propagate(((recon + entropy) / epoch.n_rows, None), *known)
                seen.append(latents)
                recon_sum = recon_sum + recon.detach().cpu()
                entropy_sum = entropy_sum + entropy.detach().cpu()
            with torch.no_grad():
                by = pull_features(pull, at, rows, *joined_latents(seen), d)
            back_propagate(*zip((features.x, noise), by, strict=True))
        return gp_value, penalty, recon_sum, entropy_sum

    def _encoded(self, batch: Batch) -> Latents:
        mean, var = self.model.autoencoder.encode(batch.y)
        return (reparametrise(mean, var, batch), None) if self.sampled else (mean, var)


def pull_back(model: GPPriorVAE, totals: Statistics, epoch: Epoch) -> tuple[Tensor, Tensor, Statistics]:
    """GP term and kernel prior at `totals`, and the gradient of the term (per sample) with respect to them.

    Gradients of parameters that act through the view tables, and of the kernel prior, go to `.grad` here;
    all others follow batch by batch from the pulled-back statistics. Each of several processes takes its share of
    the two terms, so that they count once, and the whole gradient with respect to the statistics.

    Returns:
        gp_nll and neg_log_prior (this process's share), and the gradient as Statistics.
    Cost: O(H^3 + H^2 L), less for a complete design.
    """
    outer, sums = totals.outer.requires_grad_(), totals.sums.requires_grad_()
    value = model.gp_nll(Statistics(outer, sums, totals.n_latents), epoch.rows)
    penalty = model.kernel.neg_log_prior()
    world = epoch.world
    ((value + penalty) * world.share / epoch.n_rows).backward()
    assert outer.grad is not None and sums.grad is not None
    pull = Statistics(outer.grad * world.size, sums.grad * world.size, totals.n_latents)
    return value.detach() * world.share, penalty.detach() * world.share, pull

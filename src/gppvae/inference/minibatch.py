"""Mini-batch inference: a bound that is a sum over samples, so every batch gives a step."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import (
    LossTerms,
    back_propagate,
    joined,
    neg_entropy,
    of_each,
    recon_nll,
    reparametrise,
    rows_of,
    sum_encoded,
)
from gppvae.inference.running import RunningInference
from gppvae.prior.bound import Held, moments_at, pull_features, pull_latents, row_nll, sums_and_tables
from gppvae.prior.groups import GroupedRows
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import WeightPosterior, condition
from gppvae.prior.statistics import Statistics

REFRESHES_PER_EPOCH = 8


class Minibatch(RunningInference[Held]):
    """Steps per batch on the factorised bound; q(B) in closed form from running statistics.

    The statistics in use are those of the batches seen in this epoch plus the unseen share of the last
    epoch's; q(B) is conditioned on them several times per epoch. The bound holds for any q(B), so a stale one
    costs tightness, never validity. Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

    Cost: one plain VAE epoch plus O(N M (M + L)) and a few H^3.
    """

    name = "minibatch"

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        if self.running.empty:  # a resumed run has them from the checkpoint
            encode = self.model.autoencoder.encode
            self.running.set(sum_encoded(self.model, epoch, lambda batch: (encode(batch.y)[0], None)))

    def condition(self, totals: Statistics, tables: list[Tensor], sizes: list[int]) -> Held:
        return Held.of(condition(assemble(totals, tables, sizes)), tables, sizes)

    @classmethod
    def batches_between(cls, n_batches: int) -> int:
        return max(1, n_batches // REFRESHES_PER_EPOCH)

    def steps_together(
        self, given: Held, batches: list[Batch], epoch: Epoch
    ) -> Generator[LossTerms, None, tuple[LossTerms, Statistics]]:
        model, coded, n = self.model, rows_of(batches), sum(batch.total for batch in batches)
        features, noise, penalty = model.features(coded), model.noise(coded), model.kernel.neg_log_prior()
        rows, tables = GroupedRows(features), features.tables
        at, d, sizes = moments_at(given, rows, tables), noise.detach(), [len(batch) for batch in batches]
        seen: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch, f, s, d_n in zip(batches, at.f.split(sizes), at.s.split(sizes), of_each(d, sizes), strict=True):
            mean, var = model.autoencoder.encode(batch.y)
            recon = recon_nll(model.autoencoder, batch, reparametrise(mean, var, batch))
            entropy, mean64, var64 = neg_entropy(var), model.to_gp(mean), model.to_gp(var)
            value, r, quad = row_nll(f, s, mean64, var64, d_n)
            of_latents = zip((mean64, var64), pull_latents(r, d_n, 1.0 / batch.total), strict=True)
            back_propagate(((recon + entropy) / batch.total, None), *of_latents)
            seen.append((mean64.detach(), r, quad))
            share = len(batch) / epoch.n_rows
            gp, prior = value.sum() + given.kl * share, penalty.detach() * share
            terms = LossTerms(recon.detach(), gp, entropy.detach(), prior, n=batch.total)
            if len(seen) < len(batches):
                yield terms
        mean64, r, quad = map(joined, zip(*seen, strict=True))
        of_prior = zip((features.x, noise), pull_features(given, at, rows, tables, r, quad, d, n), strict=True)
        sums, by_tables = sums_and_tables(given, rows, tables, mean64, r, d, n)
        by_penalty = torch.full_like(penalty, len(coded) / n / epoch.n_rows)
        back_propagate(*of_prior, *zip(tables, by_tables, strict=True), (penalty, by_penalty))
        return terms, sums

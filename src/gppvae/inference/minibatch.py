"""Mini-batch inference: a bound that is a sum over samples, so every batch gives a step."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import (
    LossTerms,
    back_propagate,
    gp_arguments,
    neg_entropy,
    recon_nll,
    reparametrise,
    sum_statistics,
)
from gppvae.inference.running import RunningInference, Slow
from gppvae.prior.bound import Held, pull_row_nll, row_nll, sums_and_tables
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
            self.running.set(
                sum_statistics(epoch, lambda batch: gp_arguments(self.model, batch, encode(batch.y)[0], None))
            )

    def condition(self, totals: Statistics, tables: list[Tensor], sizes: list[int]) -> Held:
        return Held.of(condition(assemble(totals, tables, sizes)), tables, sizes)

    @classmethod
    def batches_between(cls, n_batches: int) -> int:
        return max(1, n_batches // REFRESHES_PER_EPOCH)

    def steps_at(
        self, given: Held, batches: Iterable[Batch], epoch: Epoch, slow: Slow
    ) -> Generator[LossTerms, None, Statistics]:
        recent: Statistics | None = None
        for batch in batches:
            slow.hold()
            terms, part = self.batch_loss(batch, given, epoch)
            recent = part if recent is None else recent.add_(part)
            slow.passed()
            yield terms
        assert recent is not None, "there are batches"
        return recent

    def batch_loss(self, batch: Batch, given: Held, epoch: Epoch) -> tuple[LossTerms, Statistics]:
        """Back-propagate this batch's share of the bound; return its terms and its rows' statistics."""
        model, n, share = self.model, batch.total, batch.share / epoch.n_rows
        features, noise = model.features(batch.rows), model.noise(batch.rows)
        rows, tables, penalty = GroupedRows(features), features.tables, model.kernel.neg_log_prior()
        mean, var = model.autoencoder.encode(batch.y)
        recon = recon_nll(model.autoencoder, batch, reparametrise(mean, var, batch))
        entropy, mean64, var64 = neg_entropy(var), model.to_gp(mean), model.to_gp(var)
        at = row_nll(given, rows, tables, mean64, var64, noise)
        by_rows = pull_row_nll(given, at, rows, tables, noise, 1.0 / n)
        of_rows = zip((features.x, mean64, var64, noise), by_rows, strict=True)
        back_propagate(((recon + entropy) / n, None), *of_rows, (penalty, torch.full_like(penalty, share)))
        part, by_tables = sums_and_tables(given, rows, tables, mean64, noise, by_rows[1], 1.0 / n)
        back_propagate(*zip(tables, by_tables, strict=True))
        gp = at.value.sum() + given.kl * (len(batch) / epoch.n_rows)
        return LossTerms(recon.detach(), gp, entropy.detach(), penalty.detach() * (share * n), n=n), part

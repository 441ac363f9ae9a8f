"""GP posterior coding: encoder outputs are pseudo-observations, the decoder sees the GP's posterior."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows
from gppvae.inference.base import (
    TOGETHER,
    LossTerms,
    back_propagate,
    draw_latents,
    joined,
    recon_nll,
    rows_of,
    sum_over,
)
from gppvae.inference.running import RunningInference
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.groups import GroupedRows
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, WeightPosterior, condition
from gppvae.prior.pseudo import (
    Conditioned,
    condition_on_pseudo,
    posterior_at,
    pseudo_sums,
    pull_pseudo,
    split_pseudo_sums,
)
from gppvae.prior.statistics import Statistics, statistics

ENCODED_VALUES = 2**18  # of samples that are encoded at once, unless a batch has more
FORGOTTEN = 0.3  # weight of what rows asked for, each time that q(B) is conditioned again


class PosteriorCoding(RunningInference[Conditioned]):
    """q(B) = posterior given pseudo-observations mu_n of f(row_n) with noise d_n from the encoder.

    The noise of a sample is the geometric mean of the encoder's variances, so that all latent dimensions
    share one covariance. Training and prediction then use the same path, row -> q(f) -> decoder; the bound is
    E log p(y | z) - KL(q(B) || N(0, I)), z = f + eta. A row acts on the f of every other: what these want of it is
    estimated from the rows seen before q(B) was conditioned, the last of them first, not from the few that share
    its batch. An encoder that steps again before q(B) has followed its last step goes too far, so encoder and prior
    take one step for a few batches, and then q(B) is conditioned; the decoder steps with every batch.
    Source: Pearce 2019; Jazbec et al. 2021.

    Cost: one plain VAE epoch plus O(N M (M + L)), and H^3 per four batches; one more such epoch before the first.
    """

    name = "posterior"

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.asked_outer: Tensor
        self.asked_sums: Tensor
        self.register_buffer("asked_outer", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("asked_sums", torch.zeros(0, dtype=torch.float64))

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        if not self.running.empty:  # a resumed run has them from the checkpoint
            return
        at_start = self.weights(epoch)

        def part(batches: list[Batch]) -> Statistics:
            coded = rows_of(batches)
            features = self.model.features(coded)
            V = features.dense()
            f, var = at_start.mean_at(V), at_start.var_at(V) + self._latent_noise(coded)
            z = draw_latents(f, var, joined([batch.noise(f.shape[1]) for batch in batches]))
            mean, noise = self._encoded_each(batches)
            by_z = []
            for batch, own in zip(batches, z.split([len(batch) for batch in batches]), strict=True):
                with torch.enable_grad():
                    recon = recon_nll(self.model.autoencoder, batch, own.requires_grad_())
                by_z += torch.autograd.grad(recon, own)
            return pseudo_sums(GroupedRows(features), mean, noise, *self._gradients_at(f, var, z, joined(by_z)))

        observed, asked = split_pseudo_sums(sum_over(epoch, part))
        self.running.set(observed)
        self.asked_outer, self.asked_sums = asked.tensors()

    @classmethod
    def batches_between(cls, n_batches: int) -> int:
        return min(TOGETHER, n_batches)

    def take_over(self, recent: Statistics) -> None:
        observed, asked = split_pseudo_sums(recent)
        super().take_over(observed)
        n_rows = self.running.n_rows
        if self.asked_sums[3] < n_rows and asked.sums[3] < n_rows:  # all rows at once stand for themselves alone
            asked.add_(Statistics(self.asked_outer, self.asked_sums, asked.n_latents), FORGOTTEN)
        self.asked_outer, self.asked_sums = asked.tensors()

    def condition(self, totals: Statistics, tables: list[Tensor], sizes: list[int]) -> Conditioned:
        asked = Statistics(self.asked_outer, self.asked_sums, totals.n_latents)
        return condition_on_pseudo(totals, asked, tables, sizes)

    def steps_together(
        self, given: Conditioned, batches: list[Batch], epoch: Epoch
    ) -> Generator[LossTerms, None, tuple[LossTerms, Statistics]]:
        """First the decoder's passes, which tell the gradients at f; from them the encoder's and the kernel's."""
        model, coded, n = self.model, rows_of(batches), sum(batch.total for batch in batches)
        share = len(coded) / epoch.n_rows
        features, eta, penalty = model.features(coded), self._latent_noise(coded), model.kernel.neg_log_prior()
        rows, tables = GroupedRows(features), features.tables
        with torch.no_grad():
            at = posterior_at(given, rows, tables)
            var = at.s + eta
            z = draw_latents(at.f, var, joined([batch.noise(model.latent_dim) for batch in batches]))
        by_z: list[Tensor] = []
        for batch, own in zip(batches, z.split([len(batch) for batch in batches]), strict=True):
            recon = recon_nll(model.autoencoder, batch, own.requires_grad_())
            (recon / batch.total).backward()
            assert own.grad is not None
            by_z.append(own.grad * (batch.total / n))
            terms = LossTerms.without_encoder(recon, given.kl, penalty, len(batch) / epoch.n_rows, batch.total)
            if len(by_z) < len(batches):
                yield terms
        with torch.no_grad():
            g, h = self._gradients_at(at.f, var, z, joined(by_z))
        encoded = []
        for y, some in _to_encode(batches):
            mean, noise = self._encoded(y, coded[some])
            by_x, *by = pull_pseudo(given, at.part(some), rows.part(some), tables, mean, noise, g[some], h[some], n)
            back_propagate(*zip((mean, noise), by, strict=True))
            encoded.append((mean.detach(), noise.detach(), by_x))
        mean, noise, by_x = map(joined, zip(*encoded, strict=True))
        with torch.no_grad():
            by_eta = h if len(eta) == len(h) else h.sum(0, keepdim=True)
            by_tables = [by * (share / n) for by in given.by_tables]
            by_penalty = torch.full_like(penalty, share / n)
        shared = *zip(tables, by_tables, strict=True), (eta, by_eta), (penalty, by_penalty)
        back_propagate((features.x, by_x), *shared)
        with torch.no_grad():
            return terms, pseudo_sums(rows, mean, noise, g * n, h * n)

    def _gradients_at(self, f: Tensor, var: Tensor, z: Tensor, by_z: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients with respect to the mean f (n, L) and the variance (n, 1) of z, whose own is known."""
        g, z = self.model.to_gp(by_z), self.model.to_gp(z)
        return g, (g * (z - f)).sum(1, keepdim=True) / (2.0 * var)

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> SharedCovariance:
        def part(batches: list[Batch]) -> Statistics:
            mean, noise = self._encoded_each(batches)
            return statistics(self.model.features(rows_of(batches)), mean, None, noise)

        return condition(assemble(sum_over(epoch, part), *self.model.tables(epoch.rows)))

    def _encoded_each(self, batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """As `_encoded`, of several batches one after the other."""
        means, noises = zip(*(self._encoded(batch.y, batch.rows) for batch in batches), strict=True)
        return joined(means), joined(noises)

    def _encoded(self, y: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Pseudo-observations (n, L) and their noise (n,)."""
        model, kernel = self.model, self.model.kernel
        mean, logvar = model.autoencoder.encode_log(y)
        noise = model.to_gp(logvar.mean(1)).exp()
        if not kernel.carries_training_variance:
            noise = noise + kernel.residual(rows)
        return model.to_gp(mean), noise

    def _latent_noise(self, rows: Rows) -> Tensor:
        """Variance of eta, (n, 1) or (1, 1)."""
        return self.model.noise(rows).reshape(-1, 1)


def _to_encode(batches: list[Batch]) -> Iterator[tuple[Tensor, slice]]:
    """Samples of some batches at a time, and which rows they are: few operations where samples are small, and no more
    memory than a batch takes where they are large."""
    start, waiting = 0, []
    for batch in batches:
        waiting.append(batch.y)
        if batch is batches[-1] or (len(waiting) + 1) * batch.y.numel() > ENCODED_VALUES:
            y, waiting = joined(waiting), []
            yield y, slice(start, start + len(y))
            start += len(y)

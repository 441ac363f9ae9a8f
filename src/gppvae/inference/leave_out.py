"""Leave-out inference: the decoder is trained on the GP's predictions for rows from the other rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch, derive_seed
from gppvae.data.table import Rows
from gppvae.inference.base import Inference, LossTerms, SlowGroups, draw, neg_entropy, recon_nll
from gppvae.inference.phase import Budget, Phase
from gppvae.inference.running import add
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.at_rows import RowFeatures
from gppvae.prior.latents import Latents
from gppvae.prior.posterior import LatentPosterior
from gppvae.prior.statistics import StatisticsSum, Sums

REFRESHES_PER_EPOCH = 8
CHUNK_ROWS = 8192
EACH, ROWS = "each", "rows"


class LeaveOut(Inference):
    """Training on the task of prediction: a sample from the other samples.

    Part of each batch is left out. These rows are decoded from the GP's prediction given all other rows, the rest from
    the encoder:

        sum_{n kept} E_q(z|y) -log p(y_n | z) + sum_{n left out} E_p(z | rows not left out) -log p(y_n | z)
            + expected GP term - entropy

    Gradients of the predictions reach the encoder through the rows of the batch that were kept, and the kernel through
    all features; rows outside the batch have the latents of their last visit. Kernel and latent noise step only when
    all rows are summed again, so that subtracting rows from the sums is exact in between.
    Source: docs/math.md, "Leave-out training".

    Args:
        model: the model.
        share: of the rows of a batch that are left out.
        what: "rows" leaves out a random set together; "each" leaves every row out alone, given all others; the name of
            a coded column leaves out all rows of some of its values, in the whole table.
        together: coded column whose rows come in the same batch, for example an object's views.
    Cost: one plain VAE epoch plus O(N H (H + L)), and H^3 per batch. Memory: the N x L latents of the last visit.
    """

    name = "leave_out"

    def __init__(self, model: GPPriorVAE, share: float = 0.5, what: str = ROWS, together: str | None = None) -> None:
        super().__init__(model)
        if not isinstance(share, (int, float)) or not 0.0 < share <= 1.0:
            raise ValueError(f"leave_out needs a share above 0 and at most 1, got {share!r}; use for example 0.5")
        self.share, self.what, self.together = share, what, together
        self.latents: Tensor
        self.register_buffer("latents", torch.zeros(0, dtype=torch.float64))

    @classmethod
    def phases(cls, budget: Budget) -> list[Phase]:
        networks = dict.fromkeys(("encoder", "decoder"), 2.0 * budget.lr)
        rates = networks | dict.fromkeys(("prior", "noise"), budget.prior_lr)
        phase = Phase(cls.name, cls, budget.epochs, rates, "cosine", warmup=0.02, weight_decay=0.05)
        return [phase] if budget.epochs else []

    @torch.no_grad()
    def start(self, epoch: Epoch, weights: LatentPosterior | None) -> None:
        for column in {self.what, self.together} - {EACH, ROWS, None}:
            if column not in epoch.rows.columns:
                raise ValueError(
                    f"leave_out can use the columns {', '.join(epoch.rows.columns)}, got {column!r}; name one of those"
                )
        if self.latents.numel():  # a resumed run has them from the checkpoint
            return
        prior, encode = self.model.prior, self.model.autoencoder.encode
        self.latents = torch.zeros(epoch.n_rows, prior.n_latents, dtype=torch.float64, device=prior.device)
        for batch in epoch:
            self.latents[batch.index.to(prior.device)] = prior.to_gp(encode(batch.y, batch.mask)[0])
        epoch.world.sum_([self.latents])

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        prior, autoencoder = self.model.prior, self.model.autoencoder
        slow = SlowGroups(epoch.n_batches, max(1, epoch.n_batches // REFRESHES_PER_EPOCH), "prior", "noise")
        for batch in self._batches(epoch):
            if slow.stepped:
                with torch.no_grad():
                    summed = self.latents.clone()  # batches that follow change the latents of their rows
                    totals = self._sums(epoch.rows, summed)
                    q_all = prior.given(totals)
                    kl = q_all.kl()
            batch_share = len(batch) / epoch.n_rows
            mean, var = autoencoder.encode(batch.y, batch.mask)
            mean64, var64 = prior.to_gp(mean), prior.to_gp(var)  # (B, L) each
            at, predicted, left_out = self._predicted(batch, epoch, totals, summed, mean64)
            z_mean = mean64.index_put((left_out,), predicted.mean)  # q(z | y), replaced where left out, (B, L)
            z_var = var64.index_put((left_out,), predicted.var + predicted.noise)
            terms = LossTerms(
                recon_nll=recon_nll(autoencoder, batch, draw(z_mean, z_var, batch)),
                gp_nll=at.at(q_all).expected_nll(mean64, var64).sum() + batch_share * kl,
                neg_entropy=neg_entropy(var),
                penalty=batch_share * prior.neg_log_prior(),
                n=batch.total,
            )
            terms.backward()
            yield slow.step(terms)

    def _batches(self, epoch: Epoch) -> Iterator[Batch]:
        if self.together is None:
            return iter(epoch)
        return iter(epoch.with_together(epoch.rows.columns[self.together].index.cpu()))

    def _predicted(
        self, batch: Batch, epoch: Epoch, totals: Sums, summed: Tensor, mean: Tensor
    ) -> tuple[RowFeatures, Latents, Tensor]:
        """The GP's prediction for the rows that are left out, given all rows that are not.

        Args:
            totals: over all rows, with the latents `summed`, (N, L).  mean: of q(z | y) in this process, (B, L).

        Returns:
            Features of the rows of this process, the latents of those left out, and their positions, (n,).
        """
        prior, world = self.model.prior, epoch.world
        here = slice(batch.start, batch.start + len(batch))  # this process's part of the batch
        index = world.join(batch.index.to(prior.device), here, batch.total)
        rows, fresh = epoch.rows[index], world.join(mean, here, batch.total)  # of all processes, (batch.total, L)
        target = self._left_out(rows, batch)
        at = prior.features_at(rows)
        with torch.no_grad():  # without the batch, and without rows elsewhere that are left out with it
            others = add(totals, at.sums(summed[index]), -1.0)
            if self.what not in (EACH, ROWS):
                others = add(others, self._elsewhere(epoch.rows, summed, index, rows, target), -1.0)
        self.latents[index] = fresh.detach()
        # Rows left out one by one: condition on all rows of the batch, then remove each by its leverage.
        kept = slice(None) if self.what == EACH else (~target).nonzero().squeeze(1)
        given = add(others, at[kept].sums(fresh[kept]))
        own, left_out = at[here], target[here].nonzero().squeeze(1)
        found = own[left_out].given(given)
        return own, found.leave_one_out(mean[left_out]) if self.what == EACH else found, left_out

    def _left_out(self, rows: Rows, batch: Batch) -> Tensor:
        """Which rows of a batch are left out, (n,) bool; the same on all processes."""
        generator = torch.Generator().manual_seed(derive_seed(batch.seed, 1))
        n, device = len(rows), self.model.prior.device
        if self.what in (EACH, ROWS):
            wanted = min(max(1, round(self.share * n)), n - 1 if n > 1 else 1)
            chosen = torch.zeros(n, dtype=torch.bool)
            chosen[torch.randperm(n, generator=generator)[:wanted]] = True
            return chosen.to(device)
        index = rows.columns[self.what].index
        values = index.unique()
        wanted = min(max(1, round(self.share * len(values))), max(1, len(values) - 1))
        picked = values[torch.randperm(len(values), generator=generator)[:wanted].to(device)]
        return torch.isin(index, picked)

    def _elsewhere(self, rows: Rows, latents: Tensor, batch_index: Tensor, batch_rows: Rows, target: Tensor) -> Sums:
        """Sums over the rows outside the batch whose value of the column is left out, with these latents, (N, L)."""
        gone = torch.isin(rows.columns[self.what].index, batch_rows.columns[self.what].index[target].unique())
        gone[batch_index] = False
        where = gone.nonzero().squeeze(1)
        return self._sums(rows[where], latents[where])

    @torch.no_grad()
    def _sums(self, rows: Rows, latents: Tensor) -> Sums:
        """S and R over rows with these latents, over whole features, a chunk of rows at a time."""
        totals = StatisticsSum()
        for start in range(0, max(len(rows), 1), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            totals.add(self.model.prior.statistics(rows[chunk], latents[chunk]))
        return self.model.prior.over_features(totals.value)

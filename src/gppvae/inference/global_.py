"""Global inference: q(B) is learned directly, without an encoder in the training path."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gppvae.data.batches import Epoch
from gppvae.inference.base import Inference, LossTerms, draw, recon_nll, with_unexplained
from gppvae.inference.phase import Budget, Phase
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.at_rows import ActiveWeights
from gppvae.prior.posterior import DiagonalCovariance, LatentPosterior


class Global(Inference):
    """q(B) = N(m, diag std^2) with m and std learned by mini-batches, together with decoder and kernel:

        sum_n E -log p(y_n | z_n) + KL(q(B) || N(0, I)),   z_n = B'v_n + eta_n,   B ~ q(B)

    The decoder is trained on the latents that it gets in prediction. Source: docs/math.md, "Train path = predict path".

    Args:
        model: the model.
        std: initial standard deviation of the weights; that of their prior is 1.
    Cost: below one plain VAE epoch (no encoder pass) plus O(N H L), H the nonzero features of a row. The optimiser
    steps all weights with every batch.
    """

    name = "global"
    trains_encoder = False
    alpha = 0.001
    identifies_noise = False

    def __init__(self, model: GPPriorVAE, std: float = 0.01) -> None:
        super().__init__(model)
        if not isinstance(std, (int, float)) or not 0.0 < std < math.inf:
            raise ValueError(f"global needs a std above 0, got {std!r}; use for example 0.01")
        sizes = [(group.rank, group.n_latents) for group in model.prior.groups]
        self.means = nn.ParameterList([torch.zeros(size, dtype=torch.float64) for size in sizes])
        self.log_stds = nn.ParameterList([torch.full(size, math.log(std), dtype=torch.float64) for size in sizes])
        self.begun: Tensor
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    @classmethod
    def phases(cls, budget: Budget) -> list[Phase]:
        if budget.epochs == 0:
            return []
        # A decoder trained alone tolerates higher rates than an encoder and a decoder trained together.
        rates = {"decoder": 4.0 * budget.lr, "prior": budget.prior_lr, "weights": budget.prior_lr}
        rates |= {"encoder": budget.lr} if budget.unexplained else {}
        return [
            Phase("global", cls, budget.epochs, rates, "cosine", warmup=0.02, weight_decay=0.05),
            Phase("encoder", Distill, max(1, budget.epochs // 10), {"encoder": 2.0 * budget.lr}, "cosine"),
        ]

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        for mean in self.means:
            mean.copy_(torch.randn(mean.shape, generator=generator, dtype=mean.dtype) / max(len(mean), 1) ** 0.25)

    @torch.no_grad()
    def start(self, epoch: Epoch, weights: LatentPosterior | None) -> None:
        """Start from the q(B) of the phase before if it is mean-field too; a resumed run has its own."""
        parts = [] if weights is None or self.begun else weights.parts
        if all(isinstance(part, DiagonalCovariance) for part in parts):
            for mean, log_std, part in zip(self.means, self.log_stds, parts, strict=False):
                mean.copy_(part.mean)
                log_std.copy_(part.tensors()["std"].log())
        self.begun.fill_(True)

    def posterior(self) -> LatentPosterior:
        parts = zip(self.means, self.log_stds, strict=True)
        return LatentPosterior(tuple(DiagonalCovariance(mean, log_std.exp()) for mean, log_std in parts))

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        prior, autoencoder = self.model.prior, self.model.autoencoder
        rows_of_ids = prior.rows_of_ids(epoch.rows)
        for batch in epoch:
            batch_share = len(batch) / epoch.n_rows
            rows, active = prior.features_at(batch.rows).active(batch_share, rows_of_ids)
            q = self._parts(active)
            kl = [(own.share * part.kl_of_weights()).sum() for own, part in zip(active, q, strict=True)]
            latents = rows.at(LatentPosterior(tuple(q)))  # (B, L)
            z = with_unexplained(self.model, batch, latents.mean, latents.var + latents.noise)
            terms = LossTerms(
                recon_nll=recon_nll(autoencoder, batch, draw(z.mean, z.var, batch)),
                gp_nll=z.gp_nll + functools.reduce(torch.add, kl),
                neg_entropy=z.neg_entropy,
                penalty=batch_share * prior.neg_log_prior(),
                n=batch.total,
            )
            terms.backward()
            yield terms

    def _parts(self, active: list[ActiveWeights]) -> list[DiagonalCovariance]:
        """q of the active weights, group by group."""
        parts = zip(self.means, self.log_stds, active, strict=True)
        return [DiagonalCovariance(mean[own.which], log_std[own.which].exp()) for mean, log_std, own in parts]

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> LatentPosterior:
        return LatentPosterior.from_tensors({name: x.clone() for name, x in self.posterior().tensors().items()})


class Distill(Inference):
    """Fit the encoder to the latents that a finished q(B) predicts for the training rows, all else fixed:

        sum_n -log N(E z_n; mu(y_n), s2(y_n))

    s2 is then the encoder's error variance. Latents without a kernel keep their ELBO, with all others fixed at their
    mean under q(B).
    """

    name = "distill"
    conditions = False
    follows = True
    validated_by = None

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self._weights: LatentPosterior | None = None

    def start(self, epoch: Epoch, weights: LatentPosterior | None) -> None:
        self._weights = weights

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        prior, autoencoder, weights = self.model.prior, self.model.autoencoder, self._weights
        assert weights is not None, "distillation follows a phase that learned q(B)"
        where = prior.unexplained()
        for batch in epoch:
            with torch.no_grad():
                target = prior.at(batch.rows, weights, training=True).mean
            mean, var = map(prior.to_gp, autoencoder.encode(batch.y, batch.mask))
            nll = (mean - target).square() / var + var.log() + math.log(2.0 * math.pi)
            z = with_unexplained(self.model, batch, target, torch.zeros_like(target))
            zero = nll.new_zeros(())
            terms = LossTerms(
                recon_nll=recon_nll(autoencoder, batch, draw(z.mean, z.var, batch)) if where.any() else zero,
                gp_nll=0.5 * nll[:, ~where].sum() + z.gp_nll,
                neg_entropy=z.neg_entropy,
                penalty=zero,
                n=batch.total,
            )
            terms.backward()
            yield terms

    def weights(self, epoch: Epoch) -> LatentPosterior:
        assert self._weights is not None
        return self._weights

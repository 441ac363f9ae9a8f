"""The small interface that every way of fitting shares, and the pieces they all use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from gppvae.data.batches import Batch, Epoch
from gppvae.kernels.features import Features
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import WeightPosterior, condition_on_encoder
from gppvae.prior.statistics import Statistics, StatisticsSum, pull_rows, statistics


@dataclass(frozen=True)
class LossTerms:
    """Terms of the negative bound in nats, summed over `n` samples; detached, for the log.

    Where several processes share a batch, each holds its part of the terms and `n` counts the samples of all.

    Attributes:
        recon_nll: -E log p(y | z).  gp_nll: the prior term, with KL(q(B)) where there is one.
        neg_entropy: -H(q(z | y)).  penalty: -log prior of the kernel's parameters.
        batches: that the gradients of kernel and latent noise stand for, where these do not step with every batch.
    """

    recon_nll: Tensor
    gp_nll: Tensor
    neg_entropy: Tensor
    penalty: Tensor
    n: int
    batches: int = 1

    @classmethod
    def without_encoder(cls, recon: Tensor, kl: Tensor, penalty: Tensor, share: float, n: int) -> LossTerms:
        """Terms of a batch when q(B) is the only variational distribution.

        Args:
            recon: of the rows here.  kl, penalty: whole.  share: the part of all N rows that is here.
            n: rows of the whole batch.
        """
        return cls(recon.detach(), kl.detach() * share, torch.zeros_like(recon), penalty.detach() * share, n)

    def total(self) -> Tensor:
        return self.recon_nll + self.gp_nll + self.neg_entropy + self.penalty

    def named(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("n", "batches")}


class Inference(nn.Module):
    """One way to fit. Its parameters (if any) are variational; its buffers are kept in checkpoints.

    Attributes:
        name: what `inference=` says.  sweeps: passes over the data per epoch, for the progress bar.
        conditions: whether a phase of it ends with q(B) of its own.
        follows: whether it needs the q(B) of a phase before.
    """

    name: str
    sweeps: int = 1
    conditions: bool = False
    follows: bool = False

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        """Called once before the first epoch of a phase, also when a run is resumed inside it.

        Args:
            epoch: the data in its own order.  weights: q(B) of the phase before, if it had one.
        """
        return None

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        """Yield with gradients in `.grad` each time the optimiser shall step.

        Gradients are of the negative bound per sample (divided by N); several processes leave parts of it that
        add up, which the loop does before it steps.
        """
        raise NotImplementedError

    @classmethod
    def batches_between(cls, n_batches: int) -> int | None:
        """Batches until q(B) is conditioned again, of an epoch with so many; None when that is no matter of batches."""
        return None

    def weights(self, epoch: Epoch) -> WeightPosterior | None:
        """q(B) for predictions; None when the model has no GP."""
        raise NotImplementedError


class GPInference(Inference):
    """An inference that encodes all rows and conditions the GP on what the encoder says."""

    conditions = True

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__()
        # A tuple hides the model from nn.Module: its parameters are not this object's.
        self._model = (model,)

    @property
    def model(self) -> GPPriorVAE:
        return self._model[0]

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> WeightPosterior:
        totals = sum_statistics(
            epoch, lambda batch: gp_arguments(self.model, batch, *self.model.autoencoder.encode(batch.y))
        )
        return condition_on_encoder(assemble(totals, *self.model.tables(epoch.rows)))


GPArguments = tuple[Features, Tensor, Tensor | None, Tensor]


def gp_arguments(model: GPPriorVAE, batch: Batch, mean: Tensor, var: Tensor | None) -> GPArguments:
    """What `statistics` takes of a batch: features, latents (and variances) in float64, latent noise."""
    latents = model.to_gp(mean), None if var is None else model.to_gp(var)
    return model.features(batch.rows), *latents, model.noise(batch.rows)


def sum_statistics(epoch: Epoch, arguments: Callable[[Batch], GPArguments]) -> Statistics:
    """Statistics of all rows of an epoch."""
    return sum_over(epoch, lambda batch: statistics(*arguments(batch)))


@torch.no_grad()
def sum_over(epoch: Epoch, part: Callable[[Batch], Statistics]) -> Statistics:
    """Sum over all batches in the memory of one; processes add theirs up once, at the end."""
    totals = StatisticsSum()
    for batch in epoch:
        totals.add(part(batch))
    epoch.world.sum_(totals.value.tensors())
    return totals.value


Known = tuple[Tensor, Tensor | None]


@torch.no_grad()
def known_of_rows(pull: Statistics, arguments: GPArguments) -> list[Known]:
    """What goes into the sums over rows, with its gradients when `pull` is that with respect to the sums."""
    features, *latents_and_noise = arguments
    by = pull_rows(pull, *arguments)
    return [(a, by_a) for a, by_a in zip((features.x, *latents_and_noise), by, strict=True) if a is not None]


def back_propagate(*known: Known) -> None:
    """One backward pass from tensors whose gradients are known; None for the one of a scalar to be minimised."""
    roots = [(tensor, by) for tensor, by in known if tensor.requires_grad]
    if roots:
        torch.autograd.backward([tensor for tensor, _ in roots], [by for _, by in roots])


def reparametrise(mean: Tensor, var: Tensor, batch: Batch) -> Tensor:
    """z = mean + std eps, with the batch's own noise."""
    return torch.addcmul(mean, var.sqrt(), batch.noise(mean.shape[1]))


def neg_entropy(var: Tensor) -> Tensor:
    """-H of the Gaussian q(z | y), summed over the batch: -1/2 sum (log s2 + log 2 pi e)."""
    return -0.5 * (var.log().sum() + var.numel() * (1.0 + math.log(2.0 * math.pi)))


def recon_nll(autoencoder: Autoencoder, batch: Batch, z: Tensor) -> Tensor:
    """-log p(y | z), summed over the batch."""
    return autoencoder.likelihood.nll(batch.y, autoencoder.decode(z), batch.mask).sum()


def draw_latents(mean: Tensor, var: Tensor, noise: Tensor) -> Tensor:
    """z ~ N(mean, var) with this noise, from the GP's type to the networks'."""
    return torch.addcmul(mean.to(noise), var.sqrt().to(noise), noise)

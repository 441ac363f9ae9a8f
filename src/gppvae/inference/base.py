"""The small interface that every way of fitting shares, and the pieces they all use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows
from gppvae.kernels.features import Features
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import WeightPosterior, condition_on_encoder
from gppvae.prior.statistics import Statistics, StatisticsSum, pull_rows, statistics

TOGETHER = 4  # batches that the GP computes with at once


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
        totals = sum_encoded(self.model, epoch, lambda batch: self.model.autoencoder.encode(batch.y))
        return condition_on_encoder(assemble(totals, *self.model.tables(epoch.rows)))


def together(epoch: Epoch) -> Iterator[list[Batch]]:
    """Batches whose rows the GP computes with at once."""
    batches = iter(epoch)
    while some := list(itertools.islice(batches, TOGETHER)):
        yield some


def rows_of(batches: list[Batch]) -> Rows:
    """Of several batches, one after the other, those of this process."""
    return Rows.joined([batch.rows for batch in batches])


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Of several batches, one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def of_each(x: Tensor | None, sizes: list[int]) -> Sequence[Any]:
    """Parts of something per row, of batches of these sizes; what is no matter of rows goes to all."""
    return [x] * len(sizes) if x is None or x.ndim == 0 else x.split(sizes)


GPArguments = tuple[Features, Tensor, Tensor | None, Tensor]
Latents = tuple[Tensor, Tensor | None]


def joined_latents(parts: Sequence[Latents]) -> Latents:
    """Mean and variance, or a sample and None, of several batches."""
    variances = [var for _, var in parts if var is not None]
    return joined([mean for mean, _ in parts]), joined(variances) if variances else None


def gp_arguments(model: GPPriorVAE, rows: Rows, mean: Tensor, var: Tensor | None) -> GPArguments:
    """What `statistics` takes of rows: features, latents (and variances) in float64, latent noise."""
    latents = model.to_gp(mean), None if var is None else model.to_gp(var)
    return model.features(rows), *latents, model.noise(rows)


@torch.no_grad()
def sum_encoded(model: GPPriorVAE, epoch: Epoch, latents: Callable[[Batch], Latents]) -> Statistics:
    """Statistics of all rows of an epoch, whose latents a function gives by batches."""

    def part(batches: list[Batch]) -> Statistics:
        encoded = joined_latents([latents(batch) for batch in batches])
        return statistics(*gp_arguments(model, rows_of(batches), *encoded))

    return sum_over(epoch, part)


@torch.no_grad()
def sum_over(epoch: Epoch, part: Callable[[list[Batch]], Statistics]) -> Statistics:
    """Sum over all batches, a few at a time; processes add theirs up once, at the end."""
    totals = StatisticsSum()
    for batches in together(epoch):
        totals.add(part(batches))
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

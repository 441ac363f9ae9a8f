"""The interface of all inferences, and the terms that their bounds share."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from gppvae.data.batches import Batch, Epoch
from gppvae.data.world import World
from gppvae.inference.phase import Budget, Phase
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.prior.posterior import LatentPosterior
from gppvae.prior.statistics import StatisticsSum, Sums


@dataclass(frozen=True)
class LossTerms:
    """Terms of the negative bound in nats, summed over the samples of a batch.

    Where several processes share a batch, each holds its part of the terms and `n` counts the samples of all.

    Attributes:
        recon_nll: -E log p(y | z).  gp_nll: the prior term, with KL(q(B)) where there is one.
        neg_entropy: -H(q(z | y)).  penalty: -log prior of the kernel's parameters.
        n: samples they stand for.
        waiting: groups of parameters that do not step yet but gather gradients.
        gathered: batches that the gradients of kernel and latent noise stand for.

    Example:
        >>> import torch
        >>> from gppvae import LossTerms
        >>> weight = torch.tensor(3.0, requires_grad=True)
        >>> zero = torch.zeros(())
        >>> terms = LossTerms(weight**2, gp_nll=weight, neg_entropy=zero, penalty=zero, n=2)
        >>> terms.backward()
        >>> weight.grad.item()
        3.5
    """

    recon_nll: Tensor
    gp_nll: Tensor
    neg_entropy: Tensor
    penalty: Tensor
    n: int
    waiting: tuple[str, ...] = ()
    gathered: int = 1

    def backward(self) -> None:
        """Gradients of the bound per sample, in one pass. Terms may live on different devices."""
        back_propagate(*(getattr(self, name) / self.n for name in TERMS))

    def waiting_for(self, *groups: str) -> LossTerms:
        """The same terms; these groups of parameters keep their gradients and do not step yet."""
        return replace(self, waiting=groups)

    def standing_for(self, batches: int) -> LossTerms:
        """The same terms; groups that waited step now, on the gradients of this many batches."""
        return replace(self, gathered=batches)

    def named(self) -> dict[str, Tensor]:
        """Values by name, detached, for the log."""
        return {name: getattr(self, name).detach().clone() for name in TERMS}


TERMS = tuple(field.name for field in fields(LossTerms))[:4]


class SlowGroups:
    """Groups of parameters that step once per several batches of an epoch, on the gradients of all of these.

    Args:
        n_batches: of the epoch.  per_step: batches of a step; those left at the end join the last step.
        groups: their names.
    """

    def __init__(self, n_batches: int, per_step: int, *groups: str) -> None:
        self.per_step, self.groups = per_step, groups
        self._gathered, self._left = 0, n_batches

    @property
    def stepped(self) -> bool:
        """Whether no batch was seen since they last stepped."""
        return self._gathered == 0

    def step(self, terms: LossTerms) -> LossTerms:
        """The terms of the next batch, for the loop to step with: these groups wait, or step if it is their turn."""
        self._gathered += 1
        self._left -= 1
        if self._left and min(self._gathered, self._left) < self.per_step:
            return terms.waiting_for(*self.groups)
        found = terms.standing_for(self._gathered)
        self._gathered = 0
        return found


class Inference(nn.Module, abc.ABC):
    """One way to fit. Its parameters (if any) are variational; its buffers are kept in checkpoints.

    What is special about a class it declares itself, so that a class of your own works wherever a name does.

    Attributes:
        name: in logs, files and `inference=`; by default the name of the class.
        sweeps: passes over the data per epoch, for the progress bar.
        conditions: whether a phase of it ends with a q(B) of its own.
        follows: whether it needs the q(B) of a phase before it.
        trains_encoder: whether the encoder is trained.
        validated_by: "prediction", "reconstruction" or None; predictions fall back on reconstructions at unknown ids.
        alpha: latent noise variance that a fit starts from.
        identifies_noise: whether its bound identifies the latent noise variance. It does not where q(eta) = p(eta):
            then only the reconstruction term depends on it, and favours zero.

    Example:
        >>> from gppvae import Inference
        >>> class Mine(Inference):
        ...     def steps(self, epoch):
        ...         yield from ()
        >>> Mine.name, Mine.conditions, Mine.sweeps
        ('Mine', True, 1)
    """

    name: str
    sweeps: int = 1
    conditions: bool = True
    follows: bool = False
    trains_encoder: bool = True
    validated_by: str | None = "prediction"
    alpha: float = 0.1
    identifies_noise: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__()
        # A tuple hides the model from nn.Module: its parameters are not this object's.
        self._model = (model,)

    @property
    def model(self) -> GPPriorVAE:
        return self._model[0]

    @classmethod
    def phases(cls, budget: Budget) -> list[Phase]:
        """The phases of a fit by this inference: a VAE warm-up, the GP alone, then both together.

        Args:
            budget: epochs and learning rates.
        """
        return [*budget.warm_up(), *budget.joint(cls)]

    def initialise(self, generator: torch.Generator) -> None:
        """Draw random initial values of the parameters; called once, before anything else."""
        return None

    def start(self, epoch: Epoch, weights: LatentPosterior | None) -> None:
        """Called once before the first epoch of a phase, also when a run is resumed inside it.

        Args:
            epoch: the data in its own order.  weights: q(B) of the phase before, if it had one.
        """
        return None

    @abc.abstractmethod
    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        """Yield with gradients in `.grad` each time the optimiser should step.

        Gradients are of the negative bound per sample (divided by N); several processes leave parts of it that
        add up, which the loop does before it steps.
        """

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> LatentPosterior | None:
        """q(B) for predictions, None when the model has no GP; by default conditioned on the encoder's q(z | y)."""
        prior, encode = self.model.prior, self.model.autoencoder.encode
        totals = sum_rows(epoch, lambda batch: prior.statistics(batch.rows, *encode(batch.y, batch.mask)))
        return prior.posterior(totals)


def back_propagate(*losses: Tensor) -> None:
    """One backward pass from all losses that depend on a trained parameter."""
    torch.autograd.backward([loss for loss in losses if loss.requires_grad])


@torch.no_grad()
def sum_rows(epoch: Epoch, part: Callable[[Batch], Sums]) -> Sums:
    """Sums over all rows of an epoch; processes add theirs up once, at the end."""
    totals = StatisticsSum()
    for batch in epoch:
        totals.add(part(batch))
    return over_processes(totals.value, epoch.world)


def over_processes(parts: Sums, world: World) -> Sums:
    """Sums over the rows of all processes, from those over the rows of each."""
    totals = [sums.whole() for sums in parts]
    world.sum_([tensor for sums in totals for tensor in sums.tensors()])
    return totals


def draw(mean: Tensor, var: Tensor, batch: Batch) -> Tensor:
    """z = mean + std eps, with the batch's own noise, in the type and on the device of the networks."""
    eps = batch.noise(mean.shape[1])
    return torch.addcmul(mean.to(eps), var.sqrt().to(eps), eps)


def neg_entropy(var: Tensor) -> Tensor:
    """-H of the Gaussian q(z | y), summed over the batch: -1/2 sum (log s2 + log 2 pi e)."""
    return -0.5 * (var.log().sum() + var.numel() * (1.0 + math.log(2.0 * math.pi)))


def recon_nll(autoencoder: Autoencoder, batch: Batch, z: Tensor) -> Tensor:
    """-log p(y | z), summed over the batch and the members of an ensemble."""
    return autoencoder.training_nll(batch, z).sum()


@dataclass(frozen=True)
class Unexplained:
    """Latents for the decoder: the GP's posterior, and the encoder's q(z | y) for those without a kernel.

    Attributes:
        mean, var: of z, the GP's latents and the encoder's in their places, (B, L) each.
        gp_nll, neg_entropy: terms of the bound that the encoder's latents add.
    """

    mean: Tensor
    var: Tensor
    gp_nll: Tensor
    neg_entropy: Tensor


def with_unexplained(model: GPPriorVAE, batch: Batch, mean: Tensor, var: Tensor) -> Unexplained:
    """Put q(z | y) in the place of the latents without a kernel; the encoder runs only if there are any.

    Args:
        mean, var: of z as the GP has it, (B, L) each.
    """
    where, zero = model.prior.unexplained(), mean.new_zeros(())
    if not where.any():
        return Unexplained(mean, var, zero, zero)
    q_mean, q_var = map(model.prior.to_gp, model.autoencoder.encode(batch.y, batch.mask))
    own_mean, own_var = q_mean[:, where], q_var[:, where]
    gp_nll = standard_normal_nll(own_mean, own_var)
    mixed = torch.where(where, q_mean, mean), torch.where(where, q_var, var)
    return Unexplained(*mixed, gp_nll, neg_entropy(own_var))


def standard_normal_nll(mean: Tensor, var: Tensor) -> Tensor:
    """E[-log N(z; 0, I)] = 1/2 sum (mu^2 + s2 + log 2 pi) for z ~ N(mean, var), summed over all entries."""
    return 0.5 * ((mean.square() + var).sum() + mean.numel() * math.log(2.0 * math.pi))

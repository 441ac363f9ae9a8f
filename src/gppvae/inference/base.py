"""The interface of all inferences, and terms that several bounds have."""

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
        n: number of samples in the sums.
        waiting: parameter groups that accumulate gradients and do not step with this batch.
        gathered: number of batches whose gradients the groups that waited have accumulated.

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
        """Gradients of the negative bound per sample, in one backward pass. Terms may be on different devices."""
        back_propagate(*(getattr(self, name) / self.n for name in TERMS))

    def waiting_for(self, *groups: str) -> LossTerms:
        """The same terms; these parameter groups accumulate their gradients and do not step."""
        return replace(self, waiting=groups)

    def standing_for(self, batches: int) -> LossTerms:
        """The same terms; groups that waited now step, on the gradients of this many batches."""
        return replace(self, gathered=batches)

    def named(self) -> dict[str, Tensor]:
        """Values by name, detached, for the log."""
        return {name: getattr(self, name).detach().clone() for name in TERMS}


TERMS = tuple(field.name for field in fields(LossTerms))[:4]


class SlowGroups:
    """Parameter groups that step once per several batches of an epoch, on their accumulated gradients.

    Args:
        n_batches: of the epoch.  per_step: batches of a step; a remainder at the end joins the last step.
        groups: names of the parameter groups.
    """

    def __init__(self, n_batches: int, per_step: int, *groups: str) -> None:
        self.per_step, self.groups = per_step, groups
        self._gathered, self._left = 0, n_batches

    @property
    def stepped(self) -> bool:
        """Whether they stepped with the last batch, or the epoch begins."""
        return self._gathered == 0

    def step(self, terms: LossTerms) -> LossTerms:
        """The terms of the next batch, marked so that the loop lets these groups wait or step."""
        self._gathered += 1
        self._left -= 1
        if self._left and min(self._gathered, self._left) < self.per_step:
            return terms.waiting_for(*self.groups)
        found = terms.standing_for(self._gathered)
        self._gathered = 0
        return found


class Inference(nn.Module, abc.ABC):
    """One way to fit: a negative bound per batch, and q(B).

    Its parameters (if any) are variational; its buffers are part of checkpoints. A class declares its properties as
    class attributes, so that your own class can be passed wherever a name can.

    Attributes:
        name: in logs, files and `inference=`; by default the name of the class.
        sweeps: passes over the data per epoch, for the progress bar.
        conditions: whether a phase of it ends with a new q(B).
        follows: whether it needs the q(B) of the phase before.
        trains_encoder: whether the encoder is trained.
        validated_by: "prediction", "reconstruction" or None; at unknown ids, reconstruction instead of prediction.
        alpha: initial latent noise variance of a fit.
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
        # In a tuple, so that nn.Module does not register the model's parameters as this object's.
        self._model = (model,)

    @property
    def model(self) -> GPPriorVAE:
        return self._model[0]

    @classmethod
    def phases(cls, budget: Budget) -> list[Phase]:
        """The phases of a fit by this inference; by default a VAE warm-up, the GP alone, then both together.

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
            epoch: the data in the order of the table.  weights: q(B) of the phase before, if it had one.
        """
        return None

    @abc.abstractmethod
    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        """Yield with gradients in `.grad` each time the optimiser should step.

        Gradients are of the negative bound divided by N. With several processes each has its part of them, and the loop
        sums these before it steps.
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
    """Sums over all rows of an epoch, and over processes once, at the end."""
    totals = StatisticsSum()
    for batch in epoch:
        totals.add(part(batch))
    return over_processes(totals.value, epoch.world)


def over_processes(parts: Sums, world: World) -> Sums:
    """Sums over the rows of all processes, from those over the rows of this one."""
    totals = [sums.whole() for sums in parts]
    world.sum_([tensor for sums in totals for tensor in sums.tensors()])
    return totals


def draw(mean: Tensor, var: Tensor, batch: Batch) -> Tensor:
    """z = mean + std eps, with the noise of the batch, in the type and on the device of the networks, (B, L)."""
    eps = batch.noise(mean.shape[1])  # (B, L)
    return torch.addcmul(mean.to(eps), var.sqrt().to(eps), eps)


def neg_entropy(var: Tensor) -> Tensor:
    """-H of the Gaussian q(z | y), summed over the batch: -1/2 sum (log s2 + log 2 pi e)."""
    return -0.5 * (var.log().sum() + var.numel() * (1.0 + math.log(2.0 * math.pi)))


def recon_nll(autoencoder: Autoencoder, batch: Batch, z: Tensor) -> Tensor:
    """-log p(y | z), summed over the batch and the members of an ensemble."""
    return autoencoder.training_nll(batch, z).sum()


@dataclass(frozen=True)
class Unexplained:
    """Latents for the decoder: q(z | y) of the encoder for those without a kernel, the GP posterior for all others.

    Attributes:
        mean, var: of z, (B, L) each.
        gp_nll, neg_entropy: -E log N(z; 0, I) and -H of the latents without a kernel.
    """

    mean: Tensor
    var: Tensor
    gp_nll: Tensor
    neg_entropy: Tensor


def with_unexplained(model: GPPriorVAE, batch: Batch, mean: Tensor, var: Tensor) -> Unexplained:
    """Replace the latents without a kernel by q(z | y); the encoder runs only if there are any.

    Args:
        mean, var: of z under the GP posterior, (B, L) each.
    """
    where, zero = model.prior.unexplained(), mean.new_zeros(())  # (L,) bool
    if not where.any():
        return Unexplained(mean, var, zero, zero)
    q_mean, q_var = map(model.prior.to_gp, model.autoencoder.encode(batch.y, batch.mask))
    own_mean, own_var = q_mean[:, where], q_var[:, where]  # (B, L_0)
    gp_nll = standard_normal_nll(own_mean, own_var)
    mixed = torch.where(where, q_mean, mean), torch.where(where, q_var, var)
    return Unexplained(*mixed, gp_nll, neg_entropy(own_var))


def standard_normal_nll(mean: Tensor, var: Tensor) -> Tensor:
    """E[-log N(z; 0, I)] = 1/2 sum (mu^2 + s2 + log 2 pi) for z ~ N(mean, var), summed over all entries."""
    return 0.5 * ((mean.square() + var).sum() + mean.numel() * math.log(2.0 * math.pi))

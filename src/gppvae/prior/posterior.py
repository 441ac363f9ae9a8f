"""The posterior of the weights B, z = B'v + noise: condition once, then ask anywhere."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.lowrank import Assembled


class WeightPosterior(abc.ABC):
    """q(B) = prod_l N(m_l, Sigma_l), with m (H, L)."""

    mean: Tensor

    def mean_at(self, V: Tensor) -> Tensor:
        """E f at feature rows, (N, L). Cost O(N H L)."""
        return V @ self.mean

    @abc.abstractmethod
    def var_at(self, V: Tensor) -> Tensor:
        """Var f at feature rows, (N, L) or (N, 1) when it is the same for all latent dimensions."""

    @abc.abstractmethod
    def sum_of_covariances(self) -> Tensor:
        """sum_l Sigma_l, (H, H), without a gradient."""

    @abc.abstractmethod
    def times_root(self, eps: Tensor) -> Tensor:
        """Sigma^(1/2) eps per latent dimension, (H, L)."""

    @abc.abstractmethod
    def kl(self) -> Tensor:
        """KL(q(B) || N(0, I)), summed over latent dimensions."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of B, (H, L): a whole function, to be evaluated at any rows."""
        eps = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype)
        return self.mean + self.times_root(eps.to(self.mean.device))

    @abc.abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What `weight_posterior` needs to build it again."""


@dataclass(frozen=True)
class SharedCovariance(WeightPosterior):
    """Every latent dimension has the same Sigma = root root'.

    Attributes:
        mean: (H, L).  root: (H, H).  logdet: log |Sigma|, ().
    """

    mean: Tensor
    root: Tensor
    logdet: Tensor

    def var_at(self, V: Tensor) -> Tensor:
        return (V @ self.root).square().sum(1, keepdim=True)

    def sum_of_covariances(self) -> Tensor:
        root = self.root.detach()
        return (root @ root.T).mul_(self.mean.shape[1])

    def times_root(self, eps: Tensor) -> Tensor:
        return self.root @ eps

    def kl(self) -> Tensor:
        H, L = self.mean.shape
        return 0.5 * (self.mean.square().sum() + L * (self.root.square().sum() - H - self.logdet))

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "root": self.root, "logdet": self.logdet}


@dataclass(frozen=True)
class DiagonalCovariance(WeightPosterior):
    """Every weight has a standard deviation of its own: mean and std (H, L)."""

    mean: Tensor
    std: Tensor

    def var_at(self, V: Tensor) -> Tensor:
        return V.square() @ self.std.square()

    def sum_of_covariances(self) -> Tensor:
        return torch.diag(self.std.detach().square().sum(1))

    def times_root(self, eps: Tensor) -> Tensor:
        return self.std * eps

    def kl(self) -> Tensor:
        var = self.std.square()
        return 0.5 * (self.mean.square() + var - 1.0 - var.log()).sum()

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std}


def weight_posterior(tensors: dict[str, Tensor]) -> WeightPosterior:
    """The posterior whose `tensors()` these are."""
    return DiagonalCovariance(**tensors) if "std" in tensors else SharedCovariance(**tensors)


def condition(full: Assembled) -> SharedCovariance:
    """Exact posterior of B given latents observed at the encoder means: m = C^-1 R, Sigma = C^-1.

    Cost O(H^3 + H^2 L). Source: docs/math.md, "A bound that factorises".
    """
    L_C = full.capacitance_cholesky()
    eye = torch.eye(L_C.shape[0], dtype=L_C.dtype, device=L_C.device)
    root = torch.linalg.solve_triangular(L_C.T, eye, upper=True)
    return SharedCovariance(torch.cholesky_solve(full.R, L_C), root, -2.0 * L_C.diagonal().log().sum())


def condition_on_encoder(full: Assembled) -> SharedCovariance:
    """As `condition`, with the encoder's own uncertainty in Z integrated out.

    The mean moves with Z by C^-1 V'D^-1 dZ, so Sigma = C^-1 (C + T/L) C^-1, the variances s2 averaged over
    latent dimensions. Source: Casale et al. 2018, Eq. 8 (predictive posterior).
    """
    if full.T is None:
        return condition(full)
    L_C = full.capacitance_cholesky()
    eye = torch.eye(L_C.shape[0], dtype=L_C.dtype, device=L_C.device)
    L_T = torch.linalg.cholesky(full.S + eye + full.T / full.R.shape[1])
    logdet = 2.0 * L_T.diagonal().log().sum() - 4.0 * L_C.diagonal().log().sum()
    return SharedCovariance(torch.cholesky_solve(full.R, L_C), torch.cholesky_solve(L_T, L_C), logdet)


def prior_weights(rank: int, n_latents: int, device: torch.device | str = "cpu") -> SharedCovariance:
    """q(B) before any data: N(0, I)."""
    zeros = torch.zeros(rank, n_latents, dtype=torch.float64, device=device)
    return SharedCovariance(zeros, torch.eye(rank, dtype=torch.float64, device=device), zeros.new_zeros(()))

"""The posterior of the weights B, z = B'v + noise: condition once, then ask anywhere."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
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

    def covariance_at(self, V: Tensor) -> Tensor:
        """Covariance of f between latent dimensions at each feature row, (N, L, L); diagonal unless said otherwise."""
        return torch.diag_embed(self.var_at(V).expand(len(V), self.mean.shape[1]))

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
        """What `LatentPosterior.from_tensors` needs to build it again."""


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

    def times_root(self, eps: Tensor) -> Tensor:
        return self.std * eps

    def kl(self) -> Tensor:
        var = self.std.square()
        return 0.5 * (self.mean.square() + var - 1.0 - var.log()).sum()

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std}


@dataclass(frozen=True)
class RotatedCovariance(WeightPosterior):
    """Independent along L orthogonal directions u_k of the latents: B = m + sum_k Sigma_k^(1/2) eps_k u_k'.

    Directions next to each other in order may share a Sigma: direction k has root number k R // L.

    Attributes:
        mean: (H, L).  basis: U, directions as columns, (L, L).
        roots: of Sigma, (R, H, H).  logdets: log |Sigma|, (R,).
    """

    mean: Tensor
    basis: Tensor
    roots: Tensor
    logdets: Tensor

    @property
    def shared(self) -> Tensor:
        """Which Sigma each direction has, (L,)."""
        L, R = self.mean.shape[1], len(self.roots)
        return torch.arange(L, device=self.mean.device) * R // L

    def var_along(self, V: Tensor) -> Tensor:
        """Var of f along each direction at feature rows, (N, L). Cost O(N R H^2)."""
        each = torch.stack([(V @ root).square().sum(1) for root in self.roots], dim=1)
        return each[:, self.shared]

    def var_at(self, V: Tensor) -> Tensor:
        return self.var_along(V) @ self.basis.square().T

    def covariance_at(self, V: Tensor) -> Tensor:
        return (self.basis * self.var_along(V).unsqueeze(1)) @ self.basis.T

    def times_root(self, eps: Tensor) -> Tensor:
        along = torch.stack([self.roots[k] @ eps[:, n] for n, k in enumerate(self.shared.tolist())], dim=1)
        return along @ self.basis.T

    def kl(self) -> Tensor:
        traces = self.roots.square().sum((1, 2)) - self.mean.shape[0] - self.logdets
        return 0.5 * (self.mean.square().sum() + traces[self.shared].sum())

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "basis": self.basis, "roots": self.roots, "logdets": self.logdets}


def condition(full: Assembled) -> SharedCovariance:
    """Posterior of B given the latents that were summed: m = C^-1 R, Sigma = C^-1.

    Where the encoder's variances were summed too, its uncertainty in Z is integrated out: the mean moves with Z by
    C^-1 V'D^-1 dZ, so Sigma = C^-1 (C + T/L) C^-1, the variances s2 averaged over latent dimensions.
    Source: Casale et al. 2018, Eq. 8 (predictive posterior); docs/math.md, "A bound that factorises".

    Cost: O(H^3 + H^2 L).
    """
    L_C = full.capacitance_cholesky()
    eye = torch.eye(L_C.shape[0], dtype=L_C.dtype, device=L_C.device)
    mean, logdet = torch.cholesky_solve(full.R, L_C), -2.0 * L_C.diagonal().log().sum()
    if full.T is None:
        return SharedCovariance(mean, torch.linalg.solve_triangular(L_C.T, eye, upper=True), logdet)
    L_T = torch.linalg.cholesky(full.S + eye + full.T / full.R.shape[1])
    return SharedCovariance(mean, torch.cholesky_solve(L_T, L_C), 2.0 * (L_T.diagonal().log().sum() + logdet))


@dataclass(frozen=True)
class LatentPosterior:
    """q(B) of every group of latents.

    Attributes:
        parts: one per group, in the order of the latents.
    """

    parts: tuple[WeightPosterior, ...]

    @property
    def means(self) -> list[Tensor]:
        """Mean of B per group, (H_g, L_g) each."""
        return [part.mean for part in self.parts]

    def kl(self) -> Tensor:
        """KL(q(B) || N(0, I)), summed over groups."""
        return functools.reduce(torch.add, [part.kl() for part in self.parts])

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        """One draw of B per group, (H_g, L_g) each: a whole function, to be evaluated at any rows."""
        return [part.sample(generator) for part in self.parts]

    def check(self, sizes: list[tuple[int, int]]) -> None:
        """Raise ValueError unless there is one finite float64 part for each group of H weights for L latents.

        Args:
            sizes: (H, L) of each group.
        """
        if len(self.parts) != len(sizes):
            raise ValueError(f"q(B) must have {len(sizes)} groups, got {len(self.parts)}")
        for part, (H, L) in zip(self.parts, sizes, strict=True):
            R = len(part.roots) if isinstance(part, RotatedCovariance) else 0
            shapes = {"mean": (H, L), "std": (H, L), "root": (H, H), "logdet": ()}
            shapes |= {"basis": (L, L), "roots": (R, H, H), "logdets": (R,)}
            for name, value in part.tensors().items():
                if tuple(value.shape) != shapes[name] or value.dtype != torch.float64 or not value.isfinite().all():
                    raise ValueError(f"{name} of q(B) must be finite and of shape {shapes[name]}")
                if name == "basis" and not torch.allclose(value @ value.T, torch.eye(L).to(value), atol=1e-6):
                    raise ValueError("the directions of q(B) must be orthogonal and of length one")
                if name == "roots" and not 1 <= R <= L:
                    raise ValueError(f"q(B) of {L} latents must have 1 to {L} covariances, got {R}")
                if name == "std" and (value < 0).any():
                    raise ValueError("a standard deviation of q(B) must not be negative")

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` needs to build it again."""
        return {f"{number}.{name}": x for number, part in enumerate(self.parts) for name, x in part.tensors().items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> LatentPosterior:
        """The posterior whose `tensors()` these are."""
        found: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            number, _, key = name.partition(".")
            found.setdefault(int(number), {})[key] = value
        return cls(tuple(_kind(found[number])(**found[number]) for number in sorted(found)))


def _kind(tensors: dict[str, Tensor]) -> Callable[..., WeightPosterior]:
    """The form of covariance that has these tensors."""
    if "std" in tensors:
        return DiagonalCovariance
    return RotatedCovariance if "basis" in tensors else SharedCovariance

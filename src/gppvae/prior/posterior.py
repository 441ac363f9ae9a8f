"""The posterior of the weights B, with f = B'v and z = f + noise: condition once, evaluate anywhere."""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gppvae.prior.arrowhead import Arrowhead, ArrowheadSums, Factor
from gppvae.prior.blocks import BlockFeatures, Places
from gppvae.prior.linalg import eye_like, inverse_root
from gppvae.prior.lowrank import Assembled

FACTOR_PARTS = ("own", "arms", "shared")  # of an arrowhead, in files
Features = Tensor | BlockFeatures  # V, (N, H)


def minus(left: Features, right: Features) -> Features:
    """Difference of the features of the same rows."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left - right
    assert isinstance(left, BlockFeatures) and isinstance(right, BlockFeatures), "one group has one kind of features"
    return replace(left, shared=left.shared - right.shared, own=left.own - right.own)


class WeightPosterior(abc.ABC):
    """q(B) for one group of latents, Gaussian, with mean m (H, L); by default prod_l N(m_l, Sigma_l).

    At features v: E f = m'v,   Var f_l = v'Sigma_l v.
    """

    mean: Tensor

    def mean_at(self, V: Features) -> Tensor:
        """E f = V m at rows, (N, L). Cost O(N H L)."""
        return V @ self.mean

    @abc.abstractmethod
    def var_at(self, V: Features) -> Tensor:
        """Var f at rows, (N, L), or (N, 1) when it is the same for all latent dimensions."""

    def covariance_at(self, V: Features) -> Tensor:
        """Covariance of f between latent dimensions at each row, (N, L, L); diagonal by default."""
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

    def tensors(self) -> dict[str, Tensor]:
        """What `LatentPosterior.from_tensors` rebuilds it from; by default all fields."""
        return dict(vars(self))

    @abc.abstractmethod
    def shapes(self, H: int, L: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the float64 tensors among `tensors`, for H weights of L latents."""

    def check(self, H: int, L: int, places: Places | None) -> None:
        """Raise ValueError unless this is a finite q(B) of H weights for L latents.

        Args:
            places: positions of the shared and the per-id weights in the kernel; None without block algebra.
        """
        tensors = self.tensors()
        for name, shape in self.shapes(H, L).items():
            value = tensors[name]
            if tuple(value.shape) != shape or value.dtype != torch.float64 or not value.isfinite().all():
                raise ValueError(f"{name} of q(B) must be finite and of shape {shape}")


@dataclass(frozen=True)
class SharedCovariance(WeightPosterior):
    """Every latent dimension has the same Sigma = root root'.

    Attributes:
        mean: (H, L).  root: (H, H).  logdet: log |Sigma|, ().
    """

    mean: Tensor
    root: Tensor
    logdet: Tensor

    def var_at(self, V: Features) -> Tensor:
        return (V @ self.root).square().sum(1, keepdim=True)  # diag(V root root'V'), (N, 1)

    def times_root(self, eps: Tensor) -> Tensor:
        return self.root @ eps

    def kl(self) -> Tensor:
        H, L = self.mean.shape
        return 0.5 * (self.mean.square().sum() + L * (self.root.square().sum() - H - self.logdet))

    def shapes(self, H: int, L: int) -> dict[str, tuple[int, ...]]:
        return {"mean": (H, L), "root": (H, H), "logdet": ()}


@dataclass(frozen=True)
class DiagonalCovariance(WeightPosterior):
    """Mean-field q(B): all weights independent, mean and std (H, L)."""

    mean: Tensor
    std: Tensor

    def var_at(self, V: Features) -> Tensor:
        return V.square() @ self.std.square()  # (N, H) (H, L)

    def times_root(self, eps: Tensor) -> Tensor:
        return self.std * eps

    def kl_of_weights(self) -> Tensor:
        """KL of every single weight, 1/2 (m^2 + s^2 - 1 - log s^2), (H, L)."""
        var = self.std.square()
        return 0.5 * (self.mean.square() + var - 1.0 - var.log())

    def kl(self) -> Tensor:
        return self.kl_of_weights().sum()

    def shapes(self, H: int, L: int) -> dict[str, tuple[int, ...]]:
        return {"mean": (H, L), "std": (H, L)}

    def check(self, H: int, L: int, places: Places | None) -> None:
        super().check(H, L, places)
        if (self.std < 0).any():
            raise ValueError("a standard deviation of q(B) must not be negative")


@dataclass(frozen=True)
class BlockCovariance(WeightPosterior):
    """Every latent dimension has the same Sigma = C^-1 W C^-1, C and W arrowheads over the ids of a column.

    Attributes:
        mean: (H, L).  C: I + S, factored.  W: C + T/L, factored; the same object when no variances were summed.
        places: of the weights.
    """

    mean: Tensor
    C: Factor
    W: Factor
    places: Places

    @functools.cached_property
    def blocks(self) -> Arrowhead:
        """The blocks of Sigma that variances at rows need."""
        return self.C.inverse() if self.W is self.C else self.C.sandwich(self.W.matrix())

    def var_at(self, V: Features) -> Tensor:
        if isinstance(V, Tensor):  # averages over rows have nonzero features of several ids
            return _quadratic(self.C, self.W, self.places, V).unsqueeze(1)
        # v'Sigma v from the blocks of Sigma at the row's nonzero entries; rounding may take it below 0.
        return (V.x * self.blocks.at(V.shared, V.own, V.block)).sum(1, keepdim=True).clamp_min(0.0)

    def times_root(self, eps: Tensor) -> Tensor:
        return self.places.put(*self.C.solve(self.W.times(self.places.take(eps))), eps)  # C^-1 W^(1/2) eps

    def kl(self) -> Tensor:
        L, logdet = self.mean.shape[1], self.W.logdet() - 2.0 * self.C.logdet()  # log |C^-1 W C^-1|
        return 0.5 * (self.mean.square().sum() + L * (self.blocks.trace() - self.places.n_weights - logdet))

    def tensors(self) -> dict[str, Tensor]:
        factors = {"C": self.C} if self.W is self.C else {"C": self.C, "W": self.W}
        named = {f"{name}_{part}": getattr(factor, part) for name, factor in factors.items() for part in FACTOR_PARTS}
        return {"mean": self.mean, "places_shared": self.places.shared, "places_own": self.places.own} | named

    def shapes(self, H: int, L: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {"mean": (H, L)}
        for name in "C" if self.W is self.C else "CW":
            found |= {f"{name}_{part}": shape for part, shape in _factor_shapes(self.places).items()}
        return found

    def check(self, H: int, L: int, places: Places | None) -> None:
        _check_places(self.places, places)
        super().check(H, L, places)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> BlockCovariance:
        """The posterior whose `tensors()` these are."""
        C, W = (Factor(*(tensors[f"{name}_{part}"] for part in FACTOR_PARTS)) if f"{name}_own" in tensors else None
                for name in "CW")  # fmt: skip
        assert C is not None
        return cls(tensors["mean"], C, W or C, Places(tensors["places_shared"], tensors["places_own"]))


def _quadratic(C: Factor, W: Factor, places: Places, V: Tensor) -> Tensor:
    """v'C^-1 W C^-1 v for dense rows v of V, (N,)."""
    v_0, v_p = places.take(V.T)  # (H0, N), (P, R, N)
    m = C.solve((v_0, v_p))  # C^-1 v
    w_0, w_p = (v_0, v_p) if W is C else W.matrix().times_tall(m)  # W C^-1 v
    return (m[0] * w_0).sum(0) + (m[1] * w_p).sum((0, 1))


def condition_blocks(full: ArrowheadSums, places: Places, rank: int) -> BlockCovariance:
    """As `condition`, where C is an arrowhead. Cost: O(P R (R + H0) (R + H0 + L)), H0 the shared features.

    Args:
        rank: H.
    """
    S = full.S.plus_identity()  # I + S
    C, L = S.factor(), full.R[0].shape[1]
    mean = places.put(*C.solve(full.R), full.R[0].new_zeros(rank, L))
    return BlockCovariance(mean, C, C if full.T is None else S.plus(full.T, 1.0 / L).factor(), places)


class Rotated(WeightPosterior):
    """q(B) independent along L orthogonal directions u_k of the latents: B = m + sum_k Sigma_k^(1/2) eps_k u_k'.

    Adjacent directions may share a covariance: with K covariances, direction k has covariance k K // L.

    Attributes:
        basis: U, directions as columns, (L, L).
    """

    basis: Tensor

    @property
    @abc.abstractmethod
    def n_covariances(self) -> int:
        """K."""

    @abc.abstractmethod
    def each_var_at(self, V: Features) -> Tensor:
        """v'Sigma_k v at rows, (N, K)."""

    @abc.abstractmethod
    def each_covariance(self, several: list[Features]) -> Tensor:
        """v_i'Sigma_k v_j between J feature vectors at each of N rows, (N, K, J, J).

        Args:
            several: J matrices of features (N, H); with blocks, row n of all of them has the same id.
        """

    @abc.abstractmethod
    def times_each_root(self, number: int, eps: Tensor) -> Tensor:
        """Sigma_k^(1/2) eps, (H, n)."""

    @abc.abstractmethod
    def each_kl(self) -> Tensor:
        """tr Sigma_k - H - log |Sigma_k|, twice the KL without the mean, (K,)."""

    @property
    def covariance_index(self) -> Tensor:
        """Number of the covariance of each direction, (L,)."""
        L = self.mean.shape[1]
        return torch.arange(L, device=self.mean.device) * self.n_covariances // L

    def var_along(self, V: Features) -> Tensor:
        """Var u_k'f at rows, (N, L)."""
        return self.each_var_at(V)[:, self.covariance_index]  # (N, K) -> (N, L)

    def var_at(self, V: Features) -> Tensor:
        return self.var_along(V) @ self.basis.square().T  # sum_k u_lk^2 Var u_k'f

    def covariance_at(self, V: Features) -> Tensor:
        return (self.basis * self.var_along(V).unsqueeze(1)) @ self.basis.T  # U diag(Var) U', (N, L, L)

    def times_root(self, eps: Tensor) -> Tensor:
        numbers = enumerate(self.covariance_index.tolist())
        along = torch.cat([self.times_each_root(k, eps[:, n : n + 1]) for n, k in numbers], dim=1)
        return along @ self.basis.T  # (H, L directions) -> (H, L latents)

    def kl(self) -> Tensor:
        return 0.5 * (self.mean.square().sum() + self.each_kl()[self.covariance_index].sum())

    def check(self, H: int, L: int, places: Places | None) -> None:
        super().check(H, L, places)
        if not torch.allclose(self.basis @ self.basis.T, torch.eye(L).to(self.basis), atol=1e-6):
            raise ValueError("the directions of q(B) must be orthogonal and of length one")
        if not 1 <= self.n_covariances <= L:
            raise ValueError(f"q(B) of {L} latents must have 1 to {L} covariances, got {self.n_covariances}")


@dataclass(frozen=True)
class RotatedCovariance(Rotated):
    """Dense covariances Sigma_k = root_k root_k'.

    Attributes:
        mean: (H, L).  basis: (L, L).  roots: of Sigma, (K, H, H).  logdets: log |Sigma|, (K,).
    """

    mean: Tensor
    basis: Tensor
    roots: Tensor
    logdets: Tensor

    @property
    def n_covariances(self) -> int:
        return len(self.roots)

    def each_var_at(self, V: Features) -> Tensor:
        return torch.stack([(V @ root).square().sum(1) for root in self.roots], dim=1)  # (N, K)

    def each_covariance(self, several: list[Features]) -> Tensor:
        V = torch.stack([row for row in several if isinstance(row, Tensor)], dim=1)  # (N, J, H)
        return torch.stack([V @ root @ (V @ root).mT for root in self.roots], dim=1)  # (N, K, J, J)

    def times_each_root(self, number: int, eps: Tensor) -> Tensor:
        return self.roots[number] @ eps

    def each_kl(self) -> Tensor:
        return self.roots.square().sum((1, 2)) - self.mean.shape[0] - self.logdets

    def shapes(self, H: int, L: int) -> dict[str, tuple[int, ...]]:
        K = self.n_covariances
        return {"mean": (H, L), "basis": (L, L), "roots": (K, H, H), "logdets": (K,)}


@dataclass(frozen=True)
class RotatedBlocks(Rotated):
    """Sigma_k = C_k^-1 with C_k arrowheads over the ids of a column.

    Attributes:
        mean: (H, L).  basis: (L, L).  factors: of C_k, K of them.  places: of the weights.
    """

    mean: Tensor
    basis: Tensor
    factors: tuple[Factor, ...]
    places: Places

    @property
    def n_covariances(self) -> int:
        return len(self.factors)

    @functools.cached_property
    def blocks(self) -> list[Arrowhead]:
        """The blocks of each Sigma that variances at rows need."""
        return [C.inverse() for C in self.factors]

    def each_var_at(self, V: Features) -> Tensor:
        if isinstance(V, Tensor):  # averages over rows have nonzero features of several ids
            return torch.stack([_quadratic(C, C, self.places, V) for C in self.factors], dim=1)
        each = [(V.x * Sigma.at(V.shared, V.own, V.block)).sum(1) for Sigma in self.blocks]
        return torch.stack(each, dim=1).clamp_min(0.0)  # (N, K)

    def each_covariance(self, several: list[Features]) -> Tensor:
        rows = [V for V in several if isinstance(V, BlockFeatures)]
        x = torch.stack([V.x for V in rows], dim=1)  # (N, J, H0 + R)
        each = [torch.stack([Sigma.at(V.shared, V.own, V.block) for V in rows], dim=1) for Sigma in self.blocks]
        return torch.stack([x @ products.mT for products in each], dim=1)  # (N, K, J, J)

    def times_each_root(self, number: int, eps: Tensor) -> Tensor:
        C = self.factors[number]
        return self.places.put(*C.solve(C.times(self.places.take(eps))), eps)  # C^-1 C^(1/2) eps

    def each_kl(self) -> Tensor:
        each = [Sigma.trace() + C.logdet() for Sigma, C in zip(self.blocks, self.factors, strict=True)]
        return torch.stack(each) - self.places.n_weights

    def tensors(self) -> dict[str, Tensor]:
        found = {"mean": self.mean, "basis": self.basis}
        found |= {"places_shared": self.places.shared, "places_own": self.places.own}
        return found | {f"C_{part}": torch.stack([getattr(C, part) for C in self.factors]) for part in FACTOR_PARTS}

    def shapes(self, H: int, L: int) -> dict[str, tuple[int, ...]]:
        factors = {f"C_{part}": (self.n_covariances, *shape) for part, shape in _factor_shapes(self.places).items()}
        return {"mean": (H, L), "basis": (L, L)} | factors

    def check(self, H: int, L: int, places: Places | None) -> None:
        _check_places(self.places, places)
        super().check(H, L, places)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> RotatedBlocks:
        """The posterior whose `tensors()` these are."""
        factors = tuple(Factor(*parts) for parts in zip(*(tensors[f"C_{part}"] for part in FACTOR_PARTS), strict=True))
        places = Places(tensors["places_shared"], tensors["places_own"])
        return cls(tensors["mean"], tensors["basis"], factors, places)


def condition(full: Assembled) -> SharedCovariance:
    """Posterior of B given sums over the latents: m = C^-1 R, Sigma = C^-1.

    If the encoder's variances were summed too (T), its uncertainty about Z is integrated out: m changes with Z by
    C^-1 V'D^-1 dZ, so Sigma = C^-1 (C + T/L) C^-1, the variances s2 averaged over latent dimensions.
    Source: Casale et al. 2018, Eq. 8 (predictive posterior); docs/math.md, "A bound that factorises".

    Cost: O(H^3 + H^2 L).
    """
    C = full.S + eye_like(full.S)
    L_C = torch.linalg.cholesky(C)
    mean, logdet = torch.cholesky_solve(full.R, L_C), -2.0 * L_C.diagonal().log().sum()  # m, log |C^-1|
    if full.T is None:
        return SharedCovariance(mean, inverse_root(L_C), logdet)
    L_T = torch.linalg.cholesky(C + full.T / full.R.shape[1])  # root of C + T/L
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

    def check(self, sizes: list[tuple[int, int, Places | None]]) -> None:
        """Raise ValueError unless there is one finite float64 part for each group of H weights for L latents.

        Args:
            sizes: H, L and the places of weights in blocks, if there are any, of each group.
        """
        if len(self.parts) != len(sizes):
            raise ValueError(f"q(B) must have {len(sizes)} groups, got {len(self.parts)}")
        for part, size in zip(self.parts, sizes, strict=True):
            part.check(*size)

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` rebuilds it from."""
        return {f"{number}.{name}": x for number, part in enumerate(self.parts) for name, x in part.tensors().items()}

    def as_stored(self) -> LatentPosterior:
        """The same numbers in contiguous tensors, as they are read from a file.

        The last digits of a matrix product depend on the memory layout, and a resumed run must be bit-identical.
        """
        return self.from_tensors({name: value.contiguous() for name, value in self.tensors().items()})

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> LatentPosterior:
        """The posterior whose `tensors()` these are."""
        found: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            number, _, key = name.partition(".")
            found.setdefault(int(number), {})[key] = value
        return cls(tuple(_part(found[number]) for number in sorted(found)))


def _part(tensors: dict[str, Tensor]) -> WeightPosterior:
    """The form of covariance that has these tensors."""
    if "C_own" in tensors:
        return (RotatedBlocks if "basis" in tensors else BlockCovariance).from_tensors(tensors)
    if "basis" in tensors:
        return RotatedCovariance(**tensors)
    return DiagonalCovariance(**tensors) if "std" in tensors else SharedCovariance(**tensors)


def _factor_shapes(places: Places) -> dict[str, tuple[int, ...]]:
    """Shapes of the parts of a `Factor` of weights in these places."""
    P, R, H0 = *places.own.shape, len(places.shared)
    return {"own": (P, R, R), "arms": (P, R, H0), "shared": (H0, H0)}


def _check_places(got: Places, want: Places | None) -> None:
    same = want is not None and torch.equal(got.shared, want.shared) and torch.equal(got.own, want.own)
    if not same:
        raise ValueError("q(B) must have the shared and the per-id weights at the positions of the kernel")

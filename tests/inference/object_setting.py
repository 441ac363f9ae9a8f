"""New objects of a small fitted model, and their posterior in dense NumPy."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import oracles
from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Table
from gppvae.inference.new_objects import ObjectFit
from gppvae.kernels import FreeForm, Kernel, Learned, Linear, Matern, Periodic
from gppvae.likelihoods import Bernoulli, Gaussian, Likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import learned_by_column
from gppvae.models.vae import Autoencoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior
from oracles import Array, Covariance, Row

N, K, L, ALPHA, NOISE = 30, 5, 2, 0.3, 0.2
JITTER = 2e-6  # what the jitter of 1e-8 on the inducing points' covariance may do to a posterior


# -- the problem: a bound model, q(B) given latents at the training rows, a few samples of new objects


def columns(n: int, seed: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "person": rng.permuted(np.resize(list("abcdefg"), n)),
        "pose": rng.integers(0, 3, n),
        "angle": rng.choice([0.0, 45.0, 100.0, 250.0], n) + shift,
        "time": rng.normal(size=n).round(1) + shift,
    }


def dict_rows(table: dict[str, np.ndarray]) -> list[Row]:
    n = len(table["person"])
    return [{c: str(v[i]) if c in ("person", "pose") else float(v[i]) for c, v in table.items()} for i in range(n)]


def free_form(leaf: FreeForm) -> Covariance:
    return oracles.free_form("pose", leaf.levels, leaf.raw.detach().numpy())


Parts = tuple[list[Covariance], Covariance | None]


@dataclass(frozen=True)
class Case:
    """A kernel per group of latents, and the number of latents it has.

    `parts` gives for each group what multiplies each of its learned leaves, in order, and the covariance of all other
    terms; it sees the free-form leaves of all groups and the training rows. None is a group without a kernel.
    """

    make: Callable[[], list[tuple[Kernel | None, int]]]
    parts: Callable[[list[FreeForm], list[Row]], list[Parts | None]]


CASES = {
    "learned * periodic": Case(
        lambda: [(Learned("person", 3) * Periodic("angle", 360, lengthscale=0.9), L)],
        lambda fs, t: [([oracles.periodic("angle", 360.0, 0.9)], None)],
    ),
    "free form * learned": Case(
        lambda: [(FreeForm("pose") * Learned("person", 2), L)], lambda fs, t: [([free_form(fs[0])], None)]
    ),
    "two of one column": Case(
        lambda: [(Learned("person", 2) * FreeForm("pose") + 0.5 * Learned("person", 3) + Linear("time"), L)],
        lambda fs, t: [([free_form(fs[0]), oracles.scaled(0.5, oracles.constant())], oracles.linear(("time",), t))],
    ),
    "three of one column": Case(
        lambda: [
            (
                2.0 * Learned("person", 1) * Matern("time", nu=0.5, lengthscale=0.8)
                + Linear("time") * Learned("person", 2)
                + Learned("person", 1) * FreeForm("pose"),
                L,
            )
        ],
        lambda fs, t: [
            (
                [
                    oracles.scaled(2.0, oracles.matern(("time",), 0.5, 0.8)),
                    oracles.linear(("time",), t),
                    free_form(fs[0]),
                ],
                None,
            )
        ],
    ),
    "two groups that read the column": Case(
        lambda: [
            (Learned("person", 2) * FreeForm("pose"), 1),
            (0.8 * Learned("person", 3) * Linear("time") + FreeForm("pose"), 1),
        ],
        lambda fs, t: [
            ([free_form(fs[0])], None),
            ([oracles.scaled(0.8, oracles.linear(("time",), t))], free_form(fs[1])),
        ],
    ),
    "a term of unseen times": Case(
        lambda: [(Learned("person", 2) * FreeForm("pose") + 1.5 * Matern("time", nu=0.5, lengthscale=0.7), L)],
        lambda fs, t: [([free_form(fs[0])], oracles.scaled(1.5, oracles.matern(("time",), 0.5, 0.7)))],
    ),
    "groups with and without": Case(
        lambda: [(None, 1), (Learned("person", 2) * FreeForm("pose") + Linear("time"), 1)],
        lambda fs, t: [None, ([free_form(fs[0])], oracles.linear(("time",), t))],
    ),
}


class LinearEncoder(nn.Module):
    """Float64, with a log-variance that differs between samples and latent dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(K, 2 * L).double()

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.layer(y.double()).chunk(2, dim=1)
        return mean, logvar


class LinearDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(L, K).double()

    def forward(self, z: Tensor) -> Tensor:
        return self.layer(z)


class Problem:
    """A fitted model and samples of `n_objects` new objects, some at angles and times nobody saw."""

    def __init__(
        self,
        groups: list[tuple[Kernel | None, int]],
        decoder: nn.Module,
        n_objects: int = 3,
        n_views: int = 4,
        binary: bool = False,
    ) -> None:
        self.table, self.new_table = columns(N, 0), columns(n_objects * n_views, 1, shift=3.0)
        prior = LatentPrior(groups, ALPHA)
        prior.bind(Table(self.table), torch.Generator().manual_seed(0))
        self.leaves = learned_by_column(prior)["person"]
        rng = np.random.default_rng(2)
        with torch.no_grad():
            for leaf in prior.leaves():
                if isinstance(leaf, Learned):
                    leaf.x.copy_(torch.from_numpy(rng.normal(0.4, 1.0, size=leaf.x.shape)))
        likelihood = Bernoulli() if binary else Gaussian(0.7)
        self.model = GPPriorVAE(Autoencoder(LinearEncoder(), decoder, likelihood), prior)
        self.Z = rng.normal(size=(N, L))
        self.owner = np.resize(np.arange(n_objects), n_objects * n_views)
        self.n_objects = n_objects
        y = rng.normal(size=(len(self.owner), K)).astype(np.float32)
        self.y = (y > 0).astype(np.float32) if binary else y
        self.rows, self.new = (prior.code(Table(table)) for table in (self.table, self.new_table))
        self.weights = self.condition()

    @torch.no_grad()
    def condition(self) -> LatentPosterior:
        """q(B) given Z at the training rows, in the layout that the groups have."""
        return self.model.prior.posterior(self.model.prior.statistics(self.rows, torch.from_numpy(self.Z)))

    def fit(
        self,
        likelihood: Likelihood,
        steps: int,
        used: np.ndarray | None = None,
        batch_size: int = 5,
        certain: bool = False,
    ) -> tuple[Array, Array]:
        """Vectors (P, J) and covariances (P, J, J) from the samples `used` says (all when None).

        With `certain`, latents deviate by nothing from what the vector says.
        """
        used = np.ones(len(self.y), dtype=bool) if used is None else used
        rows = self.model.prior.code(Table(self.new_table).take(np.flatnonzero(used)))
        epoch = Epoch(Samples(self.y[used], missing="mask"), rows, batch_size, None, torch.device("cpu"))
        owner = torch.from_numpy(self.owner[used])
        with contextlib.ExitStack() as stack:
            for leaf in self.leaves:  # nothing is known of a new object before the fit
                stack.enter_context(leaf.using(torch.zeros_like(leaf.x)))
            fit = ObjectFit(self.model, self.weights, self.leaves, epoch, owner, self.n_objects, likelihood)
            if certain:
                fit.R.zero_()
            x, root = fit.run(steps)
        return x.numpy(), (root @ root.transpose(1, 2)).numpy()

    def affine(self, case: Case) -> tuple[Array, Array]:
        """A (N, J, L) and o (N, L) by N x N regression on the training latents: E z = k(new, train) K^-1 Z."""
        train, new = dict_rows(self.table), dict_rows(self.new_table)
        forms = [leaf for leaf in self.model.prior.leaves() if isinstance(leaf, FreeForm)]
        A, o = np.zeros((len(new), sum(leaf.dim for leaf in self.leaves), L)), np.zeros((len(new), L))
        latent = entry = used = 0
        for group, parts in zip(self.model.prior.groups, case.parts(forms, train), strict=True):
            at = slice(latent, latent + group.n_latents)
            latent += group.n_latents
            if parts is None:
                continue
            others, rest = parts
            leaves = self.leaves[used : used + len(others)]
            vectors = [dict(zip(leaf.levels, leaf.x.detach().numpy(), strict=True)) for leaf in leaves]
            K_train = ALPHA * np.eye(N)
            for x, other in zip(vectors, others, strict=True):
                K_train += oracles.gram(oracles.multiplied(oracles.learned("person", x), other), train, train)
            K_train += 0.0 if rest is None else oracles.gram(rest, train, train)
            a = np.linalg.solve(K_train, self.Z[:, at])
            J = sum(leaf.dim for leaf in leaves)
            for n, row in enumerate(new):
                for m, known in enumerate(train):
                    own = [x[known["person"]] * other(row, known) for x, other in zip(vectors, others, strict=True)]
                    A[n, entry : entry + J, at] += np.outer(np.concatenate(own), a[m])
                    o[n, at] += 0.0 if rest is None else rest(row, known) * a[m]
            entry, used = entry + J, used + len(others)
        return A, o


def deviations(problem: Problem, case: Case) -> Array:
    """Variance of z at the new rows when their vectors are the mean of the trained ones, (N, L), by dense solves.

    Prior variance minus what the training latents explain, plus noise; a group without a kernel has variance 1.
    """
    train, new = dict_rows(problem.table), dict_rows(problem.new_table)
    forms = [leaf for leaf in problem.model.prior.leaves() if isinstance(leaf, FreeForm)]
    found, start, used = np.ones((len(new), L)), 0, 0
    for group, parts in zip(problem.model.prior.groups, case.parts(forms, train), strict=True):
        at, start = slice(start, start + group.n_latents), start + group.n_latents
        if parts is None:
            continue
        others, rest = parts
        leaves, used = problem.leaves[used : used + len(others)], used + len(others)
        terms = [] if rest is None else [rest]
        for leaf, other in zip(leaves, others, strict=True):
            vectors = dict(zip(leaf.levels, leaf.x.detach().numpy(), strict=True))
            vectors["new"] = leaf.x.detach().numpy()[:7].mean(axis=0)
            terms.append(oracles.multiplied(oracles.learned("person", vectors), other))
        everyone = [*train, *({**row, "person": "new"} for row in new)]
        K = sum(oracles.gram(term, everyone, everyone) for term in terms)
        K_train = K[:N, :N] + ALPHA * np.eye(N)
        left = np.diag(K)[N:] - np.sum(K[N:, :N] * np.linalg.solve(K_train, K[:N, N:]).T, axis=1)
        found[:, at] = left[:, None] + ALPHA
    return found


def prior_by_loops(leaves: list[Learned], trained: int) -> tuple[Array, Array]:
    """Mean and covariance of the trained vectors, the latter shrunk by J / (P + J) towards its mean variance."""
    X = np.array([np.concatenate([leaf.x.detach().numpy()[p] for leaf in leaves]) for p in range(trained)])
    P, J = X.shape
    mean, cov = X.mean(axis=0), np.zeros((J, J))
    for x in X:
        cov += np.outer(x - mean, x - mean) / (P - 1)
    share = J / (P + J)
    return mean, (1.0 - share) * cov + share * np.mean(np.diag(cov)) * np.eye(J)


def gaussian_posterior(mean: Array, cov: Array, observed: list[tuple[Array, Array, Array]]) -> tuple[Array, Array]:
    """Of x ~ N(mean, cov), given H'x + noise: (H, numbers, noise covariance), one after the other."""
    for H, numbers, noise in observed:
        gain = cov @ H @ np.linalg.inv(H.T @ cov @ H + noise)  # Kalman update
        mean, cov = mean + gain @ (numbers - H.T @ mean), cov - gain @ H.T @ cov
    return mean, cov


def seen_through(
    problem: Problem, A: Array, o: Array, spread: Array, p: int, var: float
) -> list[tuple[Array, Array, Array]]:
    """Every sample of object p as a linear observation of its vector through the linear decoder.

    Values of a sample share the deviation of its latents, of variance `spread` (N, L), so their noise is correlated.
    """
    layer = problem.model.autoencoder.decoder.layer
    W, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    found = []
    for n in range(len(problem.y)):
        seen = np.isfinite(problem.y[n])
        if problem.owner[n] == p and seen.any():
            noise = W @ np.diag(spread[n]) @ W.T + var * np.eye(K)
            error = problem.y[n].astype(np.float64) - b - W @ o[n]
            found.append((A[n] @ W[seen].T, error[seen], noise[np.ix_(seen, seen)]))
    return found

"""The GP term with its gradient on made-up rows, in the ways that gp_term.py and scale.py time beside each other.

Gradients are those of the object vectors X, the view factor W, the encoder's outputs and alpha.
"""

# ruff: noqa: N803, N806 (the letters of the paper are the names here)
from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from _paper import coefficients
from torch import Tensor

from gppvae.data.table import Rows, Table
from gppvae.inference.exact import inner_product
from gppvae.kernels import Kernel, parse_kernel
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.lowrank import Assembled, assemble, gp_nll
from gppvae.prior.statistics import StatisticsSum

MOST_DISTINCT = 100_000  # rows that are made; more are the same ones again
ALPHA = 0.1
Nll = Callable[[Assembled], Tensor]
Predict = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Problem:
    """Inputs as a training step has them: a prior, coded rows, and encoder outputs batch by batch.

    Args:
        shape: N, M, Q and L.  batch_size: rows per sum.
        split: let the prior choose its layout; False sums whole features, N x MQ.
    """

    def __init__(self, shape: tuple[int, int, int, int], batch_size: int, seed: int, split: bool = True) -> None:
        n, m, q, n_latents = shape
        distinct = min(n, MOST_DISTINCT)
        assert n % distinct == 0, "rows are repeated as a whole"
        self.n, self.repeats = n, n // distinct
        draw = np.random.default_rng(seed)
        cells = np.sort(draw.permutation(-(-distinct // q) * q)[:distinct])
        table = Table({"object": cells // q, "view": draw.permutation(distinct) % q})
        self.prior = LatentPrior([(parse_kernel(f"Learned(object, {m}) * FreeForm(view)"), n_latents)], ALPHA)
        generator = torch.Generator().manual_seed(seed)
        self.prior.bind(table, generator)
        rows = self.prior.code(table)
        if split:
            self.prior.plan(rows, batch_size)
        self.rows = [rows[start : start + batch_size] for start in range(0, distinct, batch_size)]
        sizes = [(len(part), n_latents) for part in self.rows]
        self.means = [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]
        self.variances = [torch.rand(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]

    @property
    def kernel(self) -> Kernel:
        return self.prior.kernels[0]

    def batches(self, expected: bool) -> Iterator[tuple[Rows, Tensor, Tensor | None]]:
        """Rows, means, and variances where the expected form is wanted."""
        for _ in range(self.repeats):
            for rows, mean, var in zip(self.rows, self.means, self.variances, strict=True):
                yield rows, mean, var if expected else None

    def clear(self) -> None:
        for leaf in (*self.prior.parameters(), *self.means, *self.variances):
            leaf.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Gradients by name; those that a form does not have are left out."""
        named = {name: parameter.grad for name, parameter in self.prior.named_parameters()}
        for name, parts in (("mean", self.means), ("var", self.variances)):
            if parts[0].grad is not None:
                named[name] = torch.cat([part.grad for part in parts if part.grad is not None])
        return {name: grad.double() for name, grad in named.items() if grad is not None}


def autograd_nll(full: Assembled) -> Tensor:
    """The formula of `gp_nll` as one writes it, left to autograd."""
    (t, u, e, n), n_latents = full.sums, full.R.shape[1]
    L_C = torch.linalg.cholesky(full.S + torch.eye(len(full.S), dtype=full.S.dtype))
    solved = torch.linalg.solve_triangular(L_C, full.R, upper=False)
    quad = t + u - solved.square().sum()
    if full.T is not None:
        quad = quad - torch.cholesky_solve(full.T, L_C).diagonal().sum()
    logdet = e + 2.0 * L_C.diagonal().log().sum()
    return 0.5 * (quad + n_latents * (logdet + n * math.log(2.0 * math.pi)))


def autograd_prediction(V: Tensor, S: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """The formula of `ConditionedAtRows` as one writes it, left to autograd."""
    L_C = torch.linalg.cholesky(S + torch.eye(len(S), dtype=S.dtype))
    m, w = torch.linalg.solve_triangular(L_C, torch.cat([R, V.T], dim=1), upper=False).split([R.shape[1], len(V)], 1)
    return w.T @ m, w.square().sum(0).unsqueeze(1)


def by_statistics(problem: Problem, expected: bool, nll: Nll = gp_nll) -> float:
    """Two sweeps over sums, as exact inference takes them."""
    problem.clear()
    prior, totals = problem.prior, StatisticsSum()
    with torch.no_grad():
        for batch in problem.batches(expected):
            totals.add(prior.statistics(*batch))
    (leaves,) = (sums.map(lambda x: x.detach().requires_grad_()) for sums in totals.value)
    value = nll(assemble(leaves, prior.groups[0].layout))
    value.backward()
    by_sums = [leaves.map(gradient)]
    for batch in problem.batches(expected):
        inner_product(by_sums, prior.statistics(*batch)).backward()
    return float(value.detach())


def gradient(x: Tensor) -> Tensor:
    assert x.grad is not None
    return x.grad


def assembled(problem: Problem, expected: bool) -> Assembled:
    """The sums over all rows in the form of the equations, as leaves."""
    totals = StatisticsSum()
    with torch.no_grad():
        for batch in problem.batches(expected):
            totals.add(problem.prior.statistics(*batch))
        full = assemble(totals.value[0], problem.prior.groups[0].layout)
    leaves = [None if x is None else x.detach().requires_grad_() for x in (full.S, full.R, full.T, full.sums)]
    return Assembled(*leaves)  # type: ignore[arg-type]


def dense(problem: Problem) -> tuple[Tensor, Tensor]:
    """V (N, H) with its graph, and Z (N, L)."""
    batches = list(problem.batches(expected=False))
    return torch.cat([problem.kernel.features(rows) for rows, _, _ in batches]), torch.cat([z for _, z, _ in batches])


def by_paper(problem: Problem, expected: bool, dtype: torch.dtype = torch.float64) -> float:
    """Coefficients of all rows from a dense V, then the first-order expansion batch by batch."""
    problem.clear()
    log_alpha = problem.prior.groups[0].log_alpha
    with torch.no_grad():
        V, Z = (x.to(dtype) for x in dense(problem))
        var = torch.cat([var for _, _, var in problem.batches(True) if var is not None]).to(dtype) if expected else None
        found = coefficients(V, Z, var, log_alpha.exp().to(dtype))
    start = 0
    for rows, mean, s2 in problem.batches(expected):
        part = slice(start, start + len(rows))
        start += len(rows)
        loss = (found.B[part] * problem.kernel.features(rows).to(dtype)).sum() + (found.a[part] * mean.to(dtype)).sum()
        if s2 is not None and found.s is not None:
            loss = loss + (found.s[part] * s2.to(dtype)).sum()
        loss.backward()
    (found.c * log_alpha.exp()).backward()
    return float(found.value)

"""Small dense problems for the low-rank algebra, as tensors for the package and arrays for the oracles."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gppvae.prior.layout import GroupedRows, Layout
from gppvae.prior.lowrank import Assembled, assemble
from gppvae.prior.statistics import Statistics, statistics
from oracles import Array

ALPHAS = (1e-6, 1e-3, 0.1, 1.0, 1e3)
SIZES = {"H < N": (12, 5), "H = N": (7, 7), "H > N": (6, 11)}
WHOLE = Layout(None)  # sums over whole features are in the form of the equations already


@dataclass(frozen=True)
class Problem:
    """Latents (mean, var) at N rows with features V and noise d of every row."""

    V: Array
    mean: Array
    var: Array
    noise: Array

    @property
    def K(self) -> Array:
        return self.V @ self.V.T + np.diag(self.noise)

    def statistics(self, expected: bool) -> Statistics:
        var = tensor(self.var) if expected else None
        return statistics(GroupedRows(tensor(self.V)), tensor(self.mean), var, tensor(self.noise))

    def assembled(self, expected: bool = False) -> Assembled:
        return assemble(self.statistics(expected), WHOLE)


def problem(n: int, rank: int, alpha: float, n_latents: int = 3, uneven: bool = False, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    noise = alpha * (rng.uniform(0.2, 5.0, n) if uneven else np.ones(n))
    mean, var = rng.normal(size=(n, n_latents)), rng.uniform(0.05, 2.0, (n, n_latents))
    return Problem(rng.normal(size=(n, rank)), mean, var, noise)


def grouped_rows(n: int, seed: int = 0) -> GroupedRows:
    """Rows of width 3 in four groups, one of them empty."""
    rng = np.random.default_rng(seed)
    return GroupedRows(tensor(rng.normal(size=(n, 3))), torch.tensor(rng.choice([0, 1, 3], n)), 4)


def tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))

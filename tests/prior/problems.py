"""Small dense problems for the low-rank algebra, as tensors for the package and arrays for the oracles."""

from dataclasses import dataclass

import numpy as np
import torch
from gppvae.kernels.features import Features
from torch import Tensor

from gppvae.prior.lowrank import Assembled, assemble
from gppvae.prior.statistics import Statistics, statistics
from oracles import Array

ALPHAS = (1e-6, 1e-3, 0.1, 1.0, 1e3)
SIZES = {"H < N": (12, 5), "H = N": (7, 7), "H > N": (6, 11)}


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

    def features(self) -> Features:
        n = len(self.V)
        one = torch.ones(1, 1, dtype=torch.float64)
        return Features(tensor(self.V), torch.zeros(n, dtype=torch.int64), [one], [self.V.shape[1]])

    def statistics(self, expected: bool) -> Statistics:
        var = tensor(self.var) if expected else None
        return statistics(self.features(), tensor(self.mean), var, tensor(self.noise))

    def assembled(self, expected: bool = False) -> Assembled:
        features = self.features()
        return assemble(self.statistics(expected), features.tables, features.sizes)


def problem(n: int, rank: int, alpha: float, n_latents: int = 3, uneven: bool = False, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    noise = alpha * (rng.uniform(0.2, 5.0, n) if uneven else np.ones(n))
    mean, var = rng.normal(size=(n, n_latents)), rng.uniform(0.05, 2.0, (n, n_latents))
    return Problem(rng.normal(size=(n, rank)), mean, var, noise)


def split_features(n: int, seed: int = 0) -> Features:
    """Two blocks over four groups, one of them without rows: sizes 2 and 1, tables of width 3 and 2."""
    rng = np.random.default_rng(seed)
    tables = [tensor(rng.normal(size=(4, 3))), tensor(rng.normal(size=(4, 2)))]
    return Features(tensor(rng.normal(size=(n, 3))), torch.tensor(rng.choice([0, 1, 3], n)), tables, [2, 1])


def tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))

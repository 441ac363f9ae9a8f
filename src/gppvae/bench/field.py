"""A smooth function of two coordinates at 600 places, with the error of a dense GP beside the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from gppvae.bench.task import MSE, Question, Target, Task, errors_of
from gppvae.estimator.gppvae import GPPVAE
from gppvae.kernels import RBF

KERNEL = "RBF(a, b)"
LENGTHSCALE, NOISE_STD, WIDTH = 0.8, 0.3, 5.0
TRAINED, ASKED, HIDDEN, VALUES, SEED = 600, 100, 3, 10, 1
TARGET = 1.3


def field(data: Path, trained: int = TRAINED) -> Task:
    """Ten mixtures of three functions, measured with noise; the functions themselves are asked for."""
    n = trained + ASKED
    stream = np.random.default_rng(SEED)
    places = stream.uniform(0, WIDTH, (n, 2))
    root = np.linalg.cholesky(rbf(places, places, LENGTHSCALE) + 1e-8 * np.eye(n))
    truth = root @ stream.normal(size=(n, HIDDEN)) @ stream.normal(size=(HIDDEN, VALUES))
    measured = (truth + NOISE_STD * stream.normal(size=truth.shape)).astype(np.float32)
    here, there = places[:trained], places[trained:]
    dense, lengthscale = dense_gp(here, measured[:trained].astype(np.float64), there)
    distance = np.square(there[:, None] - here[None]).sum(axis=2)
    answers = {
        "dense GP": dense,
        "nearest": measured[:trained][distance.argmin(axis=1)],
        "mean": np.repeat(measured[:trained].mean(axis=0, keepdims=True), ASKED, axis=0),
    }
    question = Question(
        "field", _table(there), truth[trained:], errors_of(MSE, truth[trained:], answers),
        Target(TARGET, ("dense GP",)), observed=measured[trained:],
    )  # fmt: skip

    def learned(model: GPPVAE) -> dict[str, Any]:
        found = [leaf.base.lengthscale for leaf in model.prior_.leaves() if isinstance(leaf, RBF)]
        values = [float(value) for tensor in found for value in tensor.detach().flatten()]
        return {"lengthscales": values, "dense_lengthscale": lengthscale, "true_lengthscale": LENGTHSCALE}

    about = f"a function of two coordinates at {trained} places, true length scale {LENGTHSCALE}"
    return Task("field", KERNEL, measured[:trained], _table(here), [question], about, learned=learned)


def rbf(a: np.ndarray, b: np.ndarray, lengthscale: float) -> np.ndarray:
    """exp(-|a - b|^2 / 2 l^2), every pair."""
    return np.exp(-np.square(a[:, None] - b[None]).sum(axis=2) / (2 * lengthscale**2))


def dense_gp(places: np.ndarray, y: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, float]:
    """Exact GP predictions, (len(asked), values), and the length scale, all by maximum likelihood.

    The length scale is shared; every value has an amplitude and a noise of its own. With the eigenvectors of K the
    likelihood of a noise ratio r costs O(N): y'(K + rI)^-1 y = sum_i (u_i'y)^2 / (s_i + r), and the best amplitude
    is that over N.
    """
    mean, n = y.mean(axis=0), len(y)

    def parts(lengthscale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        s, u = np.linalg.eigh(rbf(places, places, lengthscale))
        return np.maximum(s, 0.0), u, u.T @ (y - mean)

    def ratio(s: np.ndarray, v: np.ndarray) -> tuple[float, float]:
        def nll(log_r: float) -> float:
            d = s + np.exp(log_r)
            return float(0.5 * n * np.log((v**2 / d).mean()) + 0.5 * np.log(d).sum())

        best = minimize_scalar(nll, bounds=(np.log(1e-5), np.log(1e3)), method="bounded")
        return float(np.exp(best.x)), float(best.fun)

    def total(log_l: float) -> float:
        s, _, v = parts(float(np.exp(log_l)))
        return sum(ratio(s, v[:, d])[1] for d in range(y.shape[1]))

    width = float(np.ptp(places))
    grid = np.linspace(np.log(width / 50), np.log(width), 9)
    start = int(np.argmin([total(log_l) for log_l in grid]))
    around = grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)]
    found = minimize_scalar(total, bounds=around, method="bounded", options={"xatol": 1e-3})
    lengthscale = float(np.exp(found.x))
    s, u, v = parts(lengthscale)
    weights = np.stack([u @ (v[:, d] / (s + ratio(s, v[:, d])[0])) for d in range(y.shape[1])], axis=1)
    return mean + rbf(asked, places, lengthscale) @ weights, lengthscale


def _table(places: np.ndarray) -> dict[str, np.ndarray]:
    return {"a": places[:, 0], "b": places[:, 1]}

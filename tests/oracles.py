"""Definitions in dense NumPy, written as loops where that is the definition; nothing here comes from the package.

A covariance is a function of two rows, each a dict of column name to value. K is always the full matrix over
all rows, Z holds one column per latent dimension, and sums over latent dimensions are taken where said.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Row = dict[str, Any]
Covariance = Callable[[Row, Row], float]

# -- covariance functions


Scales = float | Sequence[float]  # one for all columns, or one for each


def distance(a: Row, b: Row, columns: Sequence[str], lengthscale: Scales) -> float:
    """In length scales."""
    scales = [lengthscale] * len(columns) if isinstance(lengthscale, float) else lengthscale
    return float(np.sqrt(sum(((a[c] - b[c]) / scale) ** 2 for c, scale in zip(columns, scales, strict=True))))


def rbf(columns: Sequence[str], lengthscale: Scales) -> Covariance:
    return lambda a, b: float(np.exp(-0.5 * distance(a, b, columns, lengthscale) ** 2))


def matern(columns: Sequence[str], nu: float, lengthscale: Scales) -> Covariance:
    def k(a: Row, b: Row) -> float:
        r = np.sqrt(2.0 * nu) * distance(a, b, columns, lengthscale)
        polynomial = {0.5: 1.0, 1.5: 1.0 + r, 2.5: 1.0 + r + r**2 / 3.0}[nu]
        return float(polynomial * np.exp(-r))

    return k


def rational_quadratic(columns: Sequence[str], alpha: float, lengthscale: Scales) -> Covariance:
    return lambda a, b: float((1.0 + distance(a, b, columns, lengthscale) ** 2 / (2.0 * alpha)) ** -alpha)


def periodic(column: str, period: float, lengthscale: float) -> Covariance:
    return lambda a, b: float(np.exp(-2.0 * np.sin(np.pi * (a[column] - b[column]) / period) ** 2 / lengthscale))


def linear(columns: Sequence[str], training: Sequence[Row]) -> Covariance:
    squares = [row[c] ** 2 for row in training for c in columns]
    mean_square = sum(squares) / len(squares)
    return lambda a, b: float(sum(a[c] * b[c] for c in columns) / mean_square)


def learned(column: str, vectors: dict[str, Array], normalize: bool = False) -> Covariance:
    def k(a: Row, b: Row) -> float:
        x, y = vectors[a[column]], vectors[b[column]]
        length = np.linalg.norm(x) * np.linalg.norm(y) if normalize else 1.0
        return float(sum(x_i * y_i for x_i, y_i in zip(x, y, strict=True)) / length)

    return k


def free_form(column: str, levels: Sequence[str], raw: Array) -> Covariance:
    """raw holds W below its diagonal and the logarithm of W's diagonal on it; k = (W W')_qq'."""
    W = np.zeros_like(raw)
    for i in range(len(raw)):
        for j in range(i + 1):
            W[i, j] = np.exp(raw[i, j]) if i == j else raw[i, j]
    return lambda a, b: float((W @ W.T)[levels.index(a[column]), levels.index(b[column])])


def categorical(column: str) -> Covariance:
    return lambda a, b: 1.0 if a[column] == b[column] else 0.0


def constant() -> Covariance:
    return lambda a, b: 1.0


def added(left: Covariance, right: Covariance) -> Covariance:
    return lambda a, b: left(a, b) + right(a, b)


def multiplied(left: Covariance, right: Covariance) -> Covariance:
    return lambda a, b: left(a, b) * right(a, b)


def scaled(value: float, k: Covariance) -> Covariance:
    return lambda a, b: value * k(a, b)


def gram(k: Covariance, a: Sequence[Row], b: Sequence[Row]) -> Array:
    K = np.zeros((len(a), len(b)))
    for i, row in enumerate(a):
        for j, other in enumerate(b):
            K[i, j] = k(row, other)
    return K


# -- the Gaussian process, with any positive definite K


def gp_nll(K: Array, Z: Array) -> float:
    """-log prod_l N(z_l; 0, K)."""
    n = len(K)
    logdet = np.linalg.slogdet(K)[1]
    total = 0.0
    for z in Z.T:
        total += 0.5 * (z @ np.linalg.solve(K, z) + logdet + n * np.log(2.0 * np.pi))
    return float(total)


def expected_gp_nll(K: Array, mean: Array, var: Array) -> float:
    """E -log prod_l N(z_l; 0, K) for independent z_nl ~ N(mean_nl, var_nl)."""
    precision = np.linalg.inv(K)
    spread = 0.0
    for n in range(len(K)):
        for s2 in var[n]:
            spread += 0.5 * s2 * precision[n, n]
    return gp_nll(K, mean) + float(spread)


def gp_posterior(K: Array, K_cross: Array, K_new: Array, Z: Array) -> tuple[Array, Array]:
    """Mean (N*, L) and covariance (N*, N*) of f at new rows; K with noise, K_cross (N*, N) and K_new without."""
    mean = np.stack([K_cross @ np.linalg.solve(K, z) for z in Z.T], axis=1)
    return mean, K_new - K_cross @ np.linalg.solve(K, K_cross.T)


def latents_given_samples(
    K: Array, K_cross: Array, K_new: Array, alpha: float, W: Array, var: float, y: Array
) -> tuple[Array, Array]:
    """Mean (N*, L) and covariance (N* L, N* L) of f at new rows given y = W (f + eta) + eps at rows, all at once.

    K, K_cross (N*, N) and K_new are of f, the same for all latents; eta has variance alpha, eps variance var.
    """
    L, K_y = W.shape[1], np.kron(K + alpha * np.eye(len(K)), W @ W.T) + var * np.eye(y.size)
    C = np.kron(K_cross, W.T)  # covariance of f at new rows, latents innermost, and all values
    mean = (C @ np.linalg.solve(K_y, y.ravel())).reshape(-1, L)
    return mean, np.kron(K_new, np.eye(L)) - C @ np.linalg.solve(K_y, C.T)


def row_blocks(cov: Array, L: int) -> Array:
    """Covariance of the latents of each row, (N, L, L), out of that of all, (N L, N L), latents innermost."""
    return np.stack([cov[start : start + L, start : start + L] for start in range(0, len(cov), L)])


def log_density(y: Array, mean: Array, cov: Array) -> float:
    """log N(y; mean, cov) of one sample."""
    return -gp_nll(cov, (y - mean)[:, None])


def fitc_covariance(V: Array, diagonal: Array, alpha: float) -> Array:
    """V V' with the true prior variance on the diagonal, and noise."""
    low_rank = V @ V.T
    K = low_rank.copy()
    for n in range(len(V)):
        K[n, n] = low_rank[n, n] + (diagonal[n] - low_rank[n, n]) + alpha
    return K


def gaussian_kl(mean: Array, cov: Array) -> float:
    """KL(N(mean, cov) || N(0, I))."""
    return float(0.5 * (mean @ mean + np.trace(cov) - len(mean) - np.linalg.slogdet(cov)[1]))


# -- latents in groups, each with a Gaussian process of its own


@dataclass(frozen=True)
class LatentGroup:
    """So many latents with f ~ GP(0, k) and z = f + noise; without a covariance z ~ N(0, 1), each by itself."""

    k: Covariance | None
    n_latents: int
    alpha: float = 1.0


def of_groups(groups: Sequence[LatentGroup], *arrays: Array) -> Iterator[tuple[LatentGroup, list[Array]]]:
    """Each group with its own columns of (N, L) arrays."""
    start = 0
    for group in groups:
        yield group, [array[:, start : start + group.n_latents] for array in arrays]
        start += group.n_latents


def groups_nll(groups: Sequence[LatentGroup], rows: Sequence[Row], mean: Array, var: Array) -> float:
    """E -log p(Z) for independent z_nl ~ N(mean_nl, var_nl), zeros for given Z."""
    total = 0.0
    for group, (own_mean, own_var) in of_groups(groups, mean, var):
        if group.k is None:
            for m, s2 in zip(own_mean.ravel(), own_var.ravel(), strict=True):
                total += 0.5 * (m**2 + s2 + np.log(2.0 * np.pi))
        else:
            K = gram(group.k, rows, rows) + group.alpha * np.eye(len(rows))
            total += expected_gp_nll(K, own_mean, own_var)
    return float(total)


def groups_posterior(
    groups: Sequence[LatentGroup], rows: Sequence[Row], new: Sequence[Row], mean: Array, var: Array
) -> tuple[Array, Array, Array]:
    """Mean and variance of f at new rows given Z ~ N(mean, var) at rows, and the noise of z; (N*, L) each.

    With G = K_* K^-1 the variance is that for given Z, plus G diag(var) G', var averaged over the group's latents.
    """
    means, variances, noises = [], [], []
    for group, (own_mean, own_var) in of_groups(groups, mean, var):
        shape = len(new), group.n_latents
        f, spread = np.zeros(shape), np.zeros(len(new))
        if group.k is not None:
            K = gram(group.k, rows, rows) + group.alpha * np.eye(len(rows))
            K_cross = gram(group.k, new, rows)
            f, cov = gp_posterior(K, K_cross, gram(group.k, new, new), own_mean)
            G = K_cross @ np.linalg.inv(K)
            spread = np.diag(cov + G @ np.diag(own_var.mean(axis=1)) @ G.T)
        means.append(f)
        variances.append(np.repeat(spread[:, None], group.n_latents, axis=1))
        noises.append(np.full(shape, group.alpha if group.k is not None else 1.0))
    return np.concatenate(means, 1), np.concatenate(variances, 1), np.concatenate(noises, 1)


def groups_kl(groups: Sequence[LatentGroup], rows: Sequence[Row], Z: Array) -> float:
    """KL of the posterior of f given Z from its prior: E log N(Z; f, alpha) - log N(Z; 0, K), in function space."""
    total = 0.0
    for group, (own,) in of_groups(groups, Z):
        if group.k is None:
            continue
        K_f = gram(group.k, rows, rows)
        K = K_f + group.alpha * np.eye(len(rows))
        f, cov = gp_posterior(K, K_f, K_f, own)
        spread = group.n_latents * float(np.trace(cov)) / (2.0 * group.alpha)
        total += gp_nll(K, own) - gaussian_nll(own, f, group.alpha) - spread
    return total


# -- the paper's derivatives of f = -log p(Z), summed over L


def taylor_coefficients(V: Array, Z: Array, alpha: float) -> tuple[Array, Array, float]:
    """a = df/dZ, df/dV and df/dalpha at K = V V' + alpha I."""
    L = Z.shape[1]
    precision = np.linalg.inv(V @ V.T + alpha * np.eye(len(V)))
    a = precision @ Z
    dV = L * precision @ V - a @ a.T @ V
    dalpha = 0.5 * (L * np.trace(precision) - np.sum(a * a))
    return a, dV, float(dalpha)


# -- terms of a bound


def gaussian_nll(y: Array, mean: Array, var: float) -> float:
    total = 0.0
    for value, centre in zip(y.ravel(), mean.ravel(), strict=True):
        total += 0.5 * (np.log(2.0 * np.pi * var) + (value - centre) ** 2 / var)
    return total


def neg_entropy(var: Array) -> float:
    return float(-0.5 * sum(np.log(2.0 * np.pi * np.e * s2) for s2 in var.ravel()))


def vae_nll_bound(y: Array, decoded: Array, pixel_var: float, mean: Array, var: Array) -> float:
    """-E log p(y | z) at the decoded draw, plus KL(q(z | y) || N(0, I)) in closed form."""
    kl = 0.0
    for m, s2 in zip(mean.ravel(), var.ravel(), strict=True):
        kl += 0.5 * (m**2 + s2 - 1.0 - np.log(s2))
    return gaussian_nll(y, decoded, pixel_var) + kl

"""The start of a fit: kernel hyper-parameters, latents and noise from an exact GP on principal components.

The principal component scores of the samples serve as latents. An exact Gaussian process on the leading ones gives
length scales and amplitudes of the kernel before any network is trained:

    score_c ~ N(0, a_c (K(theta) + delta_c I)),   c = 1 ... C,   a_c in closed form

The likelihood has several optima. In a product of ids and a number, the leading scores are often most likely where the
kernel hardly depends on the number, since ids differ most in these scores. Such an optimum is chosen only if its
leave-one-out error is as low as that of the others.

Source: docs/math.md, "Start from principal components".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.data.table import Rows
from gppvae.kernels import IdLeaf, Kernel, Learned
from gppvae.kernels.stationary import Periodic, StationaryLeaf
from gppvae.prior.linalg import eye_like

MAX_ROWS = 512  # of the exact GP
LEADING = 4  # components that choose the hyper-parameters
MAX_COMPONENTS = 64
FACTORS = (1.0, 0.5, 0.2)  # on the length scales from which the search starts
STEPS = 40  # of L-BFGS from the best start; half as many from each start
DELTAS = (1e-4, 1e3)  # noise over signal of a component
CONSTANT = 0.9  # a stationary kernel that gives all pairs of rows a higher correlation is taken for constant
WORSE = 1.02  # largest ratio of its leave-one-out error to the least one
SHARES = np.exp(np.linspace(math.log(DELTAS[0]), math.log(DELTAS[1]), 57))


@dataclass(frozen=True)
class Components:
    """Principal components of standardised samples, and the shares of their variance that a kernel explains.

    Attributes:
        loadings: (C, values), orthonormal.  std: of the scores, (C,).
        signal: share of each score's variance that the kernel explains, (C,).
        value_signal: the same for each value, (values,), if values are missing.
    """

    loadings: Tensor
    std: Tensor
    signal: Tensor
    value_signal: Tensor | None = None

    def count(self, least_signal: float) -> int:
        """Number of components with at least this signal; at least one."""
        return max(1, int((self.signal >= least_signal).sum()))


def principal_components(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (n, C) of unit variance, loadings (C, values) and standard deviations (C,) of standardised samples.

    Args:
        y: (n, channels or values, ...).  mask: of observed values, or None; missing values are set to the mean.
    """
    flat = y.double().flatten(2) if y.ndim > 2 else y.double().unsqueeze(2)  # (n, C, values of a channel)
    seen = torch.ones_like(flat) if mask is None else mask.reshape(flat.shape).double()
    count = seen.sum((0, 2)).clamp_min(1.0)[:, None]  # observed values per channel, (C, 1)
    centred = (flat - ((flat * seen).sum((0, 2))[:, None] / count)) * seen
    std = (centred.square().sum((0, 2))[:, None] / count).sqrt()  # (C, 1)
    flat = (centred / torch.where(std > 0.0, std, torch.ones_like(std))).flatten(1)  # (n, values)
    flat = flat - flat.mean(0)
    values, vectors = torch.linalg.eigh(flat @ flat.T)  # (n, n): rows are few, values may be many
    values, vectors = values.flip(0)[:MAX_COMPONENTS], vectors.flip(1)[:, :MAX_COMPONENTS]
    kept = values > 1e-9 * values[0].clamp_min(1e-12)
    kept[0] = True
    scores = vectors[:, kept] * math.sqrt(len(flat))  # unit variance, (n, C)
    stds = (values[kept].clamp_min(1e-12) / len(flat)).sqrt()
    return scores, scores.T @ flat / (len(flat) * stds[:, None]), stds


def some_values(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Standardised values of samples, and which were observed, (n, V) each; None for images or if none is missing.

    Args:
        y: (n, values); at most MAX_COMPONENTS of the values are used, evenly spaced.  mask: of observed values.
    """
    if mask is None or y.ndim != 2 or bool(mask.all()):
        return None
    picked = _some_places(y.shape[1])
    values, seen = y[:, picked].double(), mask[:, picked]
    count = seen.sum(0).clamp_min(1)
    centred = torch.where(seen, values - torch.where(seen, values, 0.0).sum(0) / count, 0.0)
    std = (centred.square().sum(0) / count).sqrt()
    return centred / torch.where(std > 0.0, std, 1.0), seen


def spread_over(of_some: Tensor, n_values: int) -> Tensor:
    """From (V,) at the values of `some_values` to all values, (values,): the others get the mean."""
    whole = of_some.mean().repeat(n_values)
    whole[_some_places(n_values)] = of_some
    return whole


def _some_places(n_values: int) -> Tensor:
    return torch.linspace(0, n_values - 1, min(n_values, MAX_COMPONENTS)).round().long()


def rows_for_start(rows: Rows, kernels: list[Kernel], generator: torch.Generator) -> Tensor:
    """At most MAX_ROWS rows: all rows of some ids, in the id column with the most levels, so that ids stay complete."""
    n = len(rows)
    if n <= MAX_ROWS:
        return torch.arange(n)
    ids = [leaf for kernel in kernels for leaf in kernel.leaves() if isinstance(leaf, IdLeaf)]
    order = torch.randperm(n, generator=generator)
    if ids:
        leaf = max(ids, key=lambda leaf: len(leaf.levels))
        rank = torch.randperm(len(leaf.levels), generator=generator)
        order = torch.argsort(rank[rows.columns[leaf.key].index.cpu()], stable=True)  # id by id, in random order
    return order[:MAX_ROWS].sort().values


def fit_components(
    kernel: Kernel, rows: Rows, scores: Tensor, std: Tensor, values: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """Set the kernel's hyper-parameters by exact maximum likelihood on the leading scores, with L-BFGS.

    Learned vectors are not changed: here all pairs of ids have one correlation, which is fitted too.

    Args:
        scores: (n, C).  std: of the components, (C,).  values: from `some_values`.

    Returns:
        Share of each score's variance that the kernel explains, (C,), and of each value's variance, (V,).
    Cost: O(C n^3) per evaluation, n <= 512 and C <= 4.
    """
    with _ids_alike(kernel) as alike:
        tuned = [p for p in _hyperparameters(kernel) if p.requires_grad]
        deltas = nn.Parameter(torch.full((min(LEADING, scores.shape[1]),), math.log(0.1), dtype=torch.float64))
        free = [*tuned, *alike, deltas]
        leading = scores[:, : len(deltas)].to(torch.float64)

        def loss() -> Tensor:
            return _negative_log_likelihood(kernel.gram(rows, rows), deltas.exp(), leading)

        @torch.no_grad()
        def optimum(value: float) -> _Optimum:
            """The optimum at the current parameters, with its leave-one-out error."""
            error = left_out_error(kernel.gram(rows, rows), scores, std)
            stationary = (leaf for leaf in kernel.leaves() if isinstance(leaf, StationaryLeaf))
            constant = any(bool((leaf.gram(rows, rows) > CONSTANT).all()) for leaf in stationary)
            return _Optimum(value, error, constant, [p.detach().clone() for p in free])

        _minimise(loss, optimum, free, kernel)
        with torch.no_grad():
            gram = kernel.gram(rows, rows)
            return _signal(gram, scores), None if values is None else _signal_where(gram, *values)


def start_linear(linear_in: nn.Linear, linear_out: nn.Linear, found: Components, alpha: float) -> None:
    """Set encoder and decoder to the linear maps of the components, for latents of unit prior variance.

    The encoder's first inputs are the values; the weights of further inputs, such as the mask, are 0.
    """
    n = linear_out.in_features
    signal_std = (found.std * found.signal.clamp_min(0.05).sqrt())[:n, None]  # of the GP's part of a score, (C, 1)
    loadings = found.loadings[:n]  # (C, values)
    with torch.no_grad():
        linear_out.weight.zero_()
        linear_out.bias.zero_()
        linear_in.weight.zero_()
        linear_in.bias.zero_()
        linear_out.weight[:, : len(loadings)] = (loadings * signal_std).T.to(linear_out.weight)
        linear_in.weight[: len(loadings), : loadings.shape[1]] = (loadings / signal_std).to(linear_in.weight)
        linear_in.bias[n:] = math.log(alpha)  # log-variances start at the latent noise


def unexplained_variance(found: Components, n_latents: int) -> Tensor:
    """Share of each value's variance that the kernel does not explain through the first components, (values,).

    If values are missing, scores are noisy, so the share is estimated from the values themselves.
    """
    if found.value_signal is not None:
        return 1.0 - found.value_signal
    part = (found.loadings.square() * (found.std.square() * found.signal)[:, None])[:n_latents].sum(0)
    return 1.0 - part


# -- the exact fit


def _hyperparameters(kernel: Kernel) -> Iterator[nn.Parameter]:
    """All parameters of the kernel but learned vectors."""
    vectors = {id(p) for leaf in kernel.leaves() if isinstance(leaf, Learned) for p in leaf.parameters()}
    return (p for p in kernel.parameters() if id(p) not in vectors)


@contextmanager
def _ids_alike(kernel: Kernel) -> Iterator[list[nn.Parameter]]:
    """Inside the context, Learned leaves have k(p, p') = rho + (1 - rho) [p = p']; yields the logits of rho."""
    free: list[nn.Parameter] = []
    with ExitStack() as stack:
        for leaf in kernel.leaves():
            if isinstance(leaf, Learned):
                logit = nn.Parameter(torch.full((), 2.0, dtype=torch.float64, device=leaf.device))
                free.append(logit)
                stack.enter_context(leaf.with_covariance(_alike(logit)))
        yield free


def _alike(logit: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def covariance(a: Tensor, b: Tensor) -> Tensor:
        rho = logit.sigmoid()
        return rho + (1.0 - rho) * (a[:, None] == b[None, :])  # (A, B)

    return covariance


def _negative_log_likelihood(gram: Tensor, deltas: Tensor, scores: Tensor) -> Tensor:
    """sum_c n/2 log(s_c'S_c^-1 s_c / n) + 1/2 log|S_c| per row, S_c = K + delta_c I, a_c = s_c'S_c^-1 s_c / n."""
    n = len(gram)
    scale = gram.diagonal().mean()  # K has mean diagonal 1: a_c has the scale
    S = gram / scale + (deltas.clamp(*DELTAS)[:, None, None] + 1e-6) * eye_like(gram)  # (C, n, n)
    L = torch.linalg.cholesky(S)
    half = torch.linalg.solve_triangular(L, scores.T[:, :, None], upper=False)  # L^-1 s_c, (C, n, 1)
    quad = half.square().sum((1, 2))  # s_c'S_c^-1 s_c, (C,)
    fit = 0.5 * n * (quad / n).log().sum() + L.diagonal(dim1=1, dim2=2).log().sum()
    return (fit + 0.5 * scale.log().square()) / n  # the last term fixes the scale of K, which has no effect on the fit


@dataclass(frozen=True)
class _Optimum:
    """A local optimum of the likelihood.

    Attributes:
        value: negative log likelihood.  error: leave-one-out error over the variance.
        constant: whether a stationary kernel is constant at these rows.  at: the parameters.
    """

    value: float
    error: float
    constant: bool
    at: list[Tensor]


def _minimise(
    loss: Callable[[], Tensor], optimum: Callable[[float], _Optimum], free: list[nn.Parameter], kernel: Kernel
) -> None:
    """A few steps from several length scales, first with these fixed, then more from the best; failures are skipped."""
    lengths = {id(leaf.base.raw_lengthscale) for leaf in kernel.leaves() if isinstance(leaf, StationaryLeaf)}
    others = [p for p in free if id(p) not in lengths]
    origin = [p.detach().clone() for p in free]
    found: list[_Optimum] = []

    def search(parameters: list[nn.Parameter], steps: int) -> None:
        value = _descend(loss, parameters, steps)
        if math.isfinite(value):
            found.append(optimum(value))

    for factor in FACTORS if len(others) < len(free) else FACTORS[:1]:
        _assign(free, origin)
        _scale_lengths(kernel, factor)
        search(others, STEPS // 4)
        search(free, STEPS // 2)
    if not found:
        _assign(free, origin)
        return
    _assign(free, _best(found).at)
    search(free, STEPS)
    _assign(free, _best(found).at)


def _best(found: list[_Optimum]) -> _Optimum:
    """The most likely optimum; one with a constant kernel only if its leave-one-out error is as low as the others'."""
    least = min((one.error for one in found if not one.constant), default=math.inf)
    kept = [one for one in found if not one.constant or one.error <= WORSE * least]
    return min(kept or found, key=lambda one: one.value)


def _descend(loss: Callable[[], Tensor], free: list[nn.Parameter], steps: int) -> float:
    optimizer = torch.optim.LBFGS(free, max_iter=steps, max_eval=2 * steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    try:
        optimizer.step(closure)
        with torch.no_grad():
            value = float(loss())
    except (torch.linalg.LinAlgError, ValueError):
        return math.inf
    finally:
        for parameter in free:
            parameter.grad = None
    finite = math.isfinite(value) and all(bool(p.isfinite().all()) for p in free)
    return value if finite else math.inf


@torch.no_grad()
def _assign(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


@torch.no_grad()
def _scale_lengths(kernel: Kernel, factor: float) -> None:
    for leaf in kernel.leaves():
        if isinstance(leaf, StationaryLeaf) and not leaf.fixed:
            squared = isinstance(leaf, Periodic)  # its l is a squared length
            leaf.base.lengthscale = leaf.base.lengthscale * (factor**2 if squared else factor)


def _signal_where(gram: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """`_signal` of each value at the rows where it was observed, (V,); 0 if these are fewer than two."""
    signal = torch.zeros(values.shape[1], dtype=gram.dtype)
    for place, known in enumerate(seen.T):
        if known.sum() > 1:
            signal[place] = _signal(gram[known][:, known], values[known, place, None])
    return signal


def _signal(gram: Tensor, scores: Tensor) -> Tensor:
    """1 / (1 + delta_c) at the most likely delta_c of each score, (C,)."""
    return 1.0 / (1.0 + _deltas(*_spectrum(gram), scores))


def left_out_error(gram: Tensor, scores: Tensor, std: Tensor) -> float:
    """Leave-one-out error: the share of the samples' variance that is left if every row is predicted from all others.

    With S_c = K + delta_c I at the most likely delta_c, the error at row n is [S_c^-1 s_c]_n / [S_c^-1]_nn.

    Args:
        gram: of the rows, (n, n).  scores: (n, C).  std: of the components, (C,).
    """
    values, vectors = _spectrum(gram)
    inverse = 1.0 / (values[:, None] + _deltas(values, vectors, scores))  # eigenvalues of S_c^-1, (n, C)
    missed = (vectors @ (inverse * (vectors.T @ scores.to(gram)))) / (vectors.square() @ inverse)  # (n, C)
    weight = std.to(gram).square()
    return float((missed.square().mean(0) * weight).sum() / weight.sum())


def _spectrum(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n,), at least 0, and eigenvectors (n, n) of a Gram matrix scaled to a mean diagonal of 1."""
    values, vectors = torch.linalg.eigh(gram / gram.diagonal().mean())
    return values.clamp_min(0.0), vectors


def _deltas(values: Tensor, vectors: Tensor, scores: Tensor) -> Tensor:
    """The most likely delta_c, noise over signal, of each score on a grid, (C,)."""
    rotated = (vectors.T @ scores.to(vectors)).square()  # (n, C)
    deltas = torch.from_numpy(SHARES).to(vectors)
    spectrum = values[:, None] + deltas  # eigenvalues of K + delta I, (n, D)
    quad = rotated.T @ (1.0 / spectrum)  # s_c'(K + delta I)^-1 s_c, (C, D)
    n = len(values)
    nll = 0.5 * n * (quad / n).log() + 0.5 * spectrum.log().sum(0)  # (C, D)
    return deltas[nll.argmin(1)]

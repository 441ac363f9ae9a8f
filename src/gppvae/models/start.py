"""Where a fit starts: kernel hyper-parameters, latents and noise of an exact GP on principal components.

The principal component scores of the samples are latents that cost nothing. An exact Gaussian process on the leading
ones gives length scales and amplitudes of the kernel before any network is trained:

    score_c ~ N(0, a_c (K(theta) + delta_c I)),   c = 1 ... C,   a_c in closed form

The likelihood has several optima. In a product of ids and a number, the leading scores often are most likely where the
number says nothing, since they are what ids differ by. Such an optimum is taken only if it predicts rows from all
others as well as those where the number says something.

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
CONSTANT = 0.9  # correlation of all rows from which on a stationary kernel says next to nothing of them
WORSE = 1.02  # error at rows left out, over the least, that such a kernel may have
SHARES = np.exp(np.linspace(math.log(DELTAS[0]), math.log(DELTAS[1]), 57))


@dataclass(frozen=True)
class Components:
    """Principal components of standardised samples, and what a kernel explains of them.

    Attributes:
        loadings: (C, values), orthonormal.  std: of the scores, (C,).
        signal: share of each score's variance that the kernel explains, (C,).
        value_signal: share of each value's variance that it explains, (values,), where values are missing.
    """

    loadings: Tensor
    std: Tensor
    signal: Tensor
    value_signal: Tensor | None = None

    def count(self, least_signal: float) -> int:
        """Number of components of which the kernel explains at least this share; at least one."""
        return max(1, int((self.signal >= least_signal).sum()))


def principal_components(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (n, C) of unit variance, loadings (C, values) and standard deviations (C,) of standardised samples.

    Args:
        y: (n, channels or values, ...).  mask: of observed values, or None; missing values count as the mean.
    """
    flat = y.double().flatten(2) if y.ndim > 2 else y.double().unsqueeze(2)  # (n, C, values of a channel)
    seen = torch.ones_like(flat) if mask is None else mask.reshape(flat.shape).double()
    count = seen.sum((0, 2)).clamp_min(1.0)[:, None]
    centred = (flat - ((flat * seen).sum((0, 2))[:, None] / count)) * seen
    std = (centred.square().sum((0, 2))[:, None] / count).sqrt()
    flat = (centred / torch.where(std > 0.0, std, torch.ones_like(std))).flatten(1)
    flat = flat - flat.mean(0)
    values, vectors = torch.linalg.eigh(flat @ flat.T)  # (n, n): rows are few, values may be many
    values, vectors = values.flip(0)[:MAX_COMPONENTS], vectors.flip(1)[:, :MAX_COMPONENTS]
    kept = values > 1e-9 * values[0].clamp_min(1e-12)
    kept[0] = True
    scores = vectors[:, kept] * math.sqrt(len(flat))
    stds = (values[kept].clamp_min(1e-12) / len(flat)).sqrt()
    return scores, scores.T @ flat / (len(flat) * stds[:, None]), stds


def some_values(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Standardised values of samples, and which were observed, (n, V) each; None for images, or with none missing.

    Args:
        y: (n, values); at most MAX_COMPONENTS of the values are taken, evenly spaced.  mask: of observed values.
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
    """Numbers of the values that `some_values` takes, for all values: the others get the mean."""
    whole = of_some.mean().repeat(n_values)
    whole[_some_places(n_values)] = of_some
    return whole


def _some_places(n_values: int) -> Tensor:
    return torch.linspace(0, n_values - 1, min(n_values, MAX_COMPONENTS)).round().long()


def rows_for_start(rows: Rows, kernels: list[Kernel], generator: torch.Generator) -> Tensor:
    """Some rows, at most MAX_ROWS: whole ids of the id column with most levels, since their views belong together."""
    n = len(rows)
    if n <= MAX_ROWS:
        return torch.arange(n)
    ids = [leaf for kernel in kernels for leaf in kernel.leaves() if isinstance(leaf, IdLeaf)]
    order = torch.randperm(n, generator=generator)
    if ids:
        leaf = max(ids, key=lambda leaf: len(leaf.levels))
        rank = torch.randperm(len(leaf.levels), generator=generator)
        order = torch.argsort(rank[rows.columns[leaf.key].index.cpu()], stable=True)
    return order[:MAX_ROWS].sort().values


def fit_components(
    kernel: Kernel, rows: Rows, scores: Tensor, std: Tensor, values: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """Set the kernel's hyper-parameters by exact maximum likelihood on the leading scores.

    Learned vectors stay as they are: here all pairs of ids have one correlation, which is fitted too.

    Args:
        scores: (n, C).  std: of the components, (C,).  values: of `some_values`.

    Returns:
        Share of each score's variance that the kernel explains, (C,), and of each value's variance, (V,).
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
            """What there is to know of the parameters as they are."""
            error = left_out_error(kernel.gram(rows, rows), scores, std)
            stationary = (leaf for leaf in kernel.leaves() if isinstance(leaf, StationaryLeaf))
            silent = any(bool((leaf.gram(rows, rows) > CONSTANT).all()) for leaf in stationary)
            return _Optimum(value, error, silent, [p.detach().clone() for p in free])

        _minimise(loss, optimum, free, kernel)
        with torch.no_grad():
            gram = kernel.gram(rows, rows)
            return _signal(gram, scores), None if values is None else _signal_where(gram, *values)


def start_linear(linear_in: nn.Linear, linear_out: nn.Linear, found: Components, alpha: float) -> None:
    """Encoder and decoder as the linear maps of the components, latents of unit prior variance.

    The encoder's first inputs are the values; what it says of further ones, such as the mask, is 0.
    """
    n = linear_out.in_features
    signal_std = (found.std * found.signal.clamp_min(0.05).sqrt())[:n, None]  # of the part that the GP explains
    loadings = found.loadings[:n]
    with torch.no_grad():
        linear_out.weight.zero_()
        linear_out.bias.zero_()
        linear_in.weight.zero_()
        linear_in.bias.zero_()
        linear_out.weight[:, : len(loadings)] = (loadings * signal_std).T.to(linear_out.weight)
        linear_in.weight[: len(loadings), : loadings.shape[1]] = (loadings / signal_std).to(linear_in.weight)
        linear_in.bias[n:] = math.log(alpha)


def unexplained_variance(found: Components, n_latents: int) -> Tensor:
    """Share of each value's variance that the first components, as the kernel explains them, leave, (values,).

    Where values are missing, scores are noisy in proportion; the values themselves then say what the kernel leaves.
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
    """Inside the context, learned ids have the covariance s + (1 - s) [p = p']; yields the parameters of s."""
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
        shared = logit.sigmoid()
        return shared + (1.0 - shared) * (a[:, None] == b[None, :])

    return covariance


def _negative_log_likelihood(gram: Tensor, deltas: Tensor, scores: Tensor) -> Tensor:
    """sum_c n/2 log(z_c' S_c^-1 z_c / n) + 1/2 log|S_c| with S_c = K + delta_c I, amplitudes in closed form."""
    n = len(gram)
    scale = gram.diagonal().mean()  # amplitudes take any scale
    S = gram / scale + (deltas.clamp(*DELTAS)[:, None, None] + 1e-6) * eye_like(gram)  # (C, n, n)
    L = torch.linalg.cholesky(S)
    half = torch.linalg.solve_triangular(L, scores.T[:, :, None], upper=False)
    quad = half.square().sum((1, 2))
    fit = 0.5 * n * (quad / n).log().sum() + L.diagonal(dim1=1, dim2=2).log().sum()
    return (fit + 0.5 * scale.log().square()) / n  # the last term only keeps the amplitudes of a sum from drifting


@dataclass(frozen=True)
class _Optimum:
    """Where a search ended.

    Attributes:
        value: negative log likelihood.  error: share of variance that is missed at rows left out.
        silent: whether a column of numbers says nothing.  at: the parameters.
    """

    value: float
    error: float
    silent: bool
    at: list[Tensor]


def _minimise(
    loss: Callable[[], Tensor], optimum: Callable[[float], _Optimum], free: list[nn.Parameter], kernel: Kernel
) -> None:
    """A few steps from several length scales, first with these held, then more from the best; failures are skipped."""
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
    """The most likely; one where a column says nothing only if it predicts left-out rows as well as the others."""
    least = min((one.error for one in found if not one.silent), default=math.inf)
    kept = [one for one in found if not one.silent or one.error <= WORSE * least]
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
    """`_signal` of each value at the rows where it was observed; 0 for one that was observed in fewer than two."""
    signal = torch.zeros(values.shape[1], dtype=gram.dtype)
    for place, known in enumerate(seen.T):
        if known.sum() > 1:
            signal[place] = _signal(gram[known][:, known], values[known, place, None])
    return signal


def _signal(gram: Tensor, scores: Tensor) -> Tensor:
    """1 / (1 + delta_c) at the most likely delta_c of each score."""
    return 1.0 / (1.0 + _deltas(*_spectrum(gram), scores))


def left_out_error(gram: Tensor, scores: Tensor, std: Tensor) -> float:
    """Share of the samples' variance that is missed where every row is predicted from all others.

    With S_c = K + delta_c I at the most likely delta_c, the error at row n is [S_c^-1 z_c]_n / [S_c^-1]_nn.

    Args:
        gram: of the rows, (n, n).  scores: (n, C).  std: of the components, (C,).
    """
    values, vectors = _spectrum(gram)
    inverse = 1.0 / (values[:, None] + _deltas(values, vectors, scores))  # (n, C)
    missed = (vectors @ (inverse * (vectors.T @ scores.to(gram)))) / (vectors.square() @ inverse)
    weight = std.to(gram).square()
    return float((missed.square().mean(0) * weight).sum() / weight.sum())


def _spectrum(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, at least 0, and eigenvectors of a Gram matrix scaled to a mean diagonal of 1."""
    values, vectors = torch.linalg.eigh(gram / gram.diagonal().mean())
    return values.clamp_min(0.0), vectors


def _deltas(values: Tensor, vectors: Tensor, scores: Tensor) -> Tensor:
    """The most likely noise over signal of each score, (C,)."""
    rotated = (vectors.T @ scores.to(vectors)).square()  # (n, C)
    deltas = torch.from_numpy(SHARES).to(vectors)
    spectrum = values[:, None] + deltas  # (n, D)
    quad = rotated.T @ (1.0 / spectrum)  # (C, D)
    n = len(values)
    nll = 0.5 * n * (quad / n).log() + 0.5 * spectrum.log().sum(0)
    return deltas[nll.argmin(1)]

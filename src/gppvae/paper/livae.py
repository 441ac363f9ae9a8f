"""Linear interpolation between the latents of a VAE: from the two nearest observed views to the one between."""

from __future__ import annotations

import numpy as np


def neighbours(view: float, observed: np.ndarray, period: float | None) -> tuple[int, int, float]:
    """The observed views on either side of `view`, and how far between them it lies.

    Args:
        view: the one wanted.  observed: (T,) views of the object, in any order.
        period: of the circle the views lie on; None for a line, beyond whose ends the last view is repeated.

    Returns:
        Positions in `observed` of the view below and the view above, and the weight of the one above in [0, 1].
    """
    if observed.size == 0:
        raise ValueError("expected at least one observed view of the object, got none; leave it out")
    below, above = view - observed, observed - view
    if period is not None:
        below, above = below % period, above % period
    below, above = np.where(below < 0, np.inf, below), np.where(above < 0, np.inf, above)
    low, high = int(np.argmin(below)), int(np.argmin(above))
    if not np.isfinite(below[low]):
        low = high
    if not np.isfinite(above[high]):
        high = low
    if low == high or below[low] == 0.0:
        return low, low, 0.0
    return low, high, float(below[low] / (below[low] + above[high]))


def interpolate_latents(
    mean: np.ndarray,
    var: np.ndarray,
    objects: np.ndarray,
    views: np.ndarray,
    wanted_objects: np.ndarray,
    wanted_views: np.ndarray,
    period: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of (1 - t) z_below + t z_above for every wanted row, (n, L) each.

    Args:
        mean, var: (N, L) of q(z) of the encoded views.  objects, views: (N,) of these.
        wanted_objects, wanted_views: (n,) rows to answer.  period: see `neighbours`.
    """
    means, variances = [], []
    for name, view in zip(wanted_objects, wanted_views, strict=True):
        own = np.flatnonzero(objects == name)
        if own.size == 0:
            raise ValueError(
                f"expected an encoded view of every wanted object, got none of {str(name)!r}; leave it out"
            )
        low, high, t = neighbours(float(view), views[own], period)
        i, j = own[low], own[high]
        means.append((1.0 - t) * mean[i] + t * mean[j])
        variances.append(var[i] if i == j else (1.0 - t) ** 2 * var[i] + t**2 * var[j])
    return np.stack(means), np.stack(variances)

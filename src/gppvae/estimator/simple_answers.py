"""Baselines without a model, which a prediction must beat."""

from __future__ import annotations

from typing import Any

import numpy as np

from gppvae.data.table import Table


def mean_image(samples: np.ndarray, n_rows: int) -> np.ndarray:
    """The mean of all training samples, repeated for each row: (n_rows, *shape)."""
    return np.repeat(np.asarray(samples).mean(axis=0, keepdims=True), n_rows, axis=0)


def copy_nearest_view(
    samples: np.ndarray, table: Any, wanted: Any, object_column: str, view_column: str, period: float | None = None
) -> np.ndarray:
    """For each wanted row, the training sample of the same object whose view is nearest.

    Ties go to the first row of the table.

    Args:
        samples: (N, *shape) training samples.  table: their N rows.  wanted: rows to predict.
        object_column: ids.  view_column: numbers.
        period: of the view column; distances are then circular.

    Returns:
        (number of wanted rows, *shape).
    """
    train, rows = Table(table), Table(wanted)
    objects, wanted_objects = train.ids(object_column), rows.ids(object_column)
    distance = view_distance(rows.numeric((view_column,))[:, 0], train.numeric((view_column,))[:, 0], period)
    distance = np.where(wanted_objects[:, None] == objects[None, :], distance, np.inf)  # (N*, N)
    unseen = np.flatnonzero(~np.isfinite(distance).any(axis=1))
    if unseen.size:
        name = str(wanted_objects[unseen[0]])
        raise ValueError(
            f"expected a training sample of every wanted {object_column}, got none of {name!r}; leave it out"
        )
    return np.asarray(samples)[distance.argmin(axis=1)]


def mean_of_nearest_view(
    samples: np.ndarray, table: Any, wanted: Any, view_column: str, period: float | None = None
) -> np.ndarray:
    """For each wanted row, the mean of all training samples at the nearest view, or views at a tie."""
    array = np.asarray(samples)
    views = Table(table).numeric((view_column,))[:, 0]
    distinct, which = np.unique(Table(wanted).numeric((view_column,))[:, 0], return_inverse=True)
    distance = view_distance(distinct, views, period)  # (V, N)
    nearest = np.isclose(distance, distance.min(axis=1, keepdims=True), rtol=0.0, atol=1e-9)
    return np.stack([array[row].mean(axis=0) for row in nearest])[which]


def view_distance(a: np.ndarray, b: np.ndarray, period: float | None = None) -> np.ndarray:
    """|a - b| for every pair, (len(a), len(b)); circular if there is a period."""
    apart = np.abs(np.asarray(a)[:, None] - np.asarray(b)[None, :])
    if period is None:
        return apart
    apart = apart % period
    return np.minimum(apart, period - apart)

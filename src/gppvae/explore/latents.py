"""The latents along their principal directions: all rows, and the path of one row along a numeric column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gppvae.data.subset import evenly
from gppvae.explore.live import NOTHING_OFF, Live
from gppvae.explore.sources import Cells
from gppvae.explore.terms import TermName

MAX_FITTED = 2000  # rows used to find the directions
MAX_SHOWN = 5000  # rows in the scatter
MAX_DIRECTIONS = 6
PATH_POINTS = 61


@dataclass(frozen=True)
class Directions:
    """Principal directions of the latent means: coordinates are (z - centre) @ axes.

    Attributes:
        centre: (L,).  axes: (L, k).  shares: of the variance, (k,).
    """

    centre: np.ndarray
    axes: np.ndarray
    shares: np.ndarray

    def place(self, mean: np.ndarray) -> np.ndarray:
        """Coordinates of latents, (N, k)."""
        return (mean - self.centre) @ self.axes

    def width(self, std: np.ndarray) -> np.ndarray:
        """Standard deviations along the directions, (N, k), for independent latents with deviations `std` (N, L)."""
        return np.sqrt(np.square(std) @ np.square(self.axes))


def find_directions(mean: np.ndarray) -> Directions:
    """Principal components of latents (N, L); the coordinate axes if all rows are equal."""
    centre = mean.mean(axis=0)
    k = min(MAX_DIRECTIONS, mean.shape[1])
    _, singular, rows = np.linalg.svd(mean - centre, full_matrices=True)  # rows: (L, L)
    squares = np.zeros(mean.shape[1])
    squares[: len(singular)] = np.square(singular)
    signs = np.where(rows.sum(axis=1) < 0, -1.0, 1.0)  # the SVD leaves signs open; this makes them reproducible
    return Directions(centre, (rows * signs[:, None])[:k].T, squares[:k] / (squares.sum() or 1.0))


def scatter(live: Live, cells: Cells) -> tuple[Directions, np.ndarray, np.ndarray]:
    """Directions of the latents, the cells shown, and their coordinates (n, k)."""
    shown = evenly(len(cells.table), MAX_SHOWN)
    mean, _ = live.latents(cells.rows(shown))
    found = find_directions(mean[evenly(len(mean), MAX_FITTED)])
    return found, shown, found.place(mean)


def path(
    live: Live,
    directions: Directions,
    row: dict[str, Any],
    column: str,
    span: tuple[float, float],
    off: frozenset[TermName] = NOTHING_OFF,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The path of a row along a numeric column: values (n,), coordinates and their standard deviations (n, k) each."""
    at = np.linspace(*span, PATH_POINTS)
    table = {name: np.repeat(np.array([value]), len(at)) for name, value in row.items()} | {column: at}
    mean, std = live.latents(table, off)
    return at, directions.place(mean), directions.width(std)

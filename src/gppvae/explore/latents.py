"""The latents in a few directions: where the rows are, and the path of one object along a numeric column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gppvae.data.subset import evenly
from gppvae.explore.live import NOTHING_OFF, Live
from gppvae.explore.sources import Cells
from gppvae.explore.terms import TermName

MAX_FITTED = 2000  # rows that the directions are found from
MAX_SHOWN = 5000  # rows in the scatter
MAX_DIRECTIONS = 6
PATH_POINTS = 61


@dataclass(frozen=True)
class Directions:
    """Principal directions of the latents' means: coordinates are (z - centre) @ axes.

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
        """Standard deviations along the directions, (N, k), of latents that are independent given their row."""
        return np.sqrt(np.square(std) @ np.square(self.axes))


def find_directions(mean: np.ndarray) -> Directions:
    """Directions of most variance; the axes themselves if all latents are equal."""
    centre = mean.mean(axis=0)
    k = min(MAX_DIRECTIONS, mean.shape[1])
    _, sizes, rows = np.linalg.svd(mean - centre, full_matrices=True)
    squares = np.zeros(mean.shape[1])
    squares[: len(sizes)] = np.square(sizes)
    signs = np.where(rows.sum(axis=1) < 0, -1.0, 1.0)  # so that the picture is always the same
    return Directions(centre, (rows * signs[:, None])[:k].T, squares[:k] / (squares.sum() or 1.0))


def scatter(live: Live, cells: Cells) -> tuple[Directions, np.ndarray, np.ndarray]:
    """Directions of the latents, the cells that are shown, and their coordinates (n, k)."""
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
    """The path of a row along a numeric column: its values (n,), coordinates and their deviations (n, k) each."""
    at = np.linspace(*span, PATH_POINTS)
    table = {name: np.repeat(np.array([value]), len(at)) for name, value in row.items()} | {column: at}
    mean, std = live.latents(table, off)
    return at, directions.place(mean), directions.width(std)

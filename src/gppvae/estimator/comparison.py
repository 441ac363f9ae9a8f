"""How good a fit is: its error at rows it was not trained on, beside the simple answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gppvae.data.arrays import Samples, from_input_layout
from gppvae.data.table import Table
from gppvae.estimator.simple_answers import view_distance
from gppvae.kernels import IdLeaf, Learned, NumericLeaf, Periodic
from gppvae.training.distributed import first_process

if TYPE_CHECKING:
    from gppvae.estimator.measuring import Measuring

log = logging.getLogger("gppvae")

MODEL = "model"
MOST_ROWS = 256  # that are compared
MOST_AVERAGED = 512  # training rows in a mean
Weights = tuple[np.ndarray, np.ndarray]  # positions of training rows and their weights, for one wanted row


@dataclass(frozen=True)
class Comparison:
    """Errors at held-out rows: mean squared, each value in units of its variance in the training data.

    Attributes:
        errors: by name, the model's under "model".  n_rows: how many rows were compared.
    """

    errors: dict[str, float]
    n_rows: int

    @property
    def error(self) -> float:
        """The model's error."""
        return self.errors[MODEL]

    @property
    def best_simple(self) -> str:
        """Name of the simple answer with the least error."""
        return min((name for name in self.errors if name != MODEL), key=self.errors.__getitem__)

    @property
    def loses(self) -> bool:
        """Whether a simple answer is better than the model."""
        return self.errors[self.best_simple] < self.error

    def __str__(self) -> str:
        others = ", ".join(f"{name} {error:.3g}" for name, error in self.errors.items() if name != MODEL)
        return f"error at {self.n_rows} held-out rows {self.error:.3g} of the variance; simple answers: {others}"

    def to_json(self) -> dict[str, Any]:
        return {"errors": self.errors, "n_rows": self.n_rows}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Comparison:
        errors = saved["errors"]
        fits = isinstance(errors, dict) and MODEL in errors and len(errors) > 1
        if not fits or not all(isinstance(e, float) and 0.0 <= e < math.inf for e in errors.values()):
            raise ValueError("a comparison must have finite errors by name")
        return cls(errors, int(saved["n_rows"]))


def compare(model: Measuring, training: tuple[Samples, Table], held: tuple[Samples, Table]) -> Comparison:
    """Compare the model's predictions at held-out rows with the simple answers; log it, and warn when it loses."""
    picked = np.arange(0, len(held[0]), -(-len(held[0]) // MOST_ROWS))
    wanted = held[1].take(picked)
    y, mask = held[0].read(torch.from_numpy(picked))
    unit = model._unit()
    predicted = from_input_layout(np.asarray(model.predict(wanted).mean), model.layout_)
    answers = simple_answers(model, training, wanted)
    errors = {MODEL: _error(y.numpy(), predicted, mask, unit)}
    errors |= {name: _error(y.numpy(), answer, mask, unit) for name, answer in answers}
    found = Comparison(errors, len(picked))
    if first_process():
        log.info("%s", found)
        if found.loses:
            log.warning(
                "at held-out rows the simple answer '%s' has a smaller error than the model; train longer (epochs), "
                "give more latents (latent_dim), or choose a kernel that reads other columns",
                found.best_simple,
            )
    return found


def _error(y: np.ndarray, answer: np.ndarray, mask: torch.Tensor | None, unit: np.ndarray) -> float:
    squares = np.square((y.astype(np.float64) - answer) / unit)
    return float(squares.mean() if mask is None else squares[mask.numpy()].mean())


def simple_answers(
    model: Measuring, training: tuple[Samples, Table], wanted: Table
) -> Iterator[tuple[str, np.ndarray]]:
    """Predictions that need no model, by name: what the kernel's columns allow.

    Args:
        training: samples and table.  wanted: rows to answer.
    """
    samples, table = training
    leaves = model.prior_.leaves()
    ids = [leaf for leaf in leaves if isinstance(leaf, IdLeaf)]
    objects = max(ids, key=lambda leaf: (isinstance(leaf, Learned), len(leaf.levels)), default=None)
    view = next((leaf for leaf in ids if objects is not None and leaf.column != objects.column), None)
    everything = _even(_spread(np.arange(len(table))))
    yield "mean", np.repeat(_blend(samples, [everything]), len(wanted), axis=0)
    same = np.ones((len(wanted), len(table)), dtype=bool)  # (wanted, training): rows of the same object
    for leaf in (objects, view):
        if leaf is not None:
            alike = wanted.ids(leaf.column)[:, None] == table.ids(leaf.column)[None, :]
            rows = [_even(_spread(np.flatnonzero(row))) if row.any() else everything for row in alike]
            yield f"mean of the {leaf.column}", _blend(samples, rows)
            same = alike if leaf is objects else same
    numeric = next((leaf for leaf in leaves if isinstance(leaf, NumericLeaf) and _complete(leaf, table, wanted)), None)
    if numeric is not None:
        names = numeric.columns_read
        period = numeric.period if isinstance(numeric, Periodic) else None
        a, b = wanted.numeric(names), table.numeric(names)
        spread = np.where(b.std(0) > 0, b.std(0), 1.0)
        distance = sum(np.square(view_distance(a[:, c], b[:, c], period) / spread[c]) for c in range(len(names)))
        distance = np.where(same, np.sqrt(distance), np.inf)
        yield "nearest sample", _blend(samples, [_even(np.array([row.argmin()])) for row in distance])
        if len(names) == 1:
            pairs = [_neighbours(a[n, 0], b[:, 0], same[n], period) for n in range(len(wanted))]
            yield f"linear in {names[0]}", _blend(samples, pairs)


def _complete(leaf: NumericLeaf, *tables: Table) -> bool:
    """Whether no number that the leaf reads is missing."""
    return all(len(table.known(leaf.columns_read)) == len(table) for table in tables)


def _spread(rows: np.ndarray) -> np.ndarray:
    """At most MOST_AVERAGED of these positions, evenly."""
    return rows[:: max(1, -(-len(rows) // MOST_AVERAGED))]


def _even(rows: np.ndarray) -> Weights:
    """These rows, all with the same weight."""
    return rows, np.ones(len(rows))


def _neighbours(at: float, values: np.ndarray, allowed: np.ndarray, period: float | None) -> Weights:
    """The nearest training rows below and above `at`, with the weights of a straight line; one alone at the ends."""
    rows = np.flatnonzero(allowed) if allowed.any() else np.arange(len(values))
    apart = values[rows] - at
    if period is not None:
        apart = apart - period * np.round(apart / period)
    below, above = rows[apart <= 0], rows[apart >= 0]
    if not len(below) or not len(above):
        return _even(np.array([rows[np.abs(apart).argmin()]]))
    lower, upper = apart[apart <= 0], apart[apart >= 0]
    i, j = lower.argmax(), upper.argmin()
    gap = upper[j] - lower[i]
    weight = 0.5 if gap == 0 else -lower[i] / gap
    return np.array([below[i], above[j]]), np.array([1.0 - weight, weight])


def _blend(samples: Samples, rows: list[Weights]) -> np.ndarray:
    """Weighted means of training samples, one per entry; values that are missing there do not count."""
    found = []
    for index, weights in rows:
        y, mask = samples.read(torch.from_numpy(index))
        seen = np.ones(y.shape) if mask is None else mask.numpy().astype(np.float64)
        weight = weights.reshape(-1, *(1 for _ in samples.shape)) * seen
        total = weight.sum(0)
        found.append((y.numpy() * weight).sum(0) / np.where(total > 0, total, 1.0))
    return np.stack(found)

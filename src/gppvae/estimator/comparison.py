"""Errors of a fit at held-out rows, compared with baselines that need no model (the simple answers)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gppvae.data.arrays import Samples, from_input_layout
from gppvae.data.sizes import SIZE
from gppvae.data.table import Table
from gppvae.estimator.simple_answers import view_distance
from gppvae.kernels import IdLeaf, Learned, NumericLeaf, Periodic
from gppvae.likelihoods.counts import Counts
from gppvae.likelihoods.scaled import ScaledGaussian
from gppvae.likelihoods.values import Likelihood
from gppvae.training.distributed import first_process

if TYPE_CHECKING:
    from gppvae.estimator.measuring import Measuring

log = logging.getLogger("gppvae")

MODEL, VARIANCE = "model", "variance"
NEAREST, LINEAR = "nearest sample", "linear in "  # simple answers along a numeric column
MOST_ROWS = 256  # held-out rows compared
MOST_AVERAGED_ROWS = 512  # training rows per mean
Weights = tuple[np.ndarray, np.ndarray]  # positions and weights of training rows, for one wanted row


@dataclass(frozen=True)
class Comparison:
    """Mean errors at held-out rows, of the model and of the simple answers.

    Attributes:
        errors: by name, the model's under "model".  n_rows: number of rows compared.
        measure: "variance" for squared errors relative to each value's variance in the training data, else the name of
            the likelihood's error: "mse", or "deviance" for counts, where predictions have the size of the sample.
    """

    errors: dict[str, float]
    n_rows: int
    measure: str = VARIANCE

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

    @property
    def unit(self) -> str:
        """The unit of the errors, to follow a number."""
        return "of the variance" if self.measure == VARIANCE else f"({self.measure})"

    def __str__(self) -> str:
        others = ", ".join(f"{name} {error:.3g}" for name, error in self.errors.items() if name != MODEL)
        return f"error at {self.n_rows} held-out rows {self.error:.3g} {self.unit}; simple answers: {others}"

    def to_json(self) -> dict[str, Any]:
        return {"errors": self.errors, "n_rows": self.n_rows, "measure": self.measure}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Comparison:
        errors = saved["errors"]
        fits = isinstance(errors, dict) and MODEL in errors and len(errors) > 1
        if not fits or not all(isinstance(e, float) and 0.0 <= e < math.inf for e in errors.values()):
            raise ValueError("a comparison must have finite errors by name")
        return cls(errors, int(saved["n_rows"]), str(saved.get("measure", VARIANCE)))  # 0.2.0 wrote none


def compare(model: Measuring, training: tuple[Samples, Table], held: tuple[Samples, Table]) -> Comparison:
    """Compare the model with the simple answers at held-out rows; log the errors, and warn if the model loses."""
    found = compared(model, training, held)
    if first_process():
        log.info("%s", found)
        if found.loses:
            log.warning(
                f"at held-out rows the simple answer '{found.best_simple}' has a smaller error than the model; "
                f"{_hint(found.best_simple)}"
            )
    return found


def _hint(winner: str) -> str:
    """A hint for the warning, by the simple answer that won."""
    if winner == NEAREST or winner.startswith(LINEAR):
        return "samples may change faster than the kernel lets them: try Matern with nu=0.5, or a shorter lengthscale="
    return "train longer (epochs), give more latents (latent_dim), or choose a kernel that reads other columns"


def compared(model: Measuring, training: tuple[Samples, Table] | None, held: tuple[Samples, Table]) -> Comparison:
    """Errors of the model and of the simple answers at held-out rows; of the model alone without training data."""
    picked = np.arange(0, len(held[0]), -(-len(held[0]) // MOST_ROWS))
    wanted = at_their_sizes(model, held[0], held[1].take(picked), picked)
    y, mask = held[0].read(torch.from_numpy(picked))
    predicted = from_input_layout(np.asarray(model.predict(wanted).mean), model.layout_)
    errors = {MODEL: _error(model, y, predicted, mask)}
    if training is not None:
        errors |= {name: _error(model, y, answer, mask) for name, answer in simple_answers(model, training, wanted)}
    likelihood = model._autoencoder.likelihood.values
    measure = VARIANCE if isinstance(likelihood, ScaledGaussian) else likelihood.error_name
    return Comparison(errors, len(picked), measure)


def _error(model: Measuring, y: torch.Tensor, answer: np.ndarray, mask: torch.Tensor | None) -> float:
    """Mean error of the likelihood over observed values; squared errors are in units of the values."""
    likelihood = model._autoencoder.likelihood.values
    unit = torch.from_numpy(model._unit())
    parts = (part.double() / unit for part in (y, torch.tensor(answer)))
    errors = likelihood.error(*parts)
    return float(errors.mean() if mask is None else errors[mask].mean())


@torch.no_grad()
def at_their_sizes(model: Measuring, samples: Samples, table: Table, index: np.ndarray) -> Table:
    """Rows with the size of each sample of counts, so that predictions can be compared with the samples.

    Args:
        samples: all samples.  table: the rows at `index`.
    """
    likelihood = model._autoencoder.likelihood.values
    totals = isinstance(likelihood, Counts) and likelihood.needs_totals
    return Table(table.columns | {SIZE: _sizes(likelihood, samples, table, index)}) if totals else table


def simple_answers(
    model: Measuring, training: tuple[Samples, Table], wanted: Table
) -> Iterator[tuple[str, np.ndarray]]:
    """Predictions that need no model, by name; the columns of the kernel decide which there are.

    Args:
        training: samples and table.  wanted: rows to predict, with the sizes of samples of counts.
    """
    samples, table = training
    likelihood = model._autoencoder.likelihood.values
    column = next((name for name in (SIZE, likelihood.size_column) if name in wanted.columns), None)
    mean: np.ndarray | None = None  # the first answer, which replaces missing values in the others
    for name, rows in _averaged_rows(model, table, wanted):
        answer = _weighted_means(samples, rows, mean)
        mean = answer[0] if mean is None else mean
        if isinstance(likelihood, Counts):
            answer = _smoothed_counts(answer, mean)
        if column is not None:
            own = [np.average(_sizes(likelihood, samples, table.take(i), i), weights=w) for i, w in rows]
            ratio = wanted.numeric((column,))[:, 0] / np.array(own)  # (N*,)
            answer = answer * ratio.reshape(-1, *(1 for _ in samples.shape))
        yield name, np.broadcast_to(answer, (len(wanted), *samples.shape))


def _smoothed_counts(counts: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Add one count in total, distributed by the mean rates, and rescale to the same totals.

    A single sample is then no prediction of zero counts, whose deviance is infinite.
    """
    totals = counts.reshape(len(counts), -1).sum(1).reshape(-1, *(1 for _ in mean.shape))  # (N*, 1, ...)
    share = mean / max(float(mean.sum()), 1e-12)
    return (counts + share) * totals / (totals + 1.0)


def _sizes(likelihood: Likelihood, samples: Samples, table: Table, index: np.ndarray) -> np.ndarray:
    """Sizes of the samples of counts at `index`, (n,): their totals, or a column of `table`, their rows."""
    if likelihood.size_column is not None:
        return table.numeric((likelihood.size_column,))[:, 0]
    y, mask = samples.read(torch.from_numpy(index))
    device = next(iter(likelihood.buffers())).device
    found = likelihood.sizes(y.to(device), None if mask is None else mask.to(device), None)
    assert found is not None
    return found.double().cpu().numpy()


def _averaged_rows(model: Measuring, table: Table, wanted: Table) -> Iterator[tuple[str, list[Weights]]]:
    """(name, training rows and weights that it averages) of each simple answer, per wanted row or once for all."""
    leaves = model.prior_.leaves()
    ids = [leaf for leaf in leaves if isinstance(leaf, IdLeaf)]
    objects = max(ids, key=lambda leaf: (isinstance(leaf, Learned), len(leaf.levels)), default=None)
    view = next((leaf for leaf in ids if objects is not None and leaf.column != objects.column), None)
    everything = _equal_weights(_thin(np.arange(len(table))))
    yield "mean", [everything]
    for leaf in (objects, view):
        if leaf is not None:
            yield f"mean of the {leaf.column}", _of_same_id(leaf.column, table, wanted, everything)
    axes = _numeric_axes(model, table, wanted)
    if not axes:
        return
    names = tuple(axes)
    a, b = wanted.numeric(names), table.numeric(names)  # (wanted, d), (training, d)
    spread = np.where(b.std(0) > 0, b.std(0), 1.0)
    object_column = None if objects is None else objects.column
    nearest, lines = list[Weights](), list[Weights]()
    # One wanted row at a time: a matrix of all pairs would need gigabytes for a million training rows.
    for at, comparable in zip(
        a, _comparable_rows(wanted, table, [leaf.column for leaf in ids], object_column), strict=True
    ):
        apart = (view_distance(at[c : c + 1], b[:, c], axes[name])[0] / spread[c] for c, name in enumerate(names))
        distance = np.where(comparable, np.sqrt(sum(map(np.square, apart))), np.inf)  # (training,)
        # All rows at the nearest place, but not those at the same distance on the other side: that would interpolate.
        place = (b == b[distance.argmin()]).all(1) & np.isfinite(distance)
        nearest.append(_equal_weights(_thin(np.flatnonzero(place))))
        if len(names) == 1:
            lines.append(_interpolation(at[0], b[:, 0], comparable, axes[names[0]]))
    yield NEAREST, nearest
    if lines:
        yield f"{LINEAR}{names[0]}", lines


def _numeric_axes(model: Measuring, table: Table, wanted: Table) -> dict[str, float | None]:
    """The numeric columns in which distances are measured, with their periods if they have one.

    They are those of one leaf of the kernel and of the leaves that multiply it: RBF(x) * RBF(y) is a map.
    """
    terms = [term for kernel in model.prior_.kernels for term in kernel.terms()]
    numeric = [
        leaf
        for leaf in model.prior_.leaves()
        if isinstance(leaf, NumericLeaf) and all(len(t.known(leaf.columns_read)) == len(t) for t in (table, wanted))
    ]
    # Periodic leaves come last: beside a trend, the nearest day must not be one of another year.
    numeric.sort(key=lambda leaf: isinstance(leaf, Periodic))
    found: dict[str, float | None] = {}
    for leaf in numeric:
        if any(leaf in term.leaves and numeric[0] in term.leaves for term in terms):
            for name in leaf.columns_read:
                found.setdefault(name, leaf.period if isinstance(leaf, Periodic) else None)
    return found


def _of_same_id(column: str, table: Table, wanted: Table, otherwise: Weights) -> list[Weights]:
    """For every wanted row, the training rows with its id in a column; `otherwise` if there are none."""
    ids = table.ids(column)
    rows_of = {name: np.flatnonzero(ids == name) for name in set(wanted.ids(column).tolist())}
    means = {name: _equal_weights(_thin(rows)) if len(rows) else otherwise for name, rows in rows_of.items()}
    return [means[name] for name in wanted.ids(column).tolist()]


def _comparable_rows(wanted: Table, table: Table, columns: list[str], objects: str | None) -> Iterator[np.ndarray]:
    """For every wanted row, the mask of the training rows from which it may be predicted, (training,).

    Rows with the same ids in all columns; if there are none, rows of the same object; else all rows.
    """
    codes = []
    for column in dict.fromkeys(columns):
        known, levels = table.coded_ids(column)  # (training,)
        number = {level: code for code, level in enumerate(levels.tolist())}
        codes.append((column, known, [number.get(name, -1) for name in wanted.ids(column).tolist()]))
    everything = np.ones(len(table), dtype=bool)
    for n in range(len(wanted)):
        same_ids = same_object = everything
        for column, known, asked in codes:
            equal = known == asked[n]
            same_ids, same_object = same_ids & equal, equal if column == objects else same_object
        found = same_ids if same_ids.any() else same_object
        yield found if found.any() else everything  # all rows for an id that was not in training


def _thin(rows: np.ndarray) -> np.ndarray:
    """At most MOST_AVERAGED_ROWS of these positions, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // MOST_AVERAGED_ROWS))]


def _equal_weights(rows: np.ndarray) -> Weights:
    """Rows with equal weights."""
    return rows, np.ones(len(rows))


def _interpolation(at: float, values: np.ndarray, allowed: np.ndarray, period: float | None) -> Weights:
    """Linear interpolation at `at`: the nearest training rows below and above with their weights, one side at the ends.

    Rows at the same place share its weight.
    """
    rows = np.flatnonzero(allowed)
    apart = values[rows] - at
    if period is not None:
        apart = apart - period * np.round(apart / period)
    below, above = apart[apart <= 0], apart[apart >= 0]
    if not len(below) or not len(above) or below.max() == 0:
        return _equal_weights(_thin(rows[apart == apart[np.abs(apart).argmin()]]))
    low, high = below.max(), above.min()
    sides = [(_thin(rows[apart == low]), high), (_thin(rows[apart == high]), -low)]
    weights = [np.full(len(own), part / (high - low) / len(own)) for own, part in sides]
    return np.concatenate([own for own, _ in sides]), np.concatenate(weights)


def _weighted_means(samples: Samples, rows: list[Weights], mean: np.ndarray | None) -> np.ndarray:
    """Weighted means of training samples, one per entry of `rows`; `mean` replaces values missing in all of them."""
    found: dict[int, np.ndarray] = {}  # by identity of the index, since wanted rows of one object share it
    for index, weights in {id(entry): entry for entry in rows}.values():
        y, mask = samples.read(torch.from_numpy(index))
        seen = np.ones(y.shape) if mask is None else mask.numpy().astype(np.float64)
        weight = weights.reshape(-1, *(1 for _ in samples.shape)) * seen  # (n, *shape)
        total = weight.sum(0)
        own = (y.numpy() * weight).sum(0) / np.where(total > 0, total, 1.0)
        found[id(index)] = own if mean is None else np.where(total > 0, own, mean)
    return np.stack([found[id(index)] for index, _ in rows])  # (N*, *shape) or (1, *shape)

"""Predictions at rows with known samples: errors, worst and best cases, calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gppvae.data.arrays import Samples, from_input_layout
from gppvae.data.table import Table, id_text
from gppvae.estimator import GPPVAE, Prediction
from gppvae.estimator.calibration import half_width
from gppvae.estimator.comparison import at_their_sizes
from gppvae.likelihoods.scaled import ScaledGaussian

Part = tuple[Any, Any]  # samples and their table
DRAWS = 32
LEVELS = np.linspace(0.1, 0.95, 18)
MAX_CHECKED = 256  # rows with draws
MAX_SCORED = 2000  # rows whose errors are measured
MAX_SCALED = 40  # values with separate scales
FAR_APART = 8.0  # distance of means, in median standard deviations, from which on values get separate scales


@dataclass(frozen=True)
class Checked:
    """Rows with known samples, and their predictions; arrays in the model's axis order.

    Attributes:
        table: the rows.  truth: (n, *shape), NaN where nothing was observed.  mean: predicted.
        spread: standard deviation over draws of the latents.  std: predictive standard deviation of a new sample.
        unit: of the values, to make errors of channels comparable.  widths: of intervals, as in Prediction.
        losses: the likelihood's error of each value, in units, (n, *shape); squared errors when None.
        measure: name of the error.
    """

    table: Table
    truth: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    std: np.ndarray
    unit: np.ndarray
    widths: np.ndarray
    losses: np.ndarray | None = None
    measure: str = "mse"

    def errors(self) -> np.ndarray:
        """Mean error of each row in units, (n,); NaN where nothing was observed."""
        losses = np.square((self.truth - self.mean) / self.unit) if self.losses is None else self.losses
        by_row = losses.reshape(len(self.truth), -1)
        known = np.isfinite(by_row)
        return np.where(known.any(1), np.where(known, by_row, 0.0).sum(1) / np.maximum(known.sum(1), 1), np.nan)

    def cases(self, each: int) -> list[tuple[str, int]]:
        """("worst" | "typical" | "best", row), `each` of a kind; with few rows only the worst and the best."""
        errors = self.errors()
        order = [int(i) for i in np.argsort(-errors, kind="stable") if np.isfinite(errors[i])]
        each = max(1, min(each, len(order) // 3)) if order else 0
        middle = len(order) // 2 - each // 2
        kinds = {"worst": order[:each], "typical": order[middle : middle + each], "best": order[-each:] if each else []}
        seen: set[int] = set()
        found = []
        for kind in ("worst", "best", "typical"):
            for row in kinds[kind]:
                if row not in seen:
                    seen.add(row)
                    found.append((kind, row))
        return sorted(found, key=lambda pair: ("worst", "typical", "best").index(pair[0]))

    def coverage(self, channel: int | None = None) -> np.ndarray:
        """Share of observed values inside the central intervals at LEVELS, of one channel or value, or of all."""
        parts = [array if channel is None else array[:, channel] for array in (self.truth, self.mean, self.std)]
        truth, mean, std = (part.ravel() for part in parts)
        known = np.isfinite(truth)
        if not known.any():
            return np.full(len(LEVELS), np.nan)
        distance = np.abs(truth - mean)[known] / np.maximum(std[known], 1e-12)
        return np.array([float((distance <= half_width(level, self.widths)).mean()) for level in LEVELS])


def opened(model: GPPVAE, part: Part) -> tuple[Samples, Table]:
    """Samples with their values in the order of training, and their table; ValueError unless they have equal length."""
    data, table = model._samples(part[0]), Table(part[1])
    if len(data) != len(table):
        raise ValueError(
            f"expected one row of the table per sample, got {len(table)} rows and {len(data)} samples; match them"
        )
    return data, table


def read(model: GPPVAE, samples: Any, index: np.ndarray) -> np.ndarray:
    """Samples at `index`, (n, *shape), NaN where nothing was observed."""
    return model._samples(samples).with_gaps(index)


def channels_first(model: GPPVAE, array: Any) -> np.ndarray:
    """Samples in the user's axis order as (n, *model.shape_)."""
    return from_input_layout(np.asarray(array), model.layout_)


def check_rows(model: GPPVAE, part: Part, index: np.ndarray) -> Checked:
    """Predict at the rows at `index` with draws, and read their samples."""
    data, rows = opened(model, part)
    table = at_their_sizes(model, data, rows.take(index), index)
    drawn: Prediction = model.predict(table, n_samples=DRAWS)
    noisy: Prediction = model.predict(table, n_samples=DRAWS, include_noise=True)
    mean, spread, std = (channels_first(model, array) for array in (drawn.mean, drawn.std, noisy.std))
    truth, unit, likelihood = read(model, part[0], index), model._unit(), model.model_.autoencoder.likelihood.values
    losses = likelihood.error(*(torch.from_numpy(values / unit).double() for values in (truth, mean))).numpy()
    return Checked(table, truth, mean, spread, std, unit, noisy.widths, losses, likelihood.error_name)


def value_scales(model: GPPVAE) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean and standard deviation of each value, (K,) each, if the values cannot share an axis; else None.

    This is the case for a few named values of very different means or scales, such as blood values.
    """
    likelihood = model.model_.autoencoder.likelihood.values
    named = len(model.shape_) == 1 and model.shape_[0] <= MAX_SCALED and bool(model.sample_names_)
    if not named or not isinstance(likelihood, ScaledGaussian):
        return None
    shift, spread = likelihood.shift.cpu().double().numpy(), likelihood.spread.cpu().double().numpy()
    typical = float(np.median(spread))
    return (shift, spread) if max(float(np.ptp(shift)), float(spread.max())) > FAR_APART * typical else None


def row_label(table: Table, row: int, columns: list[str]) -> str:
    """A row as a label: "digit 12, angle 157.5"."""
    return ", ".join(named_entry(name, entry_text(table[name][row])) for name in columns)


def named_entry(column: str, entry: str) -> str:
    """An entry after the name of its column, unless it begins with that: "digit 12", but not "sensor sensor 3"."""
    return entry if entry.lower().startswith(f"{column} ".lower()) else f"{column} {entry}"


def entry_text(value: Any) -> str:
    """A table entry as text; floats with five digits."""
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.5g}"
    return id_text(value)


def channel_names(model: GPPVAE) -> list[str]:
    """Names of channels or values: those of the samples; red, green and blue; or numbers."""
    names = getattr(model, "sample_names_", None)
    if names and len(names) == model.shape_[0]:
        return [str(name) for name in names]
    if len(model.shape_) == 3 and model.shape_[0] == 3:
        return ["red", "green", "blue"]
    kind = "channel" if len(model.shape_) == 3 else "value"
    return [f"{kind} {number}" for number in range(model.shape_[0])]


def known_numbers(table: Table, columns: tuple[str, ...]) -> np.ndarray:
    """These numeric columns at the rows without missing values, (n, len(columns))."""
    return table.take(table.known(columns)).numeric(columns)

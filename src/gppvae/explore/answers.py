"""Handlers of the page's requests: one method per request, JSON in, JSON or packed arrays out."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
import torch

from gppvae import __version__
from gppvae.data.subset import evenly
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE
from gppvae.estimator.kernel_summary import kernel_text
from gppvae.explore import latents, objects, terms
from gppvae.explore.columns import check_row, numbers_in
from gppvae.explore.live import Live
from gppvae.explore.sources import PREDICTED, Cells, Source
from gppvae.explore.wire import pack
from gppvae.likelihoods.counts import COUNTS
from gppvae.report.checked import value_scales
from gppvae.report.images import is_image, shade_range

SHADED = 64  # cells whose predictions set the grey levels
SHARE_ROWS = 1000  # for the shares of the terms
MAX_DRAWS = 64
MAX_BLOCK = 256  # cells per request
COLOURS = ("error", "uncertainty")
MAPS = ("viridis", "magma")


class Answers:
    """Answers requests of the page from a fitted model and its data.

    Args:
        model: fitted.  source: its data, if given.  title: of the page.
        folder: of the run, for the Python code that the page shows.
    """

    def __init__(self, model: GPPVAE, source: Source, title: str, folder: str) -> None:
        self.title, self.folder, self.source = title, folder, source
        self.live, self.cells = Live(model), Cells(model, source)
        self.added: list[str] = []
        self._scatter: tuple[latents.Directions, np.ndarray, np.ndarray] | None = None
        self._shades = self._find_shades()

    # -- requests

    def meta(self) -> dict[str, Any]:
        """Everything that is constant while the page is open, apart from added objects."""
        model, scales = self.live.model, value_scales(self.live.model)
        values = model.model_.autoencoder.likelihood.values
        return {
            "title": self.title,
            "folder": self.folder,
            "version": __version__,
            "kernel": kernel_text(model),
            "shape": list(model.shape_),
            "images": is_image(model.shape_),
            "counts": model.model_.autoencoder.likelihood.name in COUNTS,
            "ends": [end if math.isfinite(end) else None for end in (values.least_value, values.most_value)],
            "names": model.sample_names_ or [],
            "scales": None if scales is None else [part.tolist() for part in scales],
            "members": model.prior_.copies,
            "columns": [column.to_json() for column in self.cells.columns],
            "table": self.cells.to_json(),
            "has_table": self.source.train is not None or self.source.held is not None,
            "has_samples": any(part is not None and part.samples is not None for part, _ in self.cells.where[:1]),
            "groups": self._groups(),
            "leaves": self._leaves(),
            "shades": self._shades,
            "maps": {name: _map(name) for name in MAPS},
            "start": self._start(),
            "added": self.added,
            "notes": self.source.notes,
        }

    def frame(self, asked: Any) -> bytes:
        """Measurement, prediction, uncertainty and draws at one row."""
        row = check_row(self.cells.columns, asked.get("row"))
        off = terms.check_off(self.live.model.prior_, asked.get("off", []))
        n, kept = _integer(asked, "draws", MAX_DRAWS), _integer(asked, "keep", MAX_DRAWS)
        if n == 1:
            raise ValueError("expected 0 draws or at least 2, got 1")
        cells = self.cells.at(row)
        measured, status, sizes = None, PREDICTED, None
        if cells:
            measured, status = self.cells.read(cells[:1])[0], int(self.cells.status[cells[0]])
            sizes = self._sizes(cells[:1])
        found = self.live.frame(_table(row), n, off, bool(asked.get("noise", False)), min(kept, n), sizes)
        facts: dict[str, Any] = {"status": status, "count": len(cells), "size": None if sizes is None else sizes[0]}
        if measured is not None and np.isfinite(error := self.live.rms(measured - found.mean)[0]):
            facts["rmse"] = float(error)
        if found.std is not None:
            facts["uncertainty"] = float(self.live.rms(found.std)[0])
        arrays = {
            "mean": found.mean[0],
            "std": None if found.std is None else found.std[0],
            "measured": measured,
            "draws": None if found.draws is None else found.draws[:, 0],
        }
        return pack(facts, arrays)

    def colour(self, asked: Any) -> bytes:
        """Error or uncertainty at some rows: cells by index, or rows outside the table."""
        kind = asked.get("kind")
        if kind not in COLOURS:
            raise ValueError(f"expected one of {', '.join(COLOURS)}, got {kind!r:.60}")
        off = terms.check_off(self.live.model.prior_, asked.get("off", []))
        if kind == "error":
            numbers = self._numbers(asked.get("cells"))
            predicted = self.live.frame(self.cells.rows(numbers), off=off, sizes=self._sizes(numbers)).mean
            missing = np.full(predicted.shape[1:], np.nan)
            truth = [missing if sample is None else sample for sample in self.cells.read(numbers)]
            return pack({}, {"values": self.live.rms(np.stack(truth) - predicted)})
        if "rows" in asked:
            rows = [check_row(self.cells.columns, row) for row in _checked_list(asked["rows"])]
            table: Any = {column.name: [row[column.name] for row in rows] for column in self.cells.columns}
        else:
            table = self.cells.rows(self._numbers(asked.get("cells")))
        return pack({}, {"values": self.live.spread(table, off)})

    def scatter(self, asked: Any) -> bytes:
        """The rows in the latent space."""
        directions, shown, places = self._directions()
        facts = {"cells": shown.tolist(), "shares": [float(share) for share in directions.shares]}
        return pack(facts, {"places": places})

    def path(self, asked: Any) -> bytes:
        """The path of one row along a numeric column, and the row itself."""
        row = check_row(self.cells.columns, asked.get("row"))
        off = terms.check_off(self.live.model.prior_, asked.get("off", []))
        directions = self._directions()[0]
        mean, std = self.live.latents(_table(row), off)
        arrays = {"here": directions.place(mean)[0], "here_std": directions.width(std)[0]}
        column = next((c for c in self.cells.columns if c.name == asked.get("column") and c.levels is None), None)
        if column is not None:
            path = latents.path(self.live, directions, row, column.name, column.span(), off)
            arrays |= dict(zip(("at", "places", "stds"), path, strict=True))
        return pack({}, arrays)

    def covariance(self, asked: Any) -> bytes:
        """The covariance of one leaf with its labels."""
        leaves = self.live.model.prior_.leaves_by_member()
        number = _integer(asked, "leaf", len(leaves) - 1)
        with self.live.lock:
            found = terms.covariance_of(leaves[number], self.cells.columns)
        return pack({"labels": found["labels"]}, {"matrix": found["matrix"], "values": found["values"]})

    def add(self, asked: Any) -> dict[str, Any]:
        """Learn an object from files; returns the new `meta`."""
        model = self.live.model
        if is_image(model.shape_) and self._shades != [0.0, 1.0]:
            low, high = self._shades
            raise ValueError(
                f"expected a model of pictures with values from 0 to 1, got {low:.3g} to {high:.3g}; use add_objects()"
            )
        with self.live.adding:
            samples, table = objects.new_object(model, self.cells.columns, asked)
            ids = self.live.add(samples, table)
            with self.live.lock:
                self.added += ids
                self.cells.add(self.live.model, table, samples)
                self._scatter = None
                return self.meta()

    # -- pieces

    def _groups(self) -> list[dict[str, Any]]:
        """Groups of latents and their terms."""
        model, prior = self.live.model, self.live.model.prior_
        leaves = prior.written_leaves()
        with self.live.lock, torch.no_grad():
            numbers = evenly(len(self.cells.table), SHARE_ROWS)
            found = terms.shares(prior, model.posterior_, self.live.rows(self.cells.rows(numbers)))
            every = terms.terms_of(prior)
            return [
                {
                    "latents": prior.written_sizes[number],
                    "kernel": None if copies[0].kernel is None else copies[0].kernel.text(),
                    "alpha": sum(float(group.alpha) for group in copies) / len(copies),
                    "terms": [
                        {
                            "name": list(name),
                            "text": " * ".join(leaf.text() for leaf in same[0].leaves),
                            "amplitudes": [float(term.amplitude()) for term in same],
                            "share": found[name],
                            "leaves": [leaves.index(leaf) for leaf in same[0].leaves],
                        }
                        for name, same in every.items()
                        if name[0] == number
                    ],
                }
                for number, copies in enumerate(prior.written_groups)
            ]

    def _leaves(self) -> list[dict[str, Any]]:
        with self.live.lock, torch.no_grad():
            return [terms.leaf_facts(*same) for same in self.live.model.prior_.leaves_by_member()]

    def _start(self) -> dict[str, Any]:
        """The row that the page opens on: a held-out one if there is any."""
        order = np.argsort(-self.cells.status, kind="stable")
        row = self.cells.rows(order[:1])
        facts = {column.name: column for column in self.cells.columns}
        return {
            name: _plain(numbers_in(row, name)[0]) if column.levels is None else str(row.ids(name)[0])
            for name, column in facts.items()
        }

    def _find_shades(self) -> list[float]:
        """Values shown as black and white."""
        numbers = evenly(len(self.cells.table), SHADED)
        values = [self.live.frame(self.cells.rows(numbers)).mean.ravel()]
        values += [sample.ravel() for sample in self.cells.read(numbers) if sample is not None]
        return list(shade_range(np.concatenate(values)))

    def _directions(self) -> tuple[latents.Directions, np.ndarray, np.ndarray]:
        with self.live.lock:
            if self._scatter is None:
                self._scatter = latents.scatter(self.live, self.cells)
            return self._scatter

    def _sizes(self, numbers: list[int]) -> list[float] | None:
        """Sizes of the measured count samples, at which to predict; None if there are none."""
        samples = self.cells.read(numbers)
        known = [sample for sample in samples if sample is not None]
        truth = np.stack(known) if len(known) == len(samples) else None
        return self.live.sizes(truth, self.cells.table.take(np.asarray(numbers, dtype=np.int64)))

    def _numbers(self, asked: Any) -> list[int]:
        numbers = _checked_list(asked)
        if not all(isinstance(n, int) and 0 <= n < len(self.cells.table) for n in numbers):
            raise ValueError(f"expected indices of cells from 0 to {len(self.cells.table) - 1}, got others")
        return numbers


def _table(row: dict[str, Any]) -> Table:
    return Table({name: [value] for name, value in row.items()} or {"row": [0]})


def _plain(number: float) -> float | None:
    """A number as JSON; None if not finite."""
    return float(number) if np.isfinite(number) else None


def _checked_list(asked: Any) -> list[Any]:
    if not isinstance(asked, list) or not 1 <= len(asked) <= MAX_BLOCK:
        raise ValueError(f"expected a list of 1 to {MAX_BLOCK} entries, got {type(asked).__name__}")
    return asked


def _integer(asked: Any, name: str, most: int) -> int:
    value = asked.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 0 to {most}, got {value!r:.60}")
    return value


def _map(name: str) -> list[int]:
    """256 colours of a colour map as a flat list of RGB values."""
    colours: np.ndarray = matplotlib.colormaps[name](np.arange(256), bytes=True)
    return [int(x) for x in colours[:, :3].ravel()]

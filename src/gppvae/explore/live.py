"""Predictions at interactive speed: latent functions are drawn once and then evaluated anywhere."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gppvae.data.sizes import sizes_in
from gppvae.data.table import Rows, Table
from gppvae.estimator import GPPVAE
from gppvae.estimator.prediction import mean_and_std
from gppvae.explore.sources import make_part
from gppvae.explore.terms import TermName, noise_without, weight_masks
from gppvae.models.objects import vectors_drawn
from gppvae.models.predict import latents_at, relative_std
from gppvae.report.checked import value_scales

NOTHING_OFF: frozenset[TermName] = frozenset()
BLOCK_DRAWS, BLOCK_ROWS = 8, 64  # when many cells are coloured


@dataclass(frozen=True)
class Frame:
    """A prediction at rows; arrays in the model's axis order, (N, *shape).

    Attributes:
        mean: decoder at the mean of the latents.  std: over draws, or None.  draws: (n, N, *shape), or None.
    """

    mean: np.ndarray
    std: np.ndarray | None
    draws: np.ndarray | None


@dataclass(frozen=True)
class _Drawn:
    """Draws of B, the generator state after them, for the noise at rows, and the seed for the vectors of added ids."""

    weights: list[list[Tensor]]
    state: Tensor
    vectors: int


class Live:
    """A thread-safe fitted model that answers one request at a time.

    Args:
        model: fitted. It is never modified: objects are added to a copy.
    """

    def __init__(self, model: GPPVAE) -> None:
        self.model = model
        self.lock = threading.RLock()  # of the current model
        self.adding = threading.RLock()  # held while objects are learned; the current model still answers
        self._drawn: dict[int, _Drawn] = {}
        scales = value_scales(model)
        self.unit: np.ndarray | float = 1.0 if scales is None else scales[1]  # of errors and spreads

    def rows(self, table: Any) -> Rows:
        """The coded rows of a table."""
        return self.model.prior_.code(Table(table))

    @torch.no_grad()
    def frame(
        self,
        table: Any,
        n_draws: int = 0,
        off: frozenset[TermName] = NOTHING_OFF,
        include_noise: bool = False,
        keep_draws: int = 0,
        sizes: Sequence[float] | None = None,
        same_noise: bool = False,
    ) -> Frame:
        """The result of `GPPVAE.predict` and `GPPVAE.sample` at rows, without the terms that are off.

        Args:
            table: rows to predict.  n_draws: for the standard deviation; 0 for none.
            include_noise: whether std is that of a new sample.  keep_draws: number of draws returned.
            sizes: of count samples, one per row; by default those in the table, else a typical size.
            same_noise: use one draw of the latent noise for all rows, so that the result for a row does not depend on
                the other rows.
        """
        with self.lock:
            rows, posterior = self.rows(table), self.model.posterior_
            masks = weight_masks(self.model.prior_, off)
            size = sizes_in(rows) if sizes is None else torch.tensor(list(sizes), dtype=torch.float64)
            latents = self._functions(rows, [posterior.means], masks, None)
            mean = self._decoded(latents, size)[0][0]
            kriged = self.model.remainders_.at(self.model.prior_, rows, self.model.shape_)
            mean = mean if kriged is None else mean + kriged[0].to(mean)
            if n_draws == 0:
                return Frame(_array(mean), None, None)
            drawn = self._draws(n_draws)
            f = self._functions(rows, drawn.weights, masks, drawn.vectors)
            generator = torch.Generator()
            generator.set_state(drawn.state)
            shape = (1, f.shape[2]) if same_noise else f.shape[1:]
            # One call per draw, as in GPPVAE.sample, for the same noise; (n, N or 1, L).
            eps = torch.stack([torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(len(f))])
            noise = noise_without(self.model.prior_, rows, off).sqrt()
            means, variances = self._decoded(f + noise * eps.to(f.device), size)
            pairs = zip(means, variances, strict=True)
            fitted, unit = self.model._fitted, self.model._unit()
            uncertainty = relative_std(*fitted, rows) if include_noise else None
            found = mean_and_std(pairs, include_noise, self.model.calibration_, unit, uncertainty, kriged)
            kept = means[:keep_draws]
            if kriged is not None and keep_draws:
                left = self.model._kriged_draws(rows, kriged, len(kept), None)
                kept = torch.stack([drawn + (kriged[0] + next(left, 0.0)).to(drawn) for drawn in kept])
            return Frame(_array(mean), found["std"], _array(kept) if keep_draws else None)

    def spread(self, table: Any, off: frozenset[TermName] = NOTHING_OFF) -> np.ndarray:
        """Standard deviation over draws at each row, root mean square over its values in `unit`s, (N,)."""
        rows, found = Table(table), []
        for index in _blocks(len(rows)):
            std = self.frame(rows.take(index), BLOCK_DRAWS, off, same_noise=True).std
            assert std is not None
            found.append(self.rms(std))
        return np.concatenate(found)

    def errors(self, samples: Any, table: Any, off: frozenset[TermName] = NOTHING_OFF) -> np.ndarray:
        """Root mean squared error of each row over its observed values in `unit`s, (N,); NaN if there are none.

        Counts are predicted at the size of each sample. For the Python code that the page shows.

        Args:
            samples: in the form given to `fit`.  table: their rows.
        """
        part, found = make_part(self.model, table, samples), []
        assert part.samples is not None
        for index in _blocks(len(part.table)):
            truth, block = part.samples.with_gaps(index), part.table.take(index)
            found.append(self.rms(truth - self.frame(block, off=off, sizes=self.sizes(truth, block)).mean))
        return np.concatenate(found)

    def sizes(self, truth: np.ndarray | None, table: Table) -> list[float] | None:
        """Sizes of measured count samples, at which to predict; None if there are none.

        Args:
            truth: (n, *shape), NaN where nothing was observed; None if unknown.  table: their rows.
        """
        likelihood = self.model.model_.autoencoder.likelihood
        if likelihood.size_column is not None and likelihood.size_column in table.columns:
            return [float(size) for size in table.numeric((likelihood.size_column,))[:, 0]]
        if truth is None or not likelihood.needs_totals:
            return None
        observed = np.isfinite(truth)
        y, mask = torch.from_numpy(np.where(observed, truth, 0.0)), torch.from_numpy(observed)
        device = self.model.prior_.device
        totals = likelihood.sizes(y.to(device), mask.to(device) if self.model.missing == "mask" else None, None)
        return None if totals is None else [float(size) for size in totals]

    def rms(self, values: np.ndarray) -> np.ndarray:
        """Root mean square in `unit`s over the known values of each row, (n,); NaN if there are none."""
        squares = np.square(values / self.unit).reshape(len(values), -1)
        known = np.isfinite(squares)
        total, count = np.where(known, squares, 0.0).sum(1), known.sum(1)
        return np.where(count > 0, np.sqrt(total / np.maximum(count, 1)), np.nan)

    @torch.no_grad()
    def latents(self, table: Any, off: frozenset[TermName] = NOTHING_OFF) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of f at rows, (N, L) each; the mean without the terms that are off."""
        with self.lock:
            rows = self.rows(table)
            found = latents_at(self.model.model_, self.model.posterior_, rows)
            mean = found.mean
            if off:
                masks = weight_masks(self.model.prior_, off)
                mean = self._functions(rows, [self.model.posterior_.means], masks, None)[0]
            return mean.cpu().numpy(), found.var.sqrt().cpu().numpy()

    def add(self, samples: np.ndarray, table: dict[str, Any]) -> list[str]:
        """Learn a new object in a copy of the model, in memory only; the old model answers until that is done."""
        with self.adding:
            with self.lock:
                model = copy.deepcopy(self.model)
            ids = model.add_objects(samples, table)
            with self.lock:
                self.model = model
                self._drawn.clear()
            return ids

    # -- pieces

    def _draws(self, n: int) -> _Drawn:
        """The draws of `GPPVAE.predict` with the seed of the model."""
        if n not in self._drawn:
            weights, generator, vectors = self.model._draws(self.model.posterior_, n, None)
            self._drawn[n] = _Drawn(weights, generator.get_state(), vectors)
        return self._drawn[n]

    def _functions(self, rows: Rows, draws: Iterable[list[Tensor]], masks: list[Tensor], vectors: int | None) -> Tensor:
        """f at rows for each draw of B, (n, N, L); with the seed `vectors`, learned vectors of ids are drawn too."""
        prior = self.model.prior_
        masked = [[B * mask for B, mask in zip(draw, masks, strict=True)] for draw in draws]
        if vectors is None:
            return torch.stack([prior.functions_at(rows, draw) for draw in masked])
        generator, functions = torch.Generator().manual_seed(vectors), []
        for draw in masked:
            with vectors_drawn(prior, generator):
                functions.append(prior.functions_at(rows, draw, generator))
        return torch.stack(functions)

    def _decoded(self, z: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance of p(y | z), (n, N, *shape) each, for latents (n, N, L), all in one batch."""
        autoencoder = self.model.model_.autoencoder
        out = autoencoder.decode(z.flatten(0, 1), None if size is None else size.repeat(len(z)))  # (n * N, ...)
        mean = autoencoder.likelihood.mean(out)
        var = autoencoder.likelihood.variance(out).expand_as(mean)
        return mean.unflatten(0, z.shape[:2]), var.unflatten(0, z.shape[:2])


def _blocks(n: int) -> list[np.ndarray]:
    """Indices of n rows in blocks of BLOCK_ROWS."""
    return [np.arange(start, min(n, start + BLOCK_ROWS)) for start in range(0, max(1, n), BLOCK_ROWS)]


def _array(x: Tensor) -> np.ndarray:
    return x.cpu().numpy()

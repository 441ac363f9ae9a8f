"""Shares of variance and curves of the terms of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gppvae.data.arrays import to_input_layout
from gppvae.data.table import Rows, Table
from gppvae.estimator.explanation import Curve, Explanation, TermExplanation
from gppvae.kernels import IdLeaf
from gppvae.kernels.not_applicable import filled
from gppvae.kernels.periods import nested_periods, one_period
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.terms import KernelTerm, averaged_contribution, contributions, kernel_terms, signal_parts
from gppvae.prior.posterior import LatentPosterior

ROWS = 256  # default number of rows
GRID = 25  # values of a numeric column
CYCLE, MOST_CYCLES = 48, 8  # grid steps per period; most short periods within a long one
MAX_LEVELS = 24  # ids along an axis
MAX_BY, FEW_VALUES = 6, 6  # most curves for single levels; a column with so few distinct numbers is treated as levels
AVERAGED_ROWS = 32  # rows that a curve is averaged over
MAX_PLACES = 400
TOGETHER = "together"  # interaction of the columns of a product
CHUNK = 256  # samples decoded at a time
LEAST_VARIANCE = 1e-10  # of a value, relative to the largest; smaller ones count as constant


def explain(
    fitted: tuple[GPPriorVAE, LatentPosterior], table: Table, layout: str, n_rows: int, seed: int, names: Sequence[str]
) -> Explanation:
    """See GPPVAE.explain.

    Args:
        layout: order of axes of the samples.  names: of the channels of images or the values of vectors; may be empty.
    """
    model, _ = fitted
    if len(table) < 2:
        raise ValueError(f"expected at least 2 rows to share variance over, got {len(table)}; give the training table")
    terms = kernel_terms(model.prior)
    if not terms:
        raise ValueError("expected a kernel to explain, got latents without one; give a kernel to the model")
    table = _subsample(table, n_rows, seed)
    return _Explainer(fitted, table, terms, layout).explanation(names)


class _Explainer:
    """Contributions of the terms to the latents and to the samples at the rows of one table."""

    def __init__(
        self, fitted: tuple[GPPriorVAE, LatentPosterior], table: Table, terms: list[KernelTerm], layout: str
    ) -> None:
        self.model, self.weights = fitted
        self.table, self.terms, self.layout = table, terms, layout
        likelihood = self.model.autoencoder.likelihood
        self.unit = likelihood.unit.detach().cpu().numpy().astype(np.float64)
        rows = self.model.prior.code(table)
        latents, var = contributions(self.model.prior, self.weights, rows, terms)  # (T, N, L) each
        self.offsets = latents.mean(1)  # (T, L)
        self.centre = self.offsets.sum(0)
        self.latents, self.latent_var = latents - self.offsets.unsqueeze(1), var
        pieces = [self._by_columns(number) for number in range(len(terms))]
        self.owners = [(number, name) for number, own in enumerate(pieces) for name in own]
        stacked = torch.stack([piece for own in pieces for piece in own.values()])  # (P, N, L)
        parts, start = signal_parts(self.decode, stacked, self.centre)
        self.start = start.double().cpu().numpy()[0]
        self.pieces = parts.double().cpu().numpy()  # (P, N, *shape)
        owner = np.array([number for number, _ in self.owners])
        sums = [self.pieces[owner == number].sum(axis=0) for number in range(len(terms))]
        self.parts = np.stack(sums)  # (T, N, *shape)

    def decode(self, z: Tensor) -> Tensor:
        autoencoder = self.model.autoencoder
        return torch.cat([autoencoder.likelihood.mean(autoencoder.decode(part)) for part in z.split(CHUNK)])

    def _by_columns(self, number: int) -> dict[str, Tensor]:
        """Main effects of the columns on a term's latents, and their interaction, (N, L) each."""
        term, whole = self.terms[number], self.latents[number]
        sets, others = term.column_sets(), _subsample(_applicable_rows(term, self.table), AVERAGED_ROWS, 0)
        if len(sets) < 2 or not len(others):
            return {"": whole}
        found = dict[str, Tensor]()
        for columns in sets:
            known = self.table.known(columns)
            table = self.table.take(known)
            first, index = _distinct_rows(table, columns)
            wanted = {name: np.tile(entries, len(first)) for name, entries in others.columns.items()}
            wanted |= {name: np.repeat(table[name][first], len(others)) for name in columns}
            rows = self.model.prior.code(Table(wanted))
            own, _ = averaged_contribution(self.model.prior, self.weights, rows, term, len(others))
            effect = torch.zeros_like(whole)  # zero where a column does not apply
            effect[torch.from_numpy(known).to(whole.device), term.latents] = own[index] - own[index].mean(0)
            found[", ".join(columns)] = effect
        return found | {TOGETHER: whole - sum(found.values(), torch.zeros_like(whole))}

    # -- shares of variance

    def explanation(self, names: Sequence[str]) -> Explanation:
        latents = self.latents.cpu().numpy()
        by_latent, latent_total = _normalised(np.einsum("snl,tnl->st", latents, latents) / latents.shape[1])
        centred = self.parts - self.parts.mean(axis=1, keepdims=True)
        by_signal, _ = _normalised(_term_covariance(centred / self.unit))
        signal = centred.sum(axis=0)
        variance = (centred * signal).mean(axis=1)  # covariance of each part with their sum, (T, *shape)
        whole = signal.var(axis=0)
        varies = whole > LEAST_VARIANCE * max(float(whole.max()), 1e-300)
        by_value = np.where(varies, variance / np.where(varies, whole, 1.0), np.nan)
        uncertain = (
            self.latent_var.sum(2).mean(1).cpu().numpy() / latent_total if latent_total else np.zeros(len(latents))
        )
        of_pieces = self._piece_shares(signal)
        entries = []
        for number, term in enumerate(self.terms):
            pattern = _principal_direction(centred[number] / self.unit)
            entries.append(
                TermExplanation(
                    name=term.name,
                    columns=term.columns,
                    group=term.group,
                    latent_share=float(by_latent[number].sum()),
                    signal_share=float(by_signal[number].sum()),
                    alone=float(by_signal[number, number]),
                    by_column=of_pieces[number],
                    uncertain=float(uncertain[number]),
                    by_value=to_input_layout(by_value[number : number + 1], self.layout)[0],
                    pattern=to_input_layout(pattern[None], self.layout)[0],
                    curves=self._curves(number, pattern),
                )
            )
        channels = _by_channel(variance / self.unit**2, [term.name for term in self.terms], names)
        unexplained = sum(group.n_latents for group in self.model.prior.groups if group.kernel is None)
        return Explanation(entries, by_latent, by_signal, channels, len(self.table), unexplained)

    def _piece_shares(self, signal: np.ndarray) -> list[dict[str, float]]:
        """Signal shares by column, for terms that read several; they add up to the share of the term."""
        total = float(np.square(signal / self.unit).sum())
        found: list[dict[str, float]] = [{} for _ in self.terms]
        for (number, name), piece in zip(self.owners, self.pieces, strict=True):
            if name:
                centred = (piece - piece.mean(axis=0)) / self.unit
                share = float((centred * (signal / self.unit)).sum()) / total if total else 0.0
                found[number][name] = share
        return found

    # -- curves

    def _curves(self, number: int, pattern: np.ndarray) -> list[Curve]:
        """Curves along each numeric column, on average and per level of another column; else along ids; else a map."""
        term = self.terms[number]
        table = _applicable_rows(term, self.table)
        if not term.columns or not len(table):
            return []
        places = [leaf.columns_read for leaf in term.leaves if len(leaf.columns_read) > 1]
        if places:
            return [self._map(number, table, places[0], pattern)]
        ids = [leaf.columns_read[0] for leaf in term.leaves if isinstance(leaf, IdLeaf)]
        numbers = {name: _distinct_numbers(self.table, name) for name in term.columns if name not in ids}
        few = [name for name, distinct in numbers.items() if len(distinct) <= FEW_VALUES]
        along = [name for name in numbers if name not in few] or few or ids[:1]
        curves = list[Curve]()
        for column in along:
            periods = [] if column in few else nested_periods(term.leaves, column)
            values = _most_frequent(table.ids(column), MAX_LEVELS) if column in ids else _grid(numbers[column], periods)
            found = [self._curve(number, table, column, values, None, None, pattern)]
            for by in [name for name in (*ids, *few) if name != column][:1]:
                levels = _most_frequent(table.ids(by), MAX_BY)
                if len(levels) > 1:
                    found += [self._curve(number, table, column, values, by, level, pattern) for level in levels]
            curves += [replace(curve, period=max(periods, default=None)) for curve in found]
        return curves

    def _curve(
        self,
        number: int,
        table: Table,
        column: str,
        values: np.ndarray,
        by: str | None,
        level: str | None,
        pattern: np.ndarray,
    ) -> Curve:
        """A curve averaged over the rows of the table, or over those with one level of another column."""
        others = table if by is None else table.take(np.flatnonzero(table.ids(by) == level))
        several = len(self.terms[number].columns) > 1
        others = _subsample(others, AVERAGED_ROWS, 0) if several else others.take(np.array([0]))
        rows, n = len(others), len(values)
        columns = {name: np.tile(entries, n) for name, entries in others.columns.items()}  # (n * rows,)
        columns[column] = np.repeat(np.asarray(values), rows)
        mean, var = self._averaged(number, self.model.prior.code(Table(columns)), rows)
        signal, std = self._first_order(mean, var) if by is None else (None, None)
        return Curve((column,), np.asarray(values), by, level, *self._scores(mean, var, pattern), signal, std)

    def _map(self, number: int, table: Table, columns: tuple[str, ...], pattern: np.ndarray) -> Curve:
        picked = _subsample(table, MAX_PLACES, 0)
        mean, var = self._averaged(number, self.model.prior.code(picked), 1)
        return Curve(columns, picked.numeric(columns), None, None, *self._scores(mean, var, pattern))

    def _averaged(self, number: int, rows: Rows, per_value: int) -> tuple[Tensor, Tensor]:
        """Moments of the latents with one term averaged over rows and the others at their means, (M, L)."""
        term = self.terms[number]
        own, own_var = averaged_contribution(self.model.prior, self.weights, rows, term, per_value)
        mean = self.centre.expand(len(own), -1).clone()
        mean[:, term.latents] += own - self.offsets[number, term.latents]
        var = torch.zeros_like(mean)
        var[:, term.latents] = own_var
        return mean, var

    def _scores(self, mean: Tensor, var: Tensor, pattern: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Change of the decoded samples along the pattern, (M,), and its standard deviation to first order, (M,)."""
        weights = torch.from_numpy(pattern / self.unit / np.sqrt(pattern.size)).to(mean)
        start = float((torch.from_numpy(self.start).to(mean) * weights).sum())
        scores, stds = [], []
        for part, part_var in zip(mean.split(CHUNK), var.split(CHUNK), strict=True):
            with torch.enable_grad():
                z = part.clone().requires_grad_(True)
                score = (self.decode(z).to(weights) * weights).flatten(1).sum(1)
                (gradient,) = torch.autograd.grad(score.sum(), z)
            scores.append(score.detach() - start)
            stds.append((gradient.square() * part_var).sum(1).sqrt())
        return torch.cat(scores).cpu().numpy(), torch.cat(stds).cpu().numpy()

    def _first_order(self, mean: Tensor, var: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Decoded samples and their standard deviations to first order, by differences of one std per latent."""
        total = torch.zeros((), dtype=torch.float64, device=mean.device)
        for latent in torch.nonzero(var.sum(0)).flatten():
            step = torch.zeros_like(mean)
            step[:, latent] = var[:, latent].sqrt()
            total = total + (0.5 * (self.decode(mean + step) - self.decode(mean - step)).double()).square()
        signal = self.decode(mean).cpu().numpy()
        std = total.sqrt().expand(signal.shape).cpu().numpy().astype(np.float32)
        return to_input_layout(signal, self.layout), to_input_layout(std, self.layout)


def _subsample(table: Table, most: int, seed: int) -> Table:
    """At most this many rows, drawn without replacement, in order; even spacing could alias with a regular design."""
    if len(table) <= most:
        return table
    return table.take(np.sort(np.random.default_rng(seed).choice(len(table), most, replace=False)))


def _applicable_rows(term: KernelTerm, table: Table) -> Table:
    """The rows where all columns of a term are known; unknown values of other columns are filled in."""
    return filled(table, table.columns).take(table.known(term.columns))


def _distinct_numbers(table: Table, column: str) -> np.ndarray:
    """Distinct numbers of a column."""
    return np.unique(table.take(table.known([column])).numeric((column,)))


def _grid(numbers: np.ndarray, periods: list[float]) -> np.ndarray:
    """Grid of a curve; one period if it is periodic, with steps fine enough for the shortest period."""
    if len(numbers) <= FEW_VALUES:
        return numbers
    if periods:
        cycles = min(round(periods[-1] / periods[0]), MOST_CYCLES)
        return np.linspace(*one_period(numbers[0], numbers[-1], periods[-1]), CYCLE * cycles + 1)
    return np.linspace(numbers[0], numbers[-1], GRID)


def _distinct_rows(table: Table, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """First row of each distinct combination of the columns, (D,), and the combination of each row, (N,)."""
    keys = [" ".join(map(str, entry)) for entry in zip(*(table[name].tolist() for name in columns), strict=True)]
    _, first, index = np.unique(np.array(keys), return_index=True, return_inverse=True)
    return first, index


def _most_frequent(ids: np.ndarray, most: int) -> np.ndarray:
    """The ids with the most rows, sorted by name."""
    levels, counts = np.unique(ids, return_counts=True)
    return np.sort(levels[np.argsort(-counts, kind="stable")[:most]])


def _normalised(covariance: np.ndarray) -> tuple[np.ndarray, float]:
    """Covariance between terms relative to the variance of their sum, and that variance; zeros if it is zero."""
    total = float(covariance.sum())
    return (covariance / total, total) if total > 0 else (np.zeros_like(covariance), 0.0)


def _term_covariance(parts: np.ndarray) -> np.ndarray:
    """(T, N, *shape) centred over rows -> covariance summed over values, (T, T)."""
    flat = parts.reshape(len(parts), -1)  # (T, N K)
    return flat @ flat.T / parts.shape[1]


def _principal_direction(part: np.ndarray) -> np.ndarray:
    """First principal direction over rows, (*shape), of length 1; its largest entry is positive."""
    flat = part.reshape(len(part), -1)  # (N, K)
    _, _, directions = np.linalg.svd(flat, full_matrices=False)
    first = directions[0]
    return (first * np.sign(first[np.abs(first).argmax()] or 1.0)).reshape(part.shape[1:])


def _by_channel(variance: np.ndarray, terms: list[str], names: Sequence[str]) -> pd.DataFrame:
    """Signal shares of channels: (T, C, ...) covariances with the whole -> (C, T)."""
    channels = variance.reshape(len(variance), variance.shape[1], -1).sum(axis=2)  # (T, C)
    whole = channels.sum(axis=0)
    shares: Any = np.where(whole > 0, channels / np.where(whole > 0, whole, 1.0), np.nan)
    labels = list(names) if len(names) == channels.shape[1] else list(range(channels.shape[1]))
    return pd.DataFrame(shares.T, index=pd.Index(labels, name="channel"), columns=terms)

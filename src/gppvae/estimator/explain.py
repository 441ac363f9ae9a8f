"""Which term of the kernel explains what: shares of variance, and the curve of each term with its band."""

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

ROWS = 256  # looked at, unless more are asked for
GRID = 25  # values of a numeric column
CYCLE, MOST_CYCLES = 48, 8  # steps of a period, and of the short periods within a long one
MAX_LEVELS = 24  # ids along an axis
MAX_BY, FEW_VALUES = 6, 6  # curves of single levels; distinct numbers that count as levels
AVERAGED = 32  # rows that a curve is averaged over
MAX_PLACES = 400
TOGETHER = "together"  # what the columns of a product do beyond what each does on average
CHUNK = 256  # samples decoded at a time
LEAST_VARIANCE = 1e-10  # of a value, relative to the largest: below it nothing varies


def explain(
    fitted: tuple[GPPriorVAE, LatentPosterior], table: Table, layout: str, n_rows: int, seed: int, names: Sequence[str]
) -> Explanation:
    """See GPPVAE.explain.

    Args:
        layout: in which samples came.  names: of the channels of images or the values of vectors; may be empty.
    """
    model, _ = fitted
    if len(table) < 2:
        raise ValueError(f"expected at least 2 rows to share variance over, got {len(table)}; give the training table")
    terms = kernel_terms(model.prior)
    if not terms:
        raise ValueError("expected a kernel to explain, got latents without one; give a kernel to the model")
    table = _some(table, n_rows, seed)
    return _Explainer(fitted, table, terms, layout).explanation(names)


class _Explainer:
    """The parts of the latents and of the samples at the rows of one table."""

    def __init__(
        self, fitted: tuple[GPPriorVAE, LatentPosterior], table: Table, terms: list[KernelTerm], layout: str
    ) -> None:
        self.model, self.weights = fitted
        self.table, self.terms, self.layout = table, terms, layout
        likelihood = self.model.autoencoder.likelihood
        self.unit = likelihood.unit.detach().cpu().numpy().astype(np.float64)
        rows = self.model.prior.code(table)
        latents, var = contributions(self.model.prior, self.weights, rows, terms)
        self.offsets = latents.mean(1)  # (T, L)
        self.centre = self.offsets.sum(0)
        self.latents, self.latent_var = latents - self.offsets.unsqueeze(1), var
        pieces = [self._by_columns(number) for number in range(len(terms))]
        self.owners = [(number, name) for number, own in enumerate(pieces) for name in own]
        stacked = torch.stack([piece for own in pieces for piece in own.values()])
        parts, start = signal_parts(self.decode, stacked, self.centre)
        self.start = start.double().cpu().numpy()[0]
        self.pieces = parts.double().cpu().numpy()  # (P, N, *shape)
        owner = np.array([number for number, _ in self.owners])
        self.parts = np.stack([self.pieces[owner == number].sum(axis=0) for number in range(len(terms))])  # (T, ...)

    def decode(self, z: Tensor) -> Tensor:
        autoencoder = self.model.autoencoder
        return torch.cat([autoencoder.likelihood.mean(autoencoder.decode(part)) for part in z.split(CHUNK)])

    def _by_columns(self, number: int) -> dict[str, Tensor]:
        """A term's latents as what each of its columns does on average over the others, and the rest; (N, L) each."""
        term, whole = self.terms[number], self.latents[number]
        sets, others = term.column_sets(), _some(_applying(term, self.table), AVERAGED, 0)
        if len(sets) < 2 or not len(others):
            return {"": whole}
        found = dict[str, Tensor]()
        for columns in sets:
            known = self.table.known(columns)
            table = self.table.take(known)
            first, index = _distinct(table, columns)
            wanted = {name: np.tile(entries, len(first)) for name, entries in others.columns.items()}
            wanted |= {name: np.repeat(table[name][first], len(others)) for name in columns}
            rows = self.model.prior.code(Table(wanted))
            own, _ = averaged_contribution(self.model.prior, self.weights, rows, term, len(others))
            effect = torch.zeros_like(whole)  # none where a column does not apply
            effect[torch.from_numpy(known).to(whole.device), term.latents] = own[index] - own[index].mean(0)
            found[", ".join(columns)] = effect
        return found | {TOGETHER: whole - sum(found.values(), torch.zeros_like(whole))}

    # -- shares

    def explanation(self, names: Sequence[str]) -> Explanation:
        latents = self.latents.cpu().numpy()
        by_latent, latent_total = _shared(np.einsum("snl,tnl->st", latents, latents) / latents.shape[1])
        centred = self.parts - self.parts.mean(axis=1, keepdims=True)
        by_signal, _ = _shared(_between(centred / self.unit))
        signal = centred.sum(axis=0)
        variance = (centred * signal).mean(axis=1)  # (T, *shape): covariance of each part with the whole
        whole = signal.var(axis=0)
        varies = whole > LEAST_VARIANCE * max(float(whole.max()), 1e-300)
        by_value = np.where(varies, variance / np.where(varies, whole, 1.0), np.nan)
        uncertain = (
            self.latent_var.sum(2).mean(1).cpu().numpy() / latent_total if latent_total else np.zeros(len(latents))
        )
        of_pieces = self._piece_shares(signal)
        entries = []
        for number, term in enumerate(self.terms):
            pattern = _pattern(centred[number] / self.unit)
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
        """Signal shares by column of the terms that read several; they add up to the share of the term."""
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
        """Along each numeric column, averaged and for some levels of another column; else along ids; else a map."""
        term = self.terms[number]
        table = _applying(term, self.table)
        if not term.columns or not len(table):
            return []
        places = [leaf.columns_read for leaf in term.leaves if len(leaf.columns_read) > 1]
        if places:
            return [self._map(number, table, places[0], pattern)]
        ids = [leaf.columns_read[0] for leaf in term.leaves if isinstance(leaf, IdLeaf)]
        numbers = {name: _numbers(self.table, name) for name in term.columns if name not in ids}
        few = [name for name, distinct in numbers.items() if len(distinct) <= FEW_VALUES]
        along = [name for name in numbers if name not in few] or few or ids[:1]
        curves = list[Curve]()
        for column in along:
            periods = [] if column in few else nested_periods(term.leaves, column)
            values = _frequent(table.ids(column), MAX_LEVELS) if column in ids else _grid(numbers[column], periods)
            found = [self._curve(number, table, column, values, None, None, pattern)]
            for by in [name for name in (*ids, *few) if name != column][:1]:
                levels = _frequent(table.ids(by), MAX_BY)
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
        """Averaged over rows of the table, or over those of one level of another column."""
        asked = table if by is None else table.take(np.flatnonzero(table.ids(by) == level))
        asked = _some(asked, AVERAGED, 0) if len(self.terms[number].columns) > 1 else asked.take(np.array([0]))
        rows, n = len(asked), len(values)
        columns = {name: np.tile(entries, n) for name, entries in asked.columns.items()}
        columns[column] = np.repeat(np.asarray(values), rows)
        mean, var = self._averaged(number, self.model.prior.code(Table(columns)), rows)
        signal, std = self._first_order(mean, var) if by is None else (None, None)
        return Curve((column,), np.asarray(values), by, level, *self._scores(mean, var, pattern), signal, std)

    def _map(self, number: int, table: Table, columns: tuple[str, ...], pattern: np.ndarray) -> Curve:
        picked = _some(table, MAX_PLACES, 0)
        mean, var = self._averaged(number, self.model.prior.code(picked), 1)
        return Curve(columns, picked.numeric(columns), None, None, *self._scores(mean, var, pattern))

    def _averaged(self, number: int, rows: Rows, per_value: int) -> tuple[Tensor, Tensor]:
        """Moments of the latents where one term is averaged over rows and the others are at their means, (M, L)."""
        term = self.terms[number]
        own, own_var = averaged_contribution(self.model.prior, self.weights, rows, term, per_value)
        mean = self.centre.expand(len(own), -1).clone()
        mean[:, term.latents] += own - self.offsets[number, term.latents]
        var = torch.zeros_like(mean)
        var[:, term.latents] = own_var
        return mean, var

    def _scores(self, mean: Tensor, var: Tensor, pattern: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Change along the pattern at latents, and its standard deviation from the gradient with respect to them."""
        weights = torch.from_numpy(pattern / self.unit / np.sqrt(pattern.size)).to(mean)
        start = float((torch.from_numpy(self.start).to(mean) * weights).sum())
        scores, stds = [], []
        for z, spread in zip(mean.split(CHUNK), var.split(CHUNK), strict=True):
            with torch.enable_grad():
                asked = z.clone().requires_grad_(True)
                decoded = self.decode(asked)
                score = (decoded.to(weights) * weights).flatten(1).sum(1)
                (slope,) = torch.autograd.grad(score.sum(), asked)
            scores.append(score.detach() - start)
            stds.append((slope.square() * spread).sum(1).sqrt())
        return torch.cat(scores).cpu().numpy(), torch.cat(stds).cpu().numpy()

    def _first_order(self, mean: Tensor, var: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Decoded samples and their standard deviations to first order, each latent moved by its own in turn."""
        total = torch.zeros((), dtype=torch.float64, device=mean.device)
        for latent in torch.nonzero(var.sum(0)).flatten():
            step = torch.zeros_like(mean)
            step[:, latent] = var[:, latent].sqrt()
            total = total + (0.5 * (self.decode(mean + step) - self.decode(mean - step)).double()).square()
        signal = self.decode(mean).cpu().numpy()
        std = total.sqrt().expand(signal.shape).cpu().numpy().astype(np.float32)
        return to_input_layout(signal, self.layout), to_input_layout(std, self.layout)


def _some(table: Table, most: int, seed: int) -> Table:
    """At most so many rows, drawn without replacement and kept in order: an even spacing could meet a design's own."""
    if len(table) <= most:
        return table
    return table.take(np.sort(np.random.default_rng(seed).choice(len(table), most, replace=False)))


def _applying(term: KernelTerm, table: Table) -> Table:
    """The rows at which all that a term reads is known. What only other terms read is filled in where it is not."""
    return filled(table, table.columns).take(table.known(term.columns))


def _numbers(table: Table, column: str) -> np.ndarray:
    """Distinct numbers of a column."""
    return np.unique(table.take(table.known([column])).numeric((column,)))


def _grid(numbers: np.ndarray, periods: list[float]) -> np.ndarray:
    """Values that a curve is shown at: one period where it repeats, in steps that are fine for the shortest one."""
    if len(numbers) <= FEW_VALUES:
        return numbers
    if periods:
        cycles = min(round(periods[-1] / periods[0]), MOST_CYCLES)
        return np.linspace(*one_period(numbers[0], numbers[-1], periods[-1]), CYCLE * cycles + 1)
    return np.linspace(numbers[0], numbers[-1], GRID)


def _distinct(table: Table, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The first row of every distinct entry of some columns, and which of them each row has."""
    keys = [" ".join(map(str, entry)) for entry in zip(*(table[name].tolist() for name in columns), strict=True)]
    _, first, index = np.unique(np.array(keys), return_index=True, return_inverse=True)
    return first, index


def _frequent(ids: np.ndarray, most: int) -> np.ndarray:
    """The ids with the most rows, in the order of their names."""
    levels, counts = np.unique(ids, return_counts=True)
    return np.sort(levels[np.argsort(-counts, kind="stable")[:most]])


def _shared(covariance: np.ndarray) -> tuple[np.ndarray, float]:
    """A covariance between terms relative to the variance of their sum, and that variance; zero where there is none."""
    total = float(covariance.sum())
    return (covariance / total, total) if total > 0 else (np.zeros_like(covariance), 0.0)


def _between(parts: np.ndarray) -> np.ndarray:
    """(T, N, *shape) centred over rows -> covariance summed over values, (T, T)."""
    flat = parts.reshape(len(parts), -1)
    return flat @ flat.T / parts.shape[1]


def _pattern(part: np.ndarray) -> np.ndarray:
    """The direction of one sample that carries most of the variance over rows, (*shape), of length 1."""
    flat = part.reshape(len(part), -1)
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

"""Kriging of prediction errors: those at the given samples of an added object predict those at its other rows.

A decoder trained on few objects cannot reproduce every new one. With e_i the errors at the k given samples of an
object, its prediction at a row is

    decoder(z) + c'C^-1 e,   c_i = h(kappa_i),   C_ij = h(kappa_ij),   C_ii = mean e^2,   h = a + b kappa + c kappa^16

with kappa the correlation of the kernel between rows of one object, and h a covariogram. Its weights a, b, c are
expected from the training samples: the part of the error variance up to that of training errors has their covariogram
(zero, if they are noise); the part beyond it has that of deviations from the mean sample, since these are what the
decoder cannot reproduce. Pairs of the given samples correct them.
Source: docs/math.md, "Objects that were not in the training set".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from gppvae.data.batches import derive_seed
from gppvae.data.table import Rows, Table
from gppvae.kernels import Learned
from gppvae.kernels.ids import IdLeaf
from gppvae.models.objects import id_columns, learned_by_column, level_of, using_vectors
from gppvae.prior.blocks import BlockFeatures
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.new_blocks import STORED, ConditionedRows, Move
from gppvae.prior.posterior import LatentPosterior

OBJECTS, ROWS_EACH = 64, 12  # training objects, and samples of each, from which covariograms are estimated
WEIGHT_STD = 0.4  # prior standard deviation of the weights of a covariogram
LEAST_OWN = 1e-3  # least share of the variance that is independent between samples (the nugget of kriging)


@dataclass(frozen=True)
class Covariogram:
    """E d_i d_j = var (a + b kappa_ij + c kappa_ij^16) for two samples of one object, weights (a, b, c).

    The last term is nonzero for neighbouring rows only. With var 0 it is unknown.
    """

    var: float = 0.0
    weights: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ResidualCovariance:
    """Covariance between samples of one trained object: of deviations from the mean sample, and of prediction errors.

    Attributes:
        directions: effective number of directions of the deviations, tr(C)^2 / tr(C^2), over the number of values.
    """

    deviations: Covariogram = Covariogram()
    errors: Covariogram = Covariogram()
    directions: float = 1.0

    def expected(self, error_var: float) -> np.ndarray:
        """Weights (a, b, c) that the training samples suggest for errors of this variance, (3,)."""
        usual = min(error_var, self.errors.var) / error_var if error_var > 0.0 else 1.0  # share of training errors
        return usual * np.array(self.errors.weights) + (1.0 - usual) * np.array(self.deviations.weights)

    def shared(self, errors: Tensor, correlation: Tensor) -> Tensor:
        """The variance of errors, and the weights of `covariogram_terms` in h, (4,): h(kappa) = var (a + ...).

        The weights are those of least squares over pairs of samples, with the expected ones as the mean of a prior.
        The products of a pair, averaged over values, scatter by one over the number of independent directions.

        Args:
            errors: of the k samples of one object, in units, (k, K).  correlation: kappa_ij, (k, k).
        """
        n_directions = max(self.directions * errors.shape[1], 1.0)
        var = float(errors.square().mean())
        weights = self.expected(var)
        pairs = torch.triu(torch.ones_like(correlation, dtype=torch.bool), diagonal=1)
        if var > 0.0 and pairs.any():
            alike = ((errors @ errors.T) / (errors.shape[1] * var))[pairs.to(errors.device)].cpu().numpy()  # (n_pairs,)
            terms = covariogram_terms(correlation[pairs]).cpu().numpy()  # (n_pairs, 3)
            prior = np.eye(3) / (WEIGHT_STD * n_directions**0.5)  # one row per weight
            weights = nnls(np.vstack([terms, prior]), np.concatenate([alike, prior @ weights]))[0]
            weights = weights / max(weights.sum(), 1.0)
        return torch.tensor([var, *(var * weights)], dtype=torch.float64)


def covariogram_terms(kappa: Tensor) -> Tensor:
    """1, kappa and kappa^16, (...) -> (..., 3)."""
    return torch.stack([torch.ones_like(kappa), kappa, kappa.clamp_min(0.0) ** 16], dim=-1)


@dataclass(frozen=True)
class ObjectResiduals:
    """Errors at the k given samples of one object, as kriging needs them.

    Attributes:
        features: of unit length, (k, H).  errors: e, 0 where not observed, (k, *shape).
        shared: from `ResidualCovariance.shared`, (4,).  inverse: C^-1, (k, k).
        rows: the columns of a table that the kernel reads, k entries each, to compute e again when predictions change;
            None from earlier model files.
    """

    features: Tensor
    errors: Tensor
    shared: Tensor
    inverse: Tensor
    rows: dict[str, list[Any]] | None

    def covariance(self, kappa: Tensor) -> Tensor:
        """h(kappa), in the shape of kappa."""
        return covariogram_terms(kappa) @ self.shared[1:]

    def variance(self, c: Tensor) -> Tensor:
        """What kriging leaves at rows with the covariances c, h(1) - c'C^-1 c: (n, k) -> (n,)."""
        return (self.shared[1:].sum() - ((c @ self.inverse) * c).sum(1)).clamp_min(0.0)

    def tensors(self) -> dict[str, Tensor]:
        return {name: own for name, own in vars(self).items() if isinstance(own, Tensor)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], rows: dict[str, list[Any]] | None) -> ObjectResiduals:
        """Rebuild it from `tensors`; earlier model files have C^-1 e in place of e."""
        features, shared, inverse = (tensors[name] for name in ("features", "shared", "inverse"))
        if rows is not None:
            return cls(features, tensors["errors"], shared, inverse, rows)
        coefficients = tensors["coefficients"]
        errors = torch.linalg.solve(inverse, coefficients.to(inverse).flatten(1)).to(coefficients)
        return cls(features, errors.reshape(coefficients.shape), shared, inverse, rows)

    def on(self, device: torch.device) -> ObjectResiduals:
        """The same on this device, but for the errors, which are as large as the samples."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ("features", "shared", "inverse")})


@dataclass
class Remainders:
    """What a model stores of the samples of added ids; attribute names are keys of the model file.

    Attributes:
        resembling: covariograms, by column.  kept: errors for kriging, by (column, id).
        taken: sites that q(B) was conditioned on, by (column, id), one entry per group of latents, for ids with blocks.
    """

    resembling: dict[str, ResidualCovariance] = field(default_factory=dict)
    kept: dict[tuple[str, str], ObjectResiduals] = field(default_factory=dict)
    taken: dict[tuple[str, str], list[ConditionedRows | None]] = field(default_factory=dict)

    def copy(self) -> Remainders:
        """The same, with dicts of its own."""
        return replace(self, kept=dict(self.kept), taken=dict(self.taken))

    @torch.no_grad()
    def keep(
        self,
        prior: LatentPrior,
        column: str,
        ids: list[str],
        rows: Rows,
        errors: Tensor,
        unit: Tensor,
        further: bool = False,
    ) -> None:
        """Store the errors at the samples of these ids, (N, *shape), in place of earlier ones. Cost: O(k^3) per id.

        Args:
            rows: coded, with known ids.  unit: of each value, broadcastable to a sample.
            further: keep the earlier ones too, or these alone where their rows are not known.
        """
        leaves, table = learned_by_column(prior)[column], columns_of(prior, rows)
        features, level, errors = unit_features(prior, leaves, rows), level_of(leaves, rows), errors.cpu()
        for name in ids:
            before = self.kept.pop((column, name), None)
            own = torch.nonzero(level == leaves[0].levels.index(name)).squeeze(1)  # (k,)
            e, v = errors[own.cpu()], features[own]  # (k, *shape), (k, H)
            places = {read: [values[n] for n in own.tolist()] for read, values in table.items()}
            if further and before is not None:
                if before.rows is None:
                    self.kept[column, name] = before
                    continue
                e, v = torch.cat([before.errors, e]), torch.cat([before.features, v])
                places = {read: before.rows[read] + values for read, values in places.items()}
            self._store((column, name), v, e, places, unit)

    def _store(
        self, key: tuple[str, str], features: Tensor, errors: Tensor, rows: dict[str, list[Any]], unit: Tensor
    ) -> None:
        """Store the errors of an object, unless all are 0, with the covariance that is estimated from them."""
        self.kept.pop(key, None)
        resemblance, correlation = self.resembling.get(key[0], ResidualCovariance()), features @ features.T
        shared = resemblance.shared((errors / unit.to(errors)).flatten(1).double(), correlation).to(features)
        if shared[0] <= 0.0:
            return
        C = covariogram_terms(correlation) @ shared[1:]  # h(kappa_ij), (k, k)
        C.diagonal().copy_(shared[0].clamp_min((1.0 + LEAST_OWN) * shared[1:].sum()))  # positive definite
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(C)).contiguous()
        self.kept[key] = ObjectResiduals(features, errors, shared, inverse, rows)

    def given(self) -> dict[str, dict[str, list[Any]]]:
        """Rows of the samples of all objects, joined, by column of their ids; those whose rows are known."""
        found: dict[str, dict[str, list[Any]]] = {}
        for (column, _), kept in self.kept.items():
            for name, values in (kept.rows or {}).items():
                found.setdefault(column, {}).setdefault(name, []).extend(values)
        return found

    @torch.no_grad()
    def follow_predictions(self, column: str, change: Tensor, unit: Tensor) -> None:
        """Store errors again after predictions at the rows of `given` have fallen by `change`, (N, *shape)."""
        start = 0
        for key, kept in list(self.kept.items()):
            if key[0] == column and kept.rows is not None:
                e = kept.errors + change[start : start + len(kept.errors)]
                start += len(e)
                observed = torch.where(kept.errors == 0.0, 0.0, e)
                self._store(key, kept.features, observed, kept.rows, unit)

    @torch.no_grad()
    def at(self, prior: LatentPrior, rows: Rows, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
        """Predicted errors c'C^-1 e at rows, (N, *shape), and their variance in units, (N,); None without samples."""
        if not self.kept:
            return None
        total, variance = torch.zeros(len(rows), *shape), torch.zeros(len(rows), dtype=torch.float64)
        for key, at, c in self._covariances(prior, rows):
            kept = self.kept[key]
            total[at] += ((c @ kept.inverse).to(kept.errors) @ kept.errors.flatten(1)).reshape(-1, *shape)
            variance[at] += kept.variance(c).cpu()
        return total, variance

    @torch.no_grad()
    def draw(self, prior: LatentPrior, rows: Rows, shape: tuple[int, ...], seed: int) -> Tensor:
        """A draw of what is left of the errors at rows, with mean zero and the variance of `at`, (N, *shape), in units.

        One pattern per object, of independent values, times the standard deviation at each row: a draw is one function
        of the row, as draws of the latents are.
        """
        found, numbers = torch.zeros(len(rows), *shape), {key: number for number, key in enumerate(self.kept)}
        for key, at, c in self._covariances(prior, rows):
            generator = torch.Generator().manual_seed(derive_seed(seed, numbers[key]))
            std = self.kept[key].variance(c).sqrt().to(found)
            found[at] += std.reshape(-1, *(1 for _ in shape)) * torch.randn(shape, generator=generator)
        return found

    def _covariances(self, prior: LatentPrior, rows: Rows) -> Iterator[tuple[tuple[str, str], Tensor, Tensor]]:
        """Per object with samples: its key, where its rows are, (n,), and c of these rows, (n, k)."""
        for column, leaves in learned_by_column(prior).items():
            level = level_of(leaves, rows)
            for key in [(known, name) for known, name in self.kept if known == column and name in leaves[0].levels]:
                here = torch.nonzero(level == leaves[0].levels.index(key[1])).squeeze(1)
                if len(here):
                    kappa = unit_features(prior, leaves, rows[here]) @ self.kept[key].features.T  # (n, k)
                    yield key, here.cpu(), self.kept[key].covariance(kappa)

    def follow(self, prior: LatentPrior, moves: list[Move | None]) -> None:
        """Reorder stored features after ids of a column were added or dropped, which changes H."""
        for (column, name), kept in list(self.kept.items()):
            leaves, parts, start = learned_by_column(prior)[column], [], 0
            for group, move in zip(prior.groups, moves, strict=True):
                if group.kernel is None:
                    continue
                if _of_column(group, leaves):
                    assert group.split is not None
                    width = len(group.split.places.shared) + group.split.places.own.shape[1]
                else:
                    width = group.rank if move is None else move.rank
                part = kept.features[:, start : start + width]
                start += width
                if move is not None and not _of_column(group, leaves):
                    wide = part.new_zeros(len(part), group.rank)
                    wide[:, move.new] = part[:, move.old]
                    part = wide
                parts.append(part)
            self.kept[column, name] = replace(kept, features=torch.cat(parts, dim=1))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a model file; `to_json` has the rest."""
        kept = enumerate(self.kept.values())
        found = {f"{number}.{name}": x for number, own in kept for name, x in own.tensors().items()}
        for number, parts in enumerate(self.taken.values()):
            for group, part in enumerate(parts):
                own = {} if part is None else part.tensors()
                found |= {f"taken.{number}.{group}.{name}": x for name, x in own.items()}
        return found

    def to_json(self) -> dict[str, Any]:
        resembling = {name: asdict(own) for name, own in self.resembling.items()}
        taken = [[*key, [None if own is None else list(own.ids) for own in parts]] for key, parts in self.taken.items()]
        kept, rows = [list(key) for key in self.kept], [own.rows for own in self.kept.values()]
        return {"resembling": resembling, "kept": kept, "rows": rows, "taken": taken}

    @classmethod
    def from_saved(
        cls,
        saved: dict[str, Any],
        tensors: dict[str, Tensor],
        shape: tuple[int, ...],
        prior: LatentPrior,
        weights: LatentPosterior,
    ) -> Remainders:
        """Rebuild it from `to_json` and `tensors`.

        Args:
            shape: of a sample.  prior, weights: of the model.
        """
        found = cls()
        found.taken = _taken_from(saved.get("taken", []), tensors, prior, weights)
        for name, own in saved["resembling"].items():
            of_deviations, of_errors = (
                Covariogram(float(own[part]["var"]), _three(own[part]["weights"])) for part in ("deviations", "errors")
            )
            found.resembling[str(name)] = ResidualCovariance(of_deviations, of_errors, float(own["directions"]))
        rows_of = saved.get("rows", [None] * len(saved["kept"]))  # earlier files have no rows
        for number, ((column, name), rows) in enumerate(zip(saved["kept"], rows_of, strict=True)):
            parts = ("features", "shared", "inverse", "coefficients" if rows is None else "errors")
            own = ObjectResiduals.from_tensors({part: tensors[f"{number}.{part}"] for part in parts}, rows)
            own = own.on(prior.device)
            k = len(own.features)
            fits = own.errors.shape == (k, *shape) and own.inverse.shape == (k, k) and own.shared.shape == (4,)
            fits = fits and (rows is None or {len(values) for values in rows.values()} == {k})
            if not fits or own.features.ndim != 2 or not all(x.isfinite().all() for x in own.tensors().values()):
                raise ValueError(f"the stored errors of {str(name)[:40]!r} must be finite and of the samples' shape")
            if str(column) not in found.resembling:
                raise ValueError("the stored errors of added ids must be of ids of a column with a covariogram")
            found.kept[str(column), str(name)] = own
        for rows in found.given().values():
            prior.code(Table(rows))  # raises where they do not fit the kernel
        return found


def _taken_from(
    saved: list[Any], tensors: dict[str, Tensor], prior: LatentPrior, weights: LatentPosterior
) -> dict[tuple[str, str], list[ConditionedRows | None]]:
    """Sites of added ids from a model file; ValueError where they do not fit the model."""
    found: dict[tuple[str, str], list[ConditionedRows | None]] = {}
    added = {(c.name, level) for c in id_columns(prior) if c.own for level in c.levels[len(c.trained) :]}
    for number, (column, name, ids) in enumerate(saved):
        parts: list[ConditionedRows | None] = []
        for place, (group, part, own) in enumerate(zip(prior.groups, weights.parts, ids, strict=True)):
            if (own is None) != (group.kernel is None):
                raise ValueError("the sites of added ids must be of the groups of latents that have a kernel")
            if own is None:
                parts.append(None)
                continue
            each = {key: tensors[f"taken.{number}.{place}.{key}"].to(prior.device) for key in STORED}
            rows = ConditionedRows(**each, ids=tuple(map(str, own)))
            rows.check(group, part)
            parts.append(rows)
        found[str(column), str(name)] = parts
    if not set(found) <= added:
        raise ValueError("the sites of added ids must be of ids that were added")
    return found


def columns_of(prior: LatentPrior, rows: Rows) -> dict[str, list[Any]]:
    """A table that `LatentPrior.code` reads as these rows: ids as text, numbers as such."""
    found: dict[str, list[Any]] = {}
    # A column of ids is text for numeric kernels too; of several leaves the one with the most levels defines the codes.
    for leaf in sorted(prior.leaves(), key=lambda leaf: -len(leaf.levels) if isinstance(leaf, IdLeaf) else 0):
        values = rows.columns[leaf.key].by_row.tolist()
        for position, name in enumerate(leaf.columns_read):
            named = [leaf.levels[n] for n in values] if isinstance(leaf, IdLeaf) else [own[position] for own in values]
            found.setdefault(name, named)
    return found


@torch.no_grad()
def unit_features(prior: LatentPrior, leaves: list[Learned], rows: Rows) -> Tensor:
    """Unit-length features of rows at the mean vector of all objects, (N, H): inner products are correlations kappa."""
    mean = [leaf.x.detach()[: leaf.n_trained].mean(0).expand_as(leaf.x) for leaf in leaves]
    with using_vectors(leaves, mean):
        parts = []
        for group in (group for group in prior.groups if group.kernel is not None):
            V = group.split.features(rows) if group.split is not None else group.features(rows)
            if isinstance(V, BlockFeatures):
                # Only rows of one id are compared, so the position of its block has no effect.
                V = V.x if _of_column(group, leaves) else V.dense(group.rank)
            parts.append(V)
    unit = [torch.nn.functional.normalize(part, dim=1) / len(parts) ** 0.5 for part in parts]
    return torch.cat(unit, dim=1)


def _of_column(group: LatentGroup, leaves: list[Learned]) -> bool:
    """Whether the blocks of a group are those of the ids of these leaves."""
    return group.split is not None and group.split.key == leaves[0].key


def rows_to_compare(prior: LatentPrior, rows: Rows) -> dict[str, Tensor]:
    """A few rows of several objects per column of ids, (n,), for `measure`."""
    found = {}
    for column, leaves in learned_by_column(prior).items():
        level, picked = level_of(leaves, rows), []
        objects, counts = level.unique(return_counts=True)
        objects = objects[counts > 1]
        few = objects[torch.linspace(0, len(objects) - 1, min(OBJECTS, len(objects))).long()]
        for number in few:
            own = torch.nonzero(level == number).squeeze(1)
            picked.append(own[torch.linspace(0, len(own) - 1, min(ROWS_EACH, len(own))).long()])
        if picked:
            found[column] = torch.cat(picked)
    return found


@torch.no_grad()
def measure(prior: LatentPrior, column: str, rows: Rows, deviations: Tensor) -> Covariogram:
    """The covariogram of deviations (N, K), in units, between samples of one object: least squares over pairs.

    Args:
        rows: of the samples.  deviations: zero where not observed.
    """
    leaves = learned_by_column(prior)[column]
    level, v, d = level_of(leaves, rows), unit_features(prior, leaves, rows), deviations.double()
    var = float(d.square().mean())
    pairs = torch.triu(level[:, None] == level[None, :], diagonal=1)  # each pair of one object once, (N, N)
    if var == 0.0 or not pairs.any():
        return Covariogram()
    # Correlations of the kernel, and products of deviations over their variance, (n_pairs,) each.
    kappa, alike = (v @ v.T)[pairs].cpu(), ((d @ d.T) / d.shape[1] / var)[pairs.to(d.device)].cpu()
    weights = nnls(covariogram_terms(kappa).numpy(), alike.numpy())[0]
    return Covariogram(var, _three(weights / max(weights.sum(), 1.0)))


def directions(deviations: Tensor) -> float:
    """tr(C)^2 / tr(C^2) / K for the covariance C of deviations (N, K); tr C^2 is estimated from pairs, without bias."""
    d = deviations.double()
    gram, (n, size) = d @ d.T, d.shape  # (N, N): rows are few, values may be many
    squares = (gram.square().sum() - gram.diagonal().square().sum()) / max(n * (n - 1), 1)  # tr C^2
    trace = gram.diagonal().mean()
    return float((trace.square() / squares.clamp_min(1e-30) / size).clamp(1.0 / size, 1.0))


def _three(weights: Any) -> tuple[float, float, float]:
    a, b, c = (float(weight) for weight in weights)
    return a, b, c

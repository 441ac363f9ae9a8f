"""Kriging of residuals: prediction errors at the samples of an added object, carried over to its other rows.

A decoder trained on few objects cannot reproduce every new one. With e_i the residuals at the k samples given of an
object, its prediction at a row is

    decoder(z) + c'C^-1 e,   c_i = h(kappa_i),   C_ij = h(kappa_ij),   C_ii = mean e^2,   h = a + b kappa + c kappa^16

with kappa the correlation of the kernel between rows of one object. The covariance h is measured on the training
samples. Errors as large as those at training samples covary as these do, which is not at all if they are noise. Larger
errors covary as deviations from the mean sample, since these are what the decoder cannot reproduce.
Source: docs/math.md, "Objects that were not in the training set".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from scipy.optimize import nnls
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels import Learned
from gppvae.models.objects import id_columns, learned_by_column, level_of, using_vectors
from gppvae.prior.blocks import BlockFeatures
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.new_blocks import STORED, ConditionedRows, Move
from gppvae.prior.posterior import LatentPosterior

OBJECTS, ROWS_EACH = 64, 12  # training samples on which covariances within an object are measured
LEAST_OWN = 1e-3  # least share of the variance that is independent between samples


@dataclass(frozen=True)
class Sharing:
    """E d_i d_j = var (a + b kappa_ij + c kappa_ij^16) for two samples of one object; var 0: unknown.

    The last term is the covariance of neighbouring rows only.
    """

    var: float = 0.0
    weights: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Resemblance:
    """Covariance between samples of one trained object: of deviations from the mean sample, and of prediction errors.

    Attributes:
        directions: effective number of directions of the deviations, tr(C)^2 / tr(C^2), as a share of their size.
    """

    deviations: Sharing = Sharing()
    errors: Sharing = Sharing()
    directions: float = 1.0

    def shared(self, error_var: float) -> Tensor:
        """For errors of this size: their variance, and the weights of `basis` in their covariance, (4,)."""
        usual = min(error_var, self.errors.var)
        pairs = zip(self.errors.weights, self.deviations.weights, strict=True)
        weights = [usual * of_errors + (error_var - usual) * beyond for of_errors, beyond in pairs]
        return torch.tensor([error_var, *weights], dtype=torch.float64)


def basis(kappa: Tensor) -> Tensor:
    """1, kappa and kappa^16, last."""
    return torch.stack([torch.ones_like(kappa), kappa, kappa.clamp_min(0.0) ** 16], dim=-1)


@dataclass(frozen=True)
class Kept:
    """The given samples of one object: unit features (k, H), kriging coefficients C^-1 e (k, *shape).

    Also the covariance weights, (4,) as in `Resemblance.shared`, and the inverse of their covariance, (k, k).
    """

    features: Tensor
    coefficients: Tensor
    shared: Tensor
    inverse: Tensor

    def covariance(self, kappa: Tensor) -> Tensor:
        return basis(kappa) @ self.shared[1:]

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))


@dataclass
class Remainders:
    """What is stored of the samples of added ids.

    Attributes:
        resembling: by column.  kept: residuals to carry over, by (column, id).
        taken: sites that q(B) was conditioned on, by (column, id), one entry per group of latents, for ids with weights
            of their own.
    """

    resembling: dict[str, Resemblance] = field(default_factory=dict)
    kept: dict[tuple[str, str], Kept] = field(default_factory=dict)
    taken: dict[tuple[str, str], list[ConditionedRows | None]] = field(default_factory=dict)

    @torch.no_grad()
    def keep(self, prior: LatentPrior, column: str, ids: list[str], rows: Rows, errors: Tensor, unit: Tensor) -> None:
        """Store the residuals of the samples of these ids, (N, *shape), replacing earlier ones.

        Args:
            rows: coded, ids known.  unit: size of a value that counts as one, broadcastable to a sample.
        """
        resemblance, leaves = self.resembling.get(column, Resemblance()), learned_by_column(prior)[column]
        features, level = unit_features(prior, leaves, rows), level_of(leaves, rows)
        for name in ids:
            self.kept.pop((column, name), None)
            own = torch.nonzero(level == leaves[0].levels.index(name)).squeeze(1)
            error, v = errors[own.to(errors.device)], features[own]
            shared = resemblance.shared(float((error / unit.to(error)).square().mean())).to(v)
            if shared[1:].sum() <= 0.0:
                continue
            C = basis(v @ v.T) @ shared[1:]
            C.diagonal().copy_(shared[0].clamp_min((1.0 + LEAST_OWN) * shared[1:].sum()))
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(C)).contiguous()
            coefficients = inverse.to(error) @ error.flatten(1)
            self.kept[column, name] = Kept(v, coefficients.reshape(error.shape).cpu(), shared, inverse)

    @torch.no_grad()
    def at(self, prior: LatentPrior, rows: Rows, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
        """Correction of predictions at rows, (N, *shape), and its variance in units, (N,); None without residuals."""
        if not self.kept:
            return None
        total, variance = torch.zeros(len(rows), *shape), torch.zeros(len(rows), dtype=torch.float64)
        for column, leaves in learned_by_column(prior).items():
            names = [name for name in self.kept_of(column) if name in leaves[0].levels]
            level = level_of(leaves, rows)
            for name in names:
                here = torch.nonzero(level == leaves[0].levels.index(name)).squeeze(1)
                if len(here):
                    kept, at = self.kept[column, name], here.cpu()
                    kappa = unit_features(prior, leaves, rows[here]) @ kept.features.T
                    c = kept.covariance(kappa)  # (n, k)
                    total[at] += (c.to(kept.coefficients) @ kept.coefficients.flatten(1)).reshape(-1, *shape)
                    left = kept.shared[1:].sum() - ((c @ kept.inverse) * c).sum(1)
                    variance[at] += left.clamp_min(0.0).cpu()
        return total, variance

    def follow(self, prior: LatentPrior, moves: list[Move | None]) -> None:
        """Move features to their new positions after ids of a column were added or dropped."""
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

    def kept_of(self, column: str) -> list[str]:
        return [name for known, name in self.kept if known == column]

    def tensors(self) -> dict[str, Tensor]:
        """What a model file holds; names are in `to_json`."""
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
        return {"resembling": resembling, "kept": [list(key) for key in self.kept], "taken": taken}

    @classmethod
    def from_saved(
        cls,
        saved: dict[str, Any],
        tensors: dict[str, Tensor],
        shape: tuple[int, ...],
        prior: LatentPrior,
        weights: LatentPosterior,
    ) -> Remainders:
        """The one whose `to_json` and `tensors` these are.

        Args:
            shape: of a sample.  prior, weights: of the model that it belongs to.
        """
        found = cls()
        found.taken = _taken_from(saved.get("taken", []), tensors, prior, weights)
        for name, own in saved["resembling"].items():
            of_deviations, of_errors = (
                Sharing(float(own[part]["var"]), _three(own[part]["weights"])) for part in ("deviations", "errors")
            )
            found.resembling[str(name)] = Resemblance(of_deviations, of_errors, float(own["directions"]))
        for number, (column, name) in enumerate(saved["kept"]):
            own = Kept(**{part: tensors[f"{number}.{part}"] for part in Kept.__dataclass_fields__})
            k = len(own.features)
            fits = own.coefficients.shape == (k, *shape) and own.inverse.shape == (k, k) and own.shared.shape == (4,)
            if not fits or own.features.ndim != 2 or not all(x.isfinite().all() for x in own.tensors().values()):
                raise ValueError(f"what is kept of {str(name)[:40]!r} must be finite and of the samples' shape")
            if str(column) not in found.resembling:
                raise ValueError("what is kept of added ids must belong to a column of the kernel")
            found.kept[str(column), str(name)] = own
        return found


def _taken_from(
    saved: list[Any], tensors: dict[str, Tensor], prior: LatentPrior, weights: LatentPosterior
) -> dict[tuple[str, str], list[ConditionedRows | None]]:
    """Sites of added ids that q(B) was conditioned on, as saved; ValueError where they do not fit the model."""
    found: dict[tuple[str, str], list[ConditionedRows | None]] = {}
    added = {(c.name, level) for c in id_columns(prior) if c.own for level in c.levels[len(c.trained) :]}
    for number, (column, name, ids) in enumerate(saved):
        parts: list[ConditionedRows | None] = []
        for place, (group, part, own) in enumerate(zip(prior.groups, weights.parts, ids, strict=True)):
            if (own is None) != (group.kernel is None):
                raise ValueError("rows taken in must be of the groups of latents that have a kernel")
            if own is None:
                parts.append(None)
                continue
            each = {key: tensors[f"taken.{number}.{place}.{key}"].to(prior.device) for key in STORED}
            rows = ConditionedRows(**each, ids=tuple(map(str, own)))
            rows.check(group, part)
            parts.append(rows)
        found[str(column), str(name)] = parts
    if not set(found) <= added:
        raise ValueError("rows taken in must be of ids that were added")
    return found


@torch.no_grad()
def unit_features(prior: LatentPrior, leaves: list[Learned], rows: Rows) -> Tensor:
    """Unit-length features of rows with the mean vectors of all objects, (N, H): their inner products are kappa."""
    mean = [leaf.x.detach()[: leaf.n_trained].mean(0).expand_as(leaf.x) for leaf in leaves]
    with using_vectors(leaves, mean):
        parts = []
        for group in (group for group in prior.groups if group.kernel is not None):
            V = group.split.features(rows) if group.split is not None else group.features(rows)
            if isinstance(V, BlockFeatures):
                # Only rows of one id are compared, so the position of its block does not matter.
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
def measure(prior: LatentPrior, column: str, rows: Rows, deviations: Tensor) -> Sharing:
    """How deviations (N, K), in units, are shared by samples of one object, by least squares over pairs.

    Args:
        rows: of the samples.  deviations: zero where not observed.
    """
    leaves = learned_by_column(prior)[column]
    level, v, d = level_of(leaves, rows), unit_features(prior, leaves, rows), deviations.double()
    var = float(d.square().mean())
    pairs = torch.triu(level[:, None] == level[None, :], diagonal=1)
    if var == 0.0 or not pairs.any():
        return Sharing()
    kappa, alike = (v @ v.T)[pairs].cpu(), ((d @ d.T) / d.shape[1] / var)[pairs.to(d.device)].cpu()
    weights = nnls(basis(kappa).numpy(), alike.numpy())[0]
    return Sharing(var, _three(weights / max(weights.sum(), 1.0)))


def directions(deviations: Tensor) -> float:
    """Of samples (N, K): tr(C)^2 / tr(C^2) of their covariance C, as a share of K, without a sample's own square."""
    d = deviations.double()
    gram, (n, size) = d @ d.T, d.shape
    squares = (gram.square().sum() - gram.diagonal().square().sum()) / max(n * (n - 1), 1)  # tr C^2
    trace = gram.diagonal().mean()
    return float((trace.square() / squares.clamp_min(1e-30) / size).clamp(1.0 / size, 1.0))


def _three(weights: Any) -> tuple[float, float, float]:
    a, b, c = (float(weight) for weight in weights)
    return a, b, c

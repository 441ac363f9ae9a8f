"""Learned vectors of objects and their uncertainty; latents as a linear function of a vector, z = A'x + o."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels import Categorical, IdLeaf, Kernel, Learned
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.linalg import eye_like
from gppvae.prior.posterior import Features, LatentPosterior, Rotated, minus

MAX_NUMBERS = 2**24  # in the covariances of the vectors of a column; above it they stay point estimates


def learned_by_column(prior: LatentPrior | Kernel) -> dict[str, list[Learned]]:
    """Learned leaves of a prior or kernel, by the column of their ids."""
    found: dict[str, list[Learned]] = {}
    for leaf in prior.leaves():
        if isinstance(leaf, Learned):
            found.setdefault(leaf.column, []).append(leaf)
    return found


@dataclass(frozen=True)
class IdColumn:
    """A column whose ids have learned vectors (Learned), blocks of weights (Categorical), or both."""

    name: str
    learned: list[Learned]
    own: list[Categorical]

    @property
    def leaves(self) -> list[Learned | Categorical]:
        return [*self.learned, *self.own]

    @property
    def levels(self) -> list[str]:
        """All ids; those that were added after training come last."""
        return self.leaves[0].levels

    @property
    def trained(self) -> list[str]:
        """Ids of the training table."""
        return self.levels[: self.leaves[0].n_trained]

    def closed(self, prior: LatentPrior) -> str | None:
        """Why no ids can be added, as an error message; None where they can."""
        for leaf in prior.leaves():
            if isinstance(leaf, IdLeaf) and leaf.key == self.leaves[0].key and leaf not in self.leaves:
                return (
                    f"{type(leaf).__name__}({self.name!r}) cannot take new ids, only Learned and Categorical can; "
                    "fit with a kernel without it"
                )
        if any(leaf.normalize for leaf in self.learned):
            return (
                f"Learned({self.name!r}, normalize=True) cannot take new ids, its vectors are not linear; "
                "fit with normalize=False"
            )
        if not linear_in_vectors(prior, self.learned):
            return f"new ids need at most one Learned({self.name!r}) per product; rewrite the kernel"
        for group in prior.groups:
            own = [] if group.kernel is None else [leaf for leaf in group.kernel.leaves() if leaf in self.own]
            if own and group.split is not None and not all(map(group.split.is_block, own)):
                return (
                    f"Categorical({self.name!r}) cannot take new ids: of several Categorical columns only the one with "
                    "the most ids can; fit again with samples of them"
                )
        return None


def id_columns(prior: LatentPrior) -> list[IdColumn]:
    """Columns that Learned or Categorical kernels read; those with vectors come first."""
    learned: dict[str, list[Learned]] = learned_by_column(prior)
    own: dict[str, list[Categorical]] = {}
    for leaf in prior.leaves():
        if isinstance(leaf, Categorical):
            own.setdefault(leaf.column, []).append(leaf)
    return [IdColumn(name, learned.get(name, []), own.get(name, [])) for name in dict.fromkeys([*learned, *own])]


def open_columns(prior: LatentPrior) -> list[str]:
    """Names of the columns whose new ids can be learned from samples."""
    return [column.name for column in id_columns(prior) if column.closed(prior) is None]


def linear_in_vectors(prior: LatentPrior | Kernel, leaves: list[Learned]) -> bool:
    """Whether the features are linear in the vectors of a column: no term holds two of them, none is normalised."""
    kernels = prior.kernels if isinstance(prior, LatentPrior) else [prior]
    terms = [term for kernel in kernels for term in kernel.terms()]
    return not any(leaf.normalize for leaf in leaves) and all(
        sum(leaf in leaves for leaf in term.leaves) <= 1 for term in terms
    )


def uncertain_columns(prior: LatentPrior) -> list[list[Learned]]:
    """Learned leaves per column whose trained vectors get covariances: linear, and at most MAX_NUMBERS numbers."""
    found = []
    for leaves in learned_by_column(prior).values():
        J = sum(leaf.dim for leaf in leaves)
        if linear_in_vectors(prior, leaves) and leaves[0].n_trained * J * J <= MAX_NUMBERS:
            found.append(leaves)
    return found


def level_of(leaves: list[Learned], rows: Rows) -> Tensor:
    """Number of each row's id among the levels of a column, (N,)."""
    return rows.columns[leaves[0].key].by_row


@contextlib.contextmanager
def using_vectors(leaves: list[Learned], vectors: Sequence[Tensor]) -> Iterator[None]:
    """Inside the context, these vectors replace those of the leaves, (P, M) each."""
    with contextlib.ExitStack() as stack:
        for leaf, x in zip(leaves, vectors, strict=True):
            stack.enter_context(leaf.using(x))
        yield


@contextlib.contextmanager
def vectors_drawn(prior: LatentPrior | Kernel, generator: torch.Generator) -> Iterator[None]:
    """Inside the context, the vectors of all ids are draws from their posteriors, x + root eps with eps ~ N(0, I)."""
    with contextlib.ExitStack() as stack:
        for leaves in learned_by_column(prior).values():
            # Draws of trained vectors must not depend on the number of added ones.
            seeds = torch.randint(2**31, (2,), generator=generator).tolist()
            drawn = [leaf.x.detach().clone() for leaf in leaves]
            for kind, seed in zip(("trained_root", "added_root"), seeds, strict=True):
                root = getattr(leaves[0], kind)  # (P, M, J)
                if not len(root):
                    continue
                own = torch.Generator().manual_seed(seed)
                eps = torch.randn(root.shape[0], root.shape[2], 1, generator=own, dtype=torch.float64).to(root.device)
                for leaf, x in zip(leaves, drawn, strict=True):
                    at = slice(0, leaf.n_trained) if kind == "trained_root" else slice(leaf.n_trained, None)
                    x[at] += (getattr(leaf, kind) @ eps).squeeze(2)  # (P, M, J) (P, J, 1) -> (P, M)
            stack.enter_context(using_vectors(leaves, drawn))
        yield


@torch.no_grad()
def latents_by_vector(
    prior: LatentPrior, weights: LatentPosterior, rows: Rows, leaves: list[Learned]
) -> tuple[Tensor, Tensor]:
    """E z = A'x + o of rows, affine in the vectors x of one column.

    Exact where each term of a kernel has at most one of the leaves. Source: docs/math.md, "Objects that were not in the
    training set".

    Returns:
        A (N, J, L) and o (N, L), for the concatenated vectors x of all leaves, (J,).
    Cost: J + 1 evaluations of the features of the rows.
    """
    P, dims = len(leaves[0].levels), [leaf.dim for leaf in leaves]

    def latents(x: Tensor) -> Tensor:  # all ids at the same vector, (J,)
        with using_vectors(leaves, x.expand(P, -1).split(dims, dim=1)):
            return prior.functions_at(rows, weights.means)

    zero = leaves[0].x.new_zeros(sum(dims))
    offset = latents(zero)
    columns = [latents(unit) - offset for unit in eye_like(zero)]  # rows of A, (N, L) each
    return torch.stack(columns, dim=1), offset


@torch.no_grad()
def map_covariance(prior: LatentPrior, weights: LatentPosterior, rows: Rows, leaves: list[Learned]) -> Tensor:
    """Covariance under q(B) of A from `latents_by_vector`, along the directions, averaged over rows, (L, J, J).

    Args:
        weights: q(B) after a fit, with covariances along directions of the latents.
    """
    P, dims = len(leaves[0].levels), [leaf.dim for leaf in leaves]
    J, zero = sum(dims), leaves[0].x.new_zeros(sum(dims))

    def features(x: Tensor) -> list[Features]:  # all ids at the same vector, (J,)
        with using_vectors(leaves, x.expand(P, -1).split(dims, dim=1)):
            return [group.features(rows) for group in prior.groups]

    offsets, units = features(zero), [features(unit) for unit in eye_like(zero)]
    found = zero.new_zeros(prior.n_latents, J, J)
    for number, (group, own, part) in enumerate(zip(prior.groups, prior.latent_slices, weights.parts, strict=True)):
        read = [] if group.kernel is None else group.kernel.leaves()
        used = torch.cat([torch.full((leaf.dim,), leaf in read) for leaf in leaves]).nonzero().squeeze(1)  # (J_g,)
        if len(used) and isinstance(part, Rotated):
            several = [minus(units[j][number], offsets[number]) for j in used.tolist()]  # dv/dx_j, (N, H) each
            covariance = part.each_covariance(several).mean(0)[part.covariance_index]  # (L_g, J_g, J_g)
            found[own.start : own.stop, used[:, None], used[None, :]] = covariance
    return found


def vector_variance(prior: LatentPrior, weights: LatentPosterior, rows: Rows) -> Tensor:
    """Var z due to the uncertainty of the objects' vectors, diag(A'Cov(x)A), (N, L)."""
    variance = torch.zeros(len(rows), prior.n_latents, dtype=torch.float64, device=prior.device)
    for spread in _spreads(prior, weights, rows):
        variance += spread.square().sum(1)
    return variance


def vector_covariance(prior: LatentPrior, weights: LatentPosterior, rows: Rows) -> Tensor:
    """Covariance of z due to the uncertainty of the objects' vectors, A'Cov(x)A, (N, L, L)."""
    L = prior.n_latents
    covariance = torch.zeros(len(rows), L, L, dtype=torch.float64, device=prior.device)
    for spread in _spreads(prior, weights, rows):
        covariance += spread.transpose(1, 2) @ spread
    return covariance


def _spreads(prior: LatentPrior, weights: LatentPosterior, rows: Rows) -> Iterator[Tensor]:
    """root'A of each row, (N, J, L), for each column with uncertain vectors."""
    for leaves in learned_by_column(prior).values():
        if not len(leaves[0].added_root) and not len(leaves[0].trained_root):
            continue
        root = vector_roots(leaves)
        A, _ = latents_by_vector(prior, weights, rows, leaves)
        yield root[level_of(leaves, rows)].transpose(1, 2) @ A  # (N, J, J) (N, J, L)


def vector_roots(leaves: list[Learned]) -> Tensor:
    """Roots of the covariances of a column's vectors, Cov(x_p) = root root', (P, J, J); zero for point estimates."""
    J = sum(leaf.dim for leaf in leaves)
    root = leaves[0].x.new_zeros(len(leaves[0].levels), J, J)
    if len(leaves[0].trained_root):
        root[: leaves[0].n_trained] = torch.cat([leaf.trained_root for leaf in leaves], dim=1)
    if leaves[0].n_added:
        root[leaves[0].n_trained :] = torch.cat([leaf.added_root for leaf in leaves], dim=1)
    return root

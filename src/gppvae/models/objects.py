"""Latents as a linear function of an object's learned vector: z = A'x + o, row by row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels import Kernel, Learned
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior


def learned_by_column(prior: LatentPrior | Kernel) -> dict[str, list[Learned]]:
    """Learned leaves of a prior or kernel, grouped by the column whose ids they describe."""
    found: dict[str, list[Learned]] = {}
    for leaf in prior.leaves():
        if isinstance(leaf, Learned):
            found.setdefault(leaf.column, []).append(leaf)
    return found


@contextlib.contextmanager
def added_vectors_drawn(prior: LatentPrior | Kernel, generator: torch.Generator) -> Iterator[None]:
    """Inside the context, vectors of added ids are drawn from their posteriors."""
    with contextlib.ExitStack() as stack:
        for leaves in learned_by_column(prior).values():
            if not leaves[0].n_added:
                continue
            root = leaves[0].added_root  # (P_added, M, J)
            eps = torch.randn(root.shape[0], root.shape[2], 1, generator=generator, dtype=torch.float64).to(root.device)
            for leaf in leaves:
                x = leaf.x.detach().clone()
                x[-leaf.n_added :] += (leaf.added_root @ eps).squeeze(2)
                stack.enter_context(leaf.using(x))
        yield


@torch.no_grad()
def latents_by_vector(
    prior: LatentPrior, weights: LatentPosterior, rows: Rows, leaves: list[Learned]
) -> tuple[Tensor, Tensor]:
    """E z of rows as an affine function of the vectors of one column.

    Source: docs/math.md, "Objects that were not in the training set". Exact where each term of a kernel
    holds at most one of the leaves.

    Returns:
        A (N, J, L) and o (N, L): z = A'x + o with x the vectors of all leaves, end to end (J entries).
    Cost: J + 1 evaluations of the features of the rows.
    """
    means = [part.mean for part in weights.parts]

    def latents(entry: int | None) -> Tensor:
        with contextlib.ExitStack() as stack:
            start = 0
            for leaf in leaves:
                x = torch.zeros_like(leaf.x)
                if entry is not None and start <= entry < start + leaf.dim:
                    x[:, entry - start] = 1.0
                start += leaf.dim
                stack.enter_context(leaf.using(x))
            return prior.functions_at(rows, means)

    offset = latents(None)
    columns = [latents(entry) - offset for entry in range(sum(leaf.dim for leaf in leaves))]
    return torch.stack(columns, dim=1), offset


def vector_variance(prior: LatentPrior, weights: LatentPosterior, rows: Rows) -> Tensor:
    """Var z that comes from the uncertainty of added vectors, (N, L); zero for ids of the training set."""
    variance = torch.zeros(len(rows), prior.n_latents, dtype=torch.float64, device=prior.device)
    for leaves in learned_by_column(prior).values():
        if not leaves[0].n_added:
            continue
        A, _ = latents_by_vector(prior, weights, rows, leaves)
        column = rows.columns[leaves[0].key]
        level = column.values[column.index]
        first = len(leaves[0].levels) - leaves[0].n_added
        root = torch.cat([leaf.added_root for leaf in leaves], dim=1)  # (P_added, J, J)
        new = torch.nonzero(level >= first).squeeze(1)
        spread = root[level[new] - first].transpose(1, 2) @ A[new]  # (N_new, J, L)
        variance[new] += spread.square().sum(1)
    return variance
